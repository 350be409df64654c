//! A connection's line, declared once: JSON, CSV and their readers, docs/connections.schema.json and the guide's table come from here.

use std::net::IpAddr;

use net_latency_common::{CONNECTION_COOKIE, CONNECTION_FAST_OPEN, CONNECTION_MPTCP, CONNECTION_UNSEEN};
use serde_json::Value;
#[cfg(test)]
use serde_json::json;

use crate::{
    clock::TimeText,
    named::named,
    output::{put_csv_name, put_json_name},
};

/// What a field can be.
pub(super) trait Kind: Sized {
    /// Appends it as JSON.
    fn write_json(&self, time: &mut TimeText, out: &mut Vec<u8>);

    /// Appends it as CSV; empty if unknown.
    fn write_csv(&self, time: &mut TimeText, out: &mut Vec<u8>);

    /// It, from JSON, or from a value of CSV as a string.
    fn read(value: &Value) -> Option<Self>;

    /// What the JSON schema says.
    #[cfg(test)]
    fn schema() -> Value;
}

/// Hands all fields to the macro `make`: NAME: KIND, what it is.
macro_rules! with_fields {
    ($make:ident) => {
        $make! {
            ts: Time, "When it ended, failed, or was looked at: RFC 3339 with 9 digits and an offset.";
            role: Option<Role>, "Who began it: this end (client) or the other (server).";
            pid: Option<u32>,
                "Process (in the initial PID namespace) that connected or accepted; of one whose beginning was not seen, that closed it.";
            process: Option<Name>, "Its name. Invalid UTF-8 reads as U+FFFD.";
            container: Option<Name>, "The container that it is in: the first 12 digits of its id.";
            netns_name: Option<Name>, "The network namespace's name, or its pod's.";
            laddr: IpAddr, "This end's address.";
            lport: u16, "Its port.";
            raddr: IpAddr, "The other end's address.";
            rport: u16, "Its port.";
            state: State, "How it ended, or `open`.";
            handshake_ns: Option<u64>,
                "Client: from the SYN to the answer. Server: from the answer to the SYN until the ACK.";
            syn_retrans: u32, "SYNs (server: answers to them) that were sent again.";
            accept_ns: Option<u64>, "Server: established, until `accept` returned it; 0 if that came first.";
            first_in_ns: Option<u64>, "Established, until the first byte came.";
            first_out_ns: Option<u64>, "Established, until the first byte was written.";
            bytes_in: u64, "Payload received in order.";
            bytes_out: u64, "Payload sent, each byte once.";
            segs_in: u32, "Segments received.";
            segs_out: u32, "Segments sent.";
            retrans: u32, "Segments sent again after the handshake.";
            rtt_ns: Option<u64>, "The last smoothed round-trip time.";
            min_rtt_ns: Option<u64>, "The least round-trip time of the last minutes.";
            duration_ns: Option<u64>, "From the SYN until `ts`.";
            closed_by: Option<ClosedBy>, "Who ended it.";
            error: Option<u32>, "The socket's last error, an errno.";
            tid: Option<u32>, "The thread that connected or accepted.";
            comm: Option<Name>, "Its name.";
            ipver: u8, "Version of IP.";
            netns: u32, "Inode number of the network namespace.";
            mark: u32, "The socket's mark.";
            flags: Flags,
                "`start-unseen`: its beginning was not seen. `syn-cookie`: nothing was kept of its SYN. `fast-open`: TCP Fast Open. `mptcp`: a subflow of MPTCP.";
        }
    };
}

macro_rules! make {
    ($($name:ident: $kind:ty, $doc:literal;)+) => {
        /// A line.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) struct Line {
            $(#[doc = $doc] pub(super) $name: $kind,)+
        }

        /// The fields' names.
        pub(super) const NAMES: &[&str] = &[$(stringify!($name),)+];

        impl Line {
            /// Appends an object and a newline.
            pub(super) fn write_json(&self, time: &mut TimeText, out: &mut Vec<u8>) {
                let start = out.len();
                $(
                    out.extend_from_slice(concat!(",\"", stringify!($name), "\":").as_bytes());
                    self.$name.write_json(time, out);
                )+
                out[start] = b'{';
                out.extend_from_slice(b"}\n");
            }

            /// Appends values and a newline.
            pub(super) fn write_csv(&self, time: &mut TimeText, out: &mut Vec<u8>) {
                $(
                    self.$name.write_csv(time, out);
                    out.push(b',');
                )+
                out.pop();
                out.push(b'\n');
            }

            /// A line from its values by name, of which `null` are unknown; the error is the name of a field that is wrong or missing.
            pub(super) fn read(value: impl Fn(&'static str) -> Option<Value>) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let name = stringify!($name);
                        value(name).and_then(|value| <$kind>::read(&value)).ok_or(name)?
                    },)+
                })
            }
        }

        /// Name, schema and words of each field.
        #[cfg(test)]
        pub(super) fn documents() -> Vec<(&'static str, Value, &'static str)> {
            vec![$((stringify!($name), <$kind>::schema(), $doc),)+]
        }
    };
}
with_fields!(make);

impl<T: Kind> Kind for Option<T> {
    fn write_json(&self, time: &mut TimeText, out: &mut Vec<u8>) {
        match self {
            Some(value) => value.write_json(time, out),
            None => out.extend_from_slice(b"null"),
        }
    }

    fn write_csv(&self, time: &mut TimeText, out: &mut Vec<u8>) {
        if let Some(value) = self {
            value.write_csv(time, out);
        }
    }

    fn read(value: &Value) -> Option<Self> {
        let is_unknown = value.is_null() || value.as_str().is_some_and(str::is_empty);
        if is_unknown { Some(None) } else { T::read(value).map(Some) }
    }

    #[cfg(test)]
    fn schema() -> Value {
        let mut schema = T::schema();
        let known = schema["type"].take();
        schema["type"] = json!([known, "null"]);
        if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
            words.push(Value::Null);
        }
        schema
    }
}

macro_rules! numbers {
    ($($kind:ty)+) => {$(
        impl Kind for $kind {
            fn write_json(&self, _: &mut TimeText, out: &mut Vec<u8>) {
                out.extend_from_slice(itoa::Buffer::new().format(*self).as_bytes());
            }

            fn write_csv(&self, time: &mut TimeText, out: &mut Vec<u8>) {
                self.write_json(time, out);
            }

            fn read(value: &Value) -> Option<Self> {
                match value {
                    Value::String(text) => text.parse().ok(),
                    other => other.as_u64().and_then(|number| Self::try_from(number).ok()),
                }
            }

            #[cfg(test)]
            fn schema() -> Value {
                json!({"type": "integer", "minimum": 0, "maximum": Self::MAX})
            }
        }
    )+};
}
numbers!(u8 u16 u32 u64);

/// ns since 1970 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Time(pub(super) i64);

impl Kind for Time {
    fn write_json(&self, time: &mut TimeText, out: &mut Vec<u8>) {
        out.push(b'"');
        time.write(self.0, out);
        out.push(b'"');
    }

    fn write_csv(&self, time: &mut TimeText, out: &mut Vec<u8>) {
        time.write(self.0, out);
    }

    fn read(value: &Value) -> Option<Self> {
        let time = chrono::DateTime::parse_from_rfc3339(value.as_str()?).ok()?;
        time.timestamp_nanos_opt().map(Self)
    }

    #[cfg(test)]
    fn schema() -> Value {
        json!({"type": "string", "format": "date-time"})
    }
}

pub(super) type Name = crate::name::Name<64>;

impl Kind for Name {
    fn write_json(&self, _: &mut TimeText, out: &mut Vec<u8>) {
        put_json_name(self.bytes(), out);
    }

    fn write_csv(&self, _: &mut TimeText, out: &mut Vec<u8>) {
        put_csv_name(self.bytes(), out);
    }

    fn read(value: &Value) -> Option<Self> {
        value.as_str().map(|name| Self::new(name.as_bytes()))
    }

    #[cfg(test)]
    fn schema() -> Value {
        json!({"type": "string"})
    }
}

impl Kind for IpAddr {
    fn write_json(&self, time: &mut TimeText, out: &mut Vec<u8>) {
        out.push(b'"');
        self.write_csv(time, out);
        out.push(b'"');
    }

    fn write_csv(&self, _: &mut TimeText, out: &mut Vec<u8>) {
        use std::io::Write as _;
        write!(out, "{self}").expect("memory can be written");
    }

    fn read(value: &Value) -> Option<Self> {
        value.as_str()?.parse().ok()
    }

    #[cfg(test)]
    fn schema() -> Value {
        json!({"type": "string"})
    }
}

/// A value that is one of a few words.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($values:tt)+ }) => {
        named! {
            $(#[$doc])*
            pub(in crate::commands) enum $name { $($values)+ }
        }

        impl Kind for $name {
            fn write_json(&self, time: &mut TimeText, out: &mut Vec<u8>) {
                out.push(b'"');
                self.write_csv(time, out);
                out.push(b'"');
            }

            fn write_csv(&self, _: &mut TimeText, out: &mut Vec<u8>) {
                out.extend_from_slice(self.name().as_bytes());
            }

            fn read(value: &Value) -> Option<Self> {
                let word = value.as_str()?;
                Self::ALL.iter().find(|(_, own)| *own == word).map(|(value, _)| *value)
            }

            #[cfg(test)]
            fn schema() -> Value {
                json!({"type": "string", "enum": Self::ALL.iter().map(|(_, word)| *word).collect::<Vec<_>>()})
            }
        }
    };
}

words! {
    /// The end that opened it: this machine's role.
    Role {
        Client "client",
        Server "server",
    }
}

words! {
    /// How it ended.
    State {
        /// Both ends have closed it, or this one did while the other has not yet.
        Closed "closed",
        Open "open",
        /// The other end answered the SYN with a reset.
        Refused "refused",
        /// No answer, or no ACK: the kernel gave up.
        Timeout "timeout",
        Reset "reset",
        /// The accept queue was full when the handshake was complete: the ACK was thrown away.
        Overflow "overflow",
        /// The application gave up before there was an answer.
        Abandoned "abandoned",
        /// The network said that there is no way, or no SYN could be sent.
        Unreachable "unreachable",
    }
}

words! {
    /// The end that closed it, and how.
    ClosedBy {
        Local "local",
        Peer "peer",
        ResetByLocal "reset-by-local",
        ResetByPeer "reset-by-peer",
        Timeout "timeout",
    }
}

impl State {
    /// Whether there was no connection, or it was cut off.
    pub(in crate::commands) fn is_failure(self) -> bool {
        !matches!(self, Self::Closed | Self::Open)
    }
}

/// Words for some of [`net_latency_common::ConnectionRecord::flags`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags(pub(super) u32);

impl Flags {
    const WORDS: [(u32, &'static str); 4] = [
        (CONNECTION_UNSEEN, "start-unseen"),
        (CONNECTION_COOKIE, "syn-cookie"),
        (CONNECTION_FAST_OPEN, "fast-open"),
        (CONNECTION_MPTCP, "mptcp"),
    ];

    pub(super) fn words(self) -> impl Iterator<Item = &'static str> {
        Self::WORDS.into_iter().filter(move |(bit, _)| self.0 & bit != 0).map(|(_, word)| word)
    }
}

impl Kind for Flags {
    fn write_json(&self, _: &mut TimeText, out: &mut Vec<u8>) {
        out.push(b'[');
        for (number, word) in self.words().enumerate() {
            out.extend_from_slice(if number > 0 { b",\"" } else { b"\"" });
            out.extend_from_slice(word.as_bytes());
            out.push(b'"');
        }
        out.push(b']');
    }

    fn write_csv(&self, _: &mut TimeText, out: &mut Vec<u8>) {
        for (number, word) in self.words().enumerate() {
            if number > 0 {
                out.push(b';');
            }
            out.extend_from_slice(word.as_bytes());
        }
    }

    fn read(value: &Value) -> Option<Self> {
        let bit = |word: &str| Self::WORDS.iter().find(|(_, own)| *own == word).map_or(0, |(bit, _)| *bit);
        Some(Self(match value {
            Value::String(text) => text.split(';').map(bit).sum(),
            Value::Array(words) => words.iter().filter_map(Value::as_str).map(bit).sum(),
            _ => return None,
        }))
    }

    #[cfg(test)]
    fn schema() -> Value {
        json!({"type": "array", "items": {"type": "string"}})
    }
}

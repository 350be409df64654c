//! A line of the JSON form.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use net_latency_common::Direction;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::packet::{Fields, Flags, Times};
use crate::packet::event::Protocol;

/// Why a line gives no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It is no JSON at all.
    Syntax,
    /// It is an object, or a value, but of something else.
    Content,
}

/// The fields of a line. Those that this version doesn't know are passed over.
pub(super) fn read(line: &[u8]) -> Result<Fields<'_>, Wrong> {
    match serde_json::from_slice::<JsonLine<'_>>(line) {
        Ok(line) => Ok(line.into()),
        Err(error) if error.is_data() => Err(Wrong::Content),
        Err(_) => Err(Wrong::Syntax),
    }
}

#[derive(Deserialize)]
struct JsonLine<'a> {
    #[serde(borrow, default)]
    ts: Option<Text<'a>>,
    dir: Option<Way>,
    proto: Option<Transport>,
    pid: Option<u32>,
    tid: Option<u32>,
    #[serde(borrow, default)]
    comm: Option<Text<'a>>,
    saddr: Option<IpAddr>,
    sport: Option<u16>,
    daddr: Option<IpAddr>,
    dport: Option<u16>,
    len: Option<u32>,
    drv_ip_ns: Option<u64>,
    ip_tcp_ns: Option<u64>,
    tcp_app_ns: Option<u64>,
    ip_udp_ns: Option<u64>,
    udp_app_ns: Option<u64>,
    app_tcp_ns: Option<u64>,
    tcp_ip_ns: Option<u64>,
    ip_drv_ns: Option<u64>,
    app_udp_ns: Option<u64>,
    udp_ip_ns: Option<u64>,
    total_ns: Option<u64>,
    netns: Option<u32>,
    #[serde(default, deserialize_with = "flags")]
    flags: Flags,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Way {
    In,
    Out,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Tcp,
    Udp,
}

impl<'a> From<JsonLine<'a>> for Fields<'a> {
    fn from(line: JsonLine<'a>) -> Self {
        Fields {
            ts: line.ts.map(|text| text.0),
            direction: line.dir.map(|way| match way {
                Way::In => Direction::In,
                Way::Out => Direction::Out,
            }),
            protocol: line.proto.map(|transport| match transport {
                Transport::Tcp => Protocol::Tcp,
                Transport::Udp => Protocol::Udp,
            }),
            pid: line.pid,
            tid: line.tid,
            comm: line.comm.map(|text| text.0),
            saddr: line.saddr,
            sport: line.sport,
            daddr: line.daddr,
            dport: line.dport,
            len: line.len,
            times: Times {
                drv_ip: line.drv_ip_ns,
                ip_tcp: line.ip_tcp_ns,
                tcp_app: line.tcp_app_ns,
                ip_udp: line.ip_udp_ns,
                udp_app: line.udp_app_ns,
                app_tcp: line.app_tcp_ns,
                tcp_ip: line.tcp_ip_ns,
                ip_drv: line.ip_drv_ns,
                app_udp: line.app_udp_ns,
                udp_ip: line.udp_ip_ns,
            },
            total_ns: line.total_ns,
            netns: line.netns,
            flags: line.flags,
        }
    }
}

/// A string that stays in the line, unless it has escapes. (serde's own `Option<Cow>` always copies.)
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(TextVisitor)
    }
}

/// An array of names.
fn flags<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Flags, D::Error> {
    struct FlagsVisitor;
    impl<'de> Visitor<'de> for FlagsVisitor {
        type Value = Flags;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of strings")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<Flags, A::Error> {
            let mut flags = Flags::default();
            while let Some(name) = names.next_element::<Text<'_>>()? {
                flags.add(&name.0);
            }
            Ok(flags)
        }

        fn visit_unit<E: Error>(self) -> Result<Flags, E> {
            Ok(Flags::default())
        }
    }
    deserializer.deserialize_any(FlagsVisitor)
}

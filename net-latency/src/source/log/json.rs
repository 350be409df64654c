//! A line of the JSON form.

use std::borrow::Cow;
use std::fmt;

use net_latency_common::Direction;
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{
    exact,
    packet::{Fields, Flags},
};
use crate::packet::{
    event::{Protocol, held_named},
    stages::{FINE_STAGES, STAGES},
};

/// Why a line gives no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It is no JSON at all.
    Syntax,
    /// It is an object, or a value, but of something else.
    Content,
}

/// The fields of a line. Those that this version doesn't know are passed over.
#[inline(always)]
pub(crate) fn read(line: &[u8]) -> Result<Fields<'_>, Wrong> {
    exact::read(line).map_or_else(|| read_any(line), Ok)
}

/// The same, without the short way for lines that are just as we write them.
pub(super) fn read_any(line: &[u8]) -> Result<Fields<'_>, Wrong> {
    match serde_json::from_slice::<JsonLine<'_>>(line) {
        Ok(line) => Ok(line.0),
        Err(error) if error.is_data() => Err(Wrong::Content),
        Err(_) => Err(Wrong::Syntax),
    }
}

struct JsonLine<'a>(Fields<'a>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonLine<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor).map(JsonLine)
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a packet's line")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        while let Some(key) = map.next_key::<Text<'_>>()? {
            match &*key.0 {
                "ts" => fields.ts = map.next_value::<Option<Text<'_>>>()?.map(|text| text.0),
                "dir" => fields.direction = map.next_value::<Option<Dir>>()?.map(Dir::direction),
                "proto" => fields.protocol = map.next_value::<Option<Transport>>()?.map(Transport::protocol),
                "pid" => fields.values.pid = map.next_value()?,
                "tid" => fields.values.tid = map.next_value()?,
                "comm" => fields.values.comm = map.next_value::<Option<Text<'_>>>()?.map(|text| text.0),
                "process" => {
                    fields.values.process = map.next_value::<Option<Text<'_>>>()?.map(|text| text.0);
                }
                "saddr" => fields.saddr = map.next_value()?,
                "sport" => fields.sport = map.next_value()?,
                "daddr" => fields.daddr = map.next_value()?,
                "dport" => fields.dport = map.next_value()?,
                "len" => fields.len = map.next_value()?,
                "total_ns" => fields.values.total_ns = map.next_value()?,
                "netns" => fields.values.netns = map.next_value()?,
                "seq" => fields.values.seq = map.next_value()?,
                "segs" => fields.values.segs = map.next_value()?,
                "ifname" => fields.values.ifname = map.next_value::<Option<Text<'_>>>()?.map(|text| text.0),
                "mark" => fields.values.mark = map.next_value()?,
                "cpu" => fields.values.cpu = map.next_value()?,
                "first_send_age_ns" => fields.values.first_send_age_ns = map.next_value()?,
                "last_drv_ip_ns" => fields.values.last_drv_ip_ns = map.next_value()?,
                "ns_pid" => fields.values.ns_pid = map.next_value()?,
                "held" => {
                    let name = map.next_value::<Option<Text<'_>>>()?;
                    fields.values.held = name.and_then(|name| held_named(&name.0));
                }
                "cpu_held_by" => fields.values.cpu_held_by = map.next_value()?,
                "rtt_ns" => fields.values.rtt_ns = map.next_value()?,
                "dsacks" => fields.values.dsacks = map.next_value()?,
                "netns_name" => {
                    fields.values.netns_name = map.next_value::<Option<Text<'_>>>()?.map(|text| text.0);
                }
                "container" => {
                    fields.values.container = map.next_value::<Option<Text<'_>>>()?.map(|text| text.0);
                }
                "flags" => fields.values.flags = map.next_value::<FlagNames>()?.0,
                name => match STAGES.iter().position(|stage| stage.field == name) {
                    Some(place) => fields.times[place] = map.next_value()?,
                    None => match FINE_STAGES.iter().position(|stage| stage.field == name) {
                        Some(place) => fields.fine.get_or_insert_default()[place] = map.next_value()?,
                        None => drop(map.next_value::<IgnoredAny>()?),
                    },
                },
            }
        }
        Ok(fields)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Dir {
    In,
    Out,
}

impl Dir {
    fn direction(self) -> Direction {
        match self {
            Self::In => Direction::In,
            Self::Out => Direction::Out,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Tcp,
    Udp,
}

impl Transport {
    fn protocol(self) -> Protocol {
        match self {
            Self::Tcp => Protocol::Tcp,
            Self::Udp => Protocol::Udp,
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
struct FlagNames(Flags);

impl<'de> Deserialize<'de> for FlagNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        flags(deserializer).map(Self)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    const WORDS: &[&str] =
        &["null", "\"dir\":\"in\",", "-1", "1e999", "18446744073709551616", "\\ud800", "[[[[[["];

    #[test]
    fn fuzz_json() {
        let seeds = [
            r#"{"ts":"2022-03-02T16:01:36.123456789+00:00","dir":"in","proto":"tcp","drv_ip_ns":41000,"ip_tcp_ns":26000,"tcp_app_ns":null,"total_ns":460000,"pid":143,"tid":143,"comm":"nginx","saddr":"192.0.2.7","sport":443,"daddr":"2001:db8::1","dport":40000,"len":1448,"netns":4026531840,"seq":1,"segs":2,"ifname":"eth0","mark":0,"cpu":3,"flags":["retrans","gro"],"ns_pid":7,"netns_name":"red","container":null}"#,
            r#"{"ts":"2022-03-02T16:01:36Z","dir":"out","proto":"udp","comm":"\u001b[2J\ud83d\ude00","more":{"deep":[[1,{"a":true}]]}}"#,
        ];
        fuzz::run("json", 1_000, seeds.map(Vec::from), WORDS, |line| {
            // What is passed over is an object too, of whatever it holds.
            if read(line).is_ok() {
                assert!(line.trim_ascii_start().starts_with(b"{"));
                assert!(serde_json::from_slice::<IgnoredAny>(line).is_ok());
            }
        });
    }
}

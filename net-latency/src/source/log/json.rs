//! A line of the JSON form.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::{
    exact,
    fields::{Fields, Name, Values},
    skipped::Skipped,
};

/// The fields of a line. Those that this version doesn't know are passed over.
#[inline(always)]
pub(super) fn read(line: &[u8]) -> Result<Fields<'_>, Skipped> {
    exact::read(line).map_or_else(|| read_any(line), Ok)
}

/// [`read`] without the fast path for lines that are exactly as we write them.
pub(super) fn read_any(line: &[u8]) -> Result<Fields<'_>, Skipped> {
    match serde_json::from_slice::<JsonLine<'_>>(line) {
        Ok(line) => Ok(line.0),
        Err(error) if error.is_data() => Err(Skipped::OtherJson),
        Err(_) => Err(Skipped::NoJson),
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
            match Name::of(&key.0) {
                Some(name) => fields.set(name, &mut Object(&mut map))?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(fields)
    }
}

/// An object whose next value is to be read.
struct Object<'m, M>(&'m mut M);

impl<'de, M: MapAccess<'de>> Values<'de> for Object<'_, M> {
    type Error = M::Error;

    fn wrong(&self) -> M::Error {
        M::Error::custom("another word")
    }

    fn number(&mut self, most: u64) -> Result<Option<u64>, M::Error> {
        let number: Option<u64> = self.0.next_value()?;
        if number.is_some_and(|number| number > most) {
            return Err(M::Error::custom("too large a number"));
        }
        Ok(number)
    }

    fn text(&mut self) -> Result<Option<Cow<'de, str>>, M::Error> {
        Ok(self.0.next_value::<Option<Text<'_>>>()?.map(|text| text.0))
    }

    fn address(&mut self) -> Result<Option<IpAddr>, M::Error> {
        self.0.next_value()
    }

    fn words(&mut self, take: impl FnMut(&str)) -> Result<(), M::Error> {
        self.0.next_value_seed(Words(take))
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

/// Hands on the strings of an array, or of nothing.
struct Words<F>(F);

impl<'de, F: FnMut(&str)> DeserializeSeed<'de> for Words<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(&str)> Visitor<'de> for Words<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of strings")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut words: A) -> Result<(), A::Error> {
        while let Some(word) = words.next_element::<Text<'_>>()? {
            (self.0)(&word.0);
        }
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }
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
            // A field that is passed over may be an object too.
            if read(line).is_ok() {
                assert!(line.trim_ascii_start().starts_with(b"{"));
                assert!(serde_json::from_slice::<IgnoredAny>(line).is_ok());
            }
        });
    }
}

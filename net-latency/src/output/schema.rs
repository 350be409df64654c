//! docs/packet.schema.json describes the JSON form, no more and no less.
//!
//! The crates that read JSON Schema bring some fifty others, so this reads the few keywords that our schema uses,
//! and refuses a schema with any other.

use std::{fmt, net::IpAddr};

use chrono::DateTime;
use net_latency_common::{IPPROTO_TCP, IPPROTO_UDP};
use proptest::prelude::*;
use regex_lite::Regex;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value, json};

use super::{
    Options,
    json::JsonWriter,
    tests::{any_name, any_place, any_record},
};
use crate::{
    clock::Zone,
    packet::{
        event::{
            Event, PARTS,
            fixtures::{WALL_NS, incoming, outgoing, udp},
        },
        stages::FINE_STAGES,
    },
};

const SCHEMA: &str = include_str!("../../../docs/packet.schema.json");

fn schema() -> Value {
    serde_json::from_str(SCHEMA).expect("the schema is JSON")
}

/// Says why `value` is not as `schema` has it.
pub(crate) fn check(schema: &Value, value: &Value) -> Result<(), String> {
    let schema = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(schema) => schema,
        _ => return Err(format!("{value} may not be here")),
    };
    for (keyword, rule) in schema {
        if !keyword_holds(schema, keyword, rule, value)? {
            return Err(format!("{value} breaks {keyword}: {rule}"));
        }
    }
    Ok(())
}

fn keyword_holds(
    schema: &Map<String, Value>,
    keyword: &str,
    rule: &Value,
    value: &Value,
) -> Result<bool, String> {
    let rules = || rule.as_array().expect("an array");
    let passing = || rules().iter().filter(|rule| check(rule, value).is_ok()).count();
    Ok(match keyword {
        "$schema" | "title" | "description" => true,
        "type" => match rule {
            Value::Array(names) => names.iter().any(|name| is_of_type(name, value)),
            name => is_of_type(name, value),
        },
        "const" => rule == value,
        "enum" => rules().contains(value),
        "oneOf" => passing() == 1,
        "anyOf" => passing() > 0,
        // Of another type a value keeps these in any case.
        "minimum" => number(value).is_none_or(|value| value >= number(rule).expect("a number")),
        "maximum" => number(value).is_none_or(|value| value <= number(rule).expect("a number")),
        "minLength" => {
            value.as_str().is_none_or(|text| text.chars().count() as u64 >= rule.as_u64().expect("a number"))
        }
        "pattern" => value.as_str().is_none_or(|text| {
            Regex::new(rule.as_str().expect("a pattern")).expect("a pattern").is_match(text)
        }),
        "format" => value.as_str().is_none_or(|text| match rule.as_str() {
            Some("date-time") => DateTime::parse_from_rfc3339(text).is_ok(),
            Some("ipv4") => text.parse().is_ok_and(|address: IpAddr| address.is_ipv4()),
            Some("ipv6") => text.parse().is_ok_and(|address: IpAddr| address.is_ipv6()),
            _ => panic!("format {rule}"),
        }),
        "items" => match value {
            Value::Array(items) => {
                for item in items {
                    check(rule, item)?;
                }
                true
            }
            _ => true,
        },
        "properties" => match value {
            Value::Object(fields) => {
                for (name, rule) in rule.as_object().expect("an object") {
                    if let Some(field) = fields.get(name) {
                        check(rule, field).map_err(|error| format!("{name}: {error}"))?;
                    }
                }
                true
            }
            _ => true,
        },
        "required" => rules().iter().all(|name| value.get(name.as_str().expect("a name")).is_some()),
        _ => panic!("this test does not know {keyword:?} in {schema:?}"),
    })
}

fn number(value: &Value) -> Option<i128> {
    value.as_number()?.as_i128()
}

fn is_of_type(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("null") => value.is_null(),
        _ => panic!("type {name}"),
    }
}

/// The names of an object's fields, in their order.
struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Names;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
                let mut names = Vec::new();
                while let Some((name, IgnoredAny)) = map.next_entry()? {
                    names.push(name);
                }
                Ok(Names(names))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// The fields that the schema describes, in its order.
fn described() -> Vec<String> {
    let properties = SCHEMA.split_once("\"properties\": ").expect("properties").1;
    let mut reader = serde_json::Deserializer::from_str(properties);
    Names::deserialize(&mut reader).expect("an object").0
}

fn line(event: &Event<'_>) -> String {
    let mut out = Vec::new();
    JsonWriter::new(&Options { zone: Zone::UTC, details: false, colour: false }).write(event, &mut out);
    String::from_utf8(out).expect("JSON is UTF-8")
}

fn valid() -> Vec<Value> {
    [incoming(), outgoing(), udp(incoming()), udp(outgoing())]
        .iter()
        .map(|record| {
            let dsacks = if record.direction == 1 && record.protocol == IPPROTO_TCP { 1 } else { 0 };
            let record = net_latency_common::PacketRecord { dsacks, rtt_or_holder: dsacks.into(), ..*record };
            let event = Event::new(&record, WALL_NS, Some(b"eth0")).with_parts(Some(&[1; PARTS]));
            serde_json::from_str(&line(&event)).expect("valid JSON")
        })
        .collect()
}

#[test]
fn every_field_that_is_described_is_written() {
    let mut left = described();
    for packet in valid() {
        check(&schema(), &packet).expect("as described");
        left.retain(|name| packet.get(name).is_none());
    }
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn what_is_not_as_described_is_found() {
    let schema = schema();
    for packet in valid() {
        let fields = packet.as_object().expect("an object");
        for name in fields.keys() {
            let mut packet = packet.clone();
            packet.as_object_mut().expect("an object").remove(name);
            // Fine stages are there where they are asked for.
            let is_fine = FINE_STAGES.iter().any(|stage| stage.field == *name)
                || ["held", "cpu_held_by", "dsacks"].contains(&name.as_str());
            assert_eq!(check(&schema, &packet).is_ok(), is_fine, "without {name}");
            packet[name] = json!({});
            assert!(check(&schema, &packet).is_err(), "{name} of another type");
            packet[name] = json!(-1);
            assert!(check(&schema, &packet).is_err(), "{name} of -1");
        }
        for foreign in described().iter().filter(|name| !fields.contains_key(*name)) {
            let mut packet = packet.clone();
            packet[foreign] = Value::Null;
            assert!(check(&schema, &packet).is_err(), "{foreign} of another direction or protocol");
        }
        for (name, value) in [
            ("ts", json!("2022-03-02 16:01:36")),
            ("ipver", json!(5)),
            ("saddr", json!("localhost")),
            ("sport", json!(65536)),
            ("flags", json!(["new"])),
            ("pid", json!(0)),
            ("ifname", json!("")),
        ] {
            let mut packet = packet.clone();
            packet[name] = value;
            assert!(check(&schema, &packet).is_err(), "wrong {name}");
        }
    }
}

proptest! {
    #[test]
    fn any_line_is_as_described(
        record in any_record(),
        is_udp: bool,
        other in prop_oneof![Just(0), 1..10_000_000u64],
        ifname in any_name(),
        ns_pid in proptest::option::of(1..u32::MAX),
        parts in proptest::option::of(any::<[u64; PARTS]>()),
        (netns_name, container) in any_place(),
    ) {
        let protocol = if is_udp { IPPROTO_UDP } else { IPPROTO_TCP };
        let record = net_latency_common::PacketRecord { protocol, other, ..record };
        let place = (netns_name.as_deref(), container.as_deref().map(str::as_bytes));
        let text = line(&Event::new(&record, WALL_NS, Some(&ifname)).with_ns_pid(ns_pid).with_place(place.0, place.1).with_parts(parts.as_ref()));
        let value: Value = serde_json::from_str(&text).expect("valid JSON");
        prop_assert_eq!(check(&schema(), &value), Ok(()));
        // In the schema's order, and nothing besides.
        let described = described();
        let places: Vec<_> = serde_json::from_str::<Names>(&text).expect("an object").0.iter()
            .map(|name| described.iter().position(|field| field == name))
            .collect();
        prop_assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");
    }
}

//! Packets as recordings have them: as a form that writes each field of a line into its column.

use std::net::IpAddr;

use super::fields::{self, FINE_FIELDS, Field, Form, STAGE_FIELDS};
use crate::{
    packet::event::Event,
    recording::{
        block::{Flow, Packer, Packing},
        columns::Role,
    },
};

/// Between the words of a field that has several.
pub(crate) const WORDS: u8 = b',';
/// All flags together are shorter.
const LONGEST_WORDS: usize = 256;

/// Packs an event. Allocates nothing but what a block has once: names, addresses, connections.
pub fn pack(event: &Event<'_>, packer: &mut Packer) {
    let record = event.record();
    let flow = Flow {
        addresses: [record.saddr, record.daddr],
        ports: [record.sport, record.dport],
        netns: record.netns,
        way: 2 * event.direction() as u8 + event.protocol() as u8,
    };
    let mut row = Columns(packer.begin(&flow, event.wall_ns()));
    fields::write(event, &mut row);
    row.0.end();
}

struct Columns<'a>(Packing<'a>);

impl Form for Columns<'_> {
    #[inline(always)]
    fn time(&mut self, field: &Field, wall_ns: i64) {
        self.0.put(field.column, field.role, Some(wall_ns.cast_unsigned()));
    }

    #[inline(always)]
    fn word(&mut self, field: &Field, word: &'static str) {
        self.0.put_text(field.column, Some(word.as_bytes()));
    }

    #[inline(always)]
    fn number(&mut self, field: &Field, number: Option<u64>) {
        self.0.put(field.column, field.role, number);
    }

    #[inline(always)]
    fn number_of_some(&mut self, field: &Field, is_there: bool, number: Option<u64>) {
        if is_there {
            self.number(field, number);
        }
    }

    #[inline(always)]
    fn word_of_some(&mut self, field: &Field, is_there: bool, word: Option<&'static str>) {
        if is_there {
            self.0.put_text(field.column, word.map(str::as_bytes));
        }
    }

    #[inline(always)]
    fn name(&mut self, field: &Field, name: Option<&[u8]>) {
        self.0.put_text(field.column, name);
    }

    #[inline(always)]
    fn address(&mut self, field: &Field, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.0.put_text(field.column, Some(&address.octets())),
            IpAddr::V6(address) => self.0.put_text(field.column, Some(&address.octets())),
        }
    }

    #[inline(always)]
    fn words(&mut self, field: &Field, words: impl Iterator<Item = &'static str>) {
        let mut text = [0; LONGEST_WORDS];
        let mut len = 0;
        for word in words {
            if len > 0 {
                text[len] = WORDS;
                len += 1;
            }
            text[len..len + word.len()].copy_from_slice(word.as_bytes());
            len += word.len();
        }
        self.0.put_text(field.column, Some(&text[..len]));
    }

    #[inline(always)]
    fn stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
        for (place, time) in stages {
            self.0.put(STAGE_FIELDS[place].column, Role::Stage, time);
        }
    }

    #[inline(always)]
    fn fine_stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>) {
        for (place, time) in stages {
            self.0.put(FINE_FIELDS[place].column, Role::Like, time);
        }
    }
}

//! The fields of a packet's line, in the order that is part of the interface. JSON and CSV differ in how they write a field
//! ([`Form`]), never in which there are.

use std::net::IpAddr;

use net_latency_common::{AF_INET6, Direction};

use super::line::Piece;
use crate::packet::{
    event::{Event, Protocol, held_name},
    stages::{FINE_STAGES, STAGES, Stage, crossed, dir, split},
};

/// The name of a field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The same as a key of JSON behind another field.
    pub(super) key: Piece<24>,
}

impl Field {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, key: Piece::of([b",\"", name.as_bytes(), b"\":"]) }
    }
}

/// The fields of [`STAGES`].
pub(super) static STAGE_FIELDS: [Field; STAGES.len()] = fields_of(&STAGES);
/// The fields of [`FINE_STAGES`].
pub(super) static FINE_FIELDS: [Field; FINE_STAGES.len()] = fields_of(&FINE_STAGES);

const fn fields_of<const COUNT: usize>(stages: &[Stage; COUNT]) -> [Field; COUNT] {
    let mut fields = [Field::new(""); COUNT];
    let mut place = 0;
    while place < COUNT {
        fields[place] = Field::new(stages[place].field);
        place += 1;
    }
    fields
}

/// How a form writes each kind of field. What is unknown is `None`.
pub(super) trait Form {
    /// Completion, in ns since 1970 in UTC.
    fn time(&mut self, field: &Field, wall_ns: i64);
    /// One of a few words.
    fn word(&mut self, field: &Field, word: &'static str);
    fn number(&mut self, field: &Field, number: Option<u64>);
    /// A number, of the packets that can have one.
    fn number_of_some(&mut self, field: &Field, has_one: bool, number: Option<u64>);
    /// One of a few words, of the packets that can have one.
    fn word_of_some(&mut self, field: &Field, is_one: bool, word: Option<&'static str>);
    /// Bytes of somebody's choice.
    fn name(&mut self, field: &Field, name: Option<&[u8]>);
    fn address(&mut self, field: &Field, address: IpAddr);
    /// Some of a few words.
    fn words(&mut self, field: &Field, words: impl Iterator<Item = &'static str>);
    /// The times of the stages that the packet has crossed, by their places in [`STAGES`].
    fn stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>);
    /// The same of fine stages, by their places in [`FINE_STAGES`].
    fn fine_stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>);
}

/// Has `form` write each field of `event`.
#[inline(always)]
pub(super) fn write(event: &Event<'_>, form: &mut impl Form) {
    let record = event.record();
    let (direction, protocol) = (event.direction(), event.protocol());
    let is_sent_by_tcp = (direction, protocol) == (Direction::Out, Protocol::Tcp);
    form.time(const { &Field::new("ts") }, event.wall_ns());
    form.word(const { &Field::new("dir") }, dir(direction));
    form.word(const { &Field::new("proto") }, protocol.name());
    form.number(
        const { &Field::new("ipver") },
        Some(if u32::from(record.family) == AF_INET6 { 6 } else { 4 }),
    );
    form.number(const { &Field::new("pid") }, event.pid().map(u64::from));
    form.number(const { &Field::new("tid") }, event.tid().map(u64::from));
    form.name(const { &Field::new("comm") }, event.comm());
    form.address(const { &Field::new("saddr") }, event.saddr());
    form.number(const { &Field::new("sport") }, Some(record.sport.into()));
    form.address(const { &Field::new("daddr") }, event.daddr());
    form.number(const { &Field::new("dport") }, Some(record.dport.into()));
    form.number(const { &Field::new("len") }, Some(record.len.into()));
    form.number(const { &Field::new("seq") }, event.seq().map(u64::from));
    form.number(const { &Field::new("segs") }, Some(record.segs.into()));
    form.stages(crossed(direction, protocol).into_iter().zip(event.stages()));
    form.number(const { &Field::new("total_ns") }, event.total_ns());
    form.name(const { &Field::new("ifname") }, event.ifname());
    form.number(const { &Field::new("netns") }, (record.netns != 0).then_some(record.netns.into()));
    form.number(const { &Field::new("mark") }, Some(record.mark.into()));
    form.number(const { &Field::new("cpu") }, Some(record.cpu.into()));
    form.words(const { &Field::new("flags") }, event.flags());
    form.number(const { &Field::new("first_send_age_ns") }, event.first_send_age_ns());
    form.number(const { &Field::new("last_drv_ip_ns") }, event.last_drv_ip_ns());
    form.number(const { &Field::new("ns_pid") }, event.ns_pid().map(u64::from));
    if let Some(parts) = event.parts() {
        let places = split(direction, protocol).into_iter().zip(parts);
        form.fine_stages(places.filter_map(|(place, time)| Some((place?, time))));
        form.word_of_some(const { &Field::new("held") }, is_sent_by_tcp, event.held().map(held_name));
    }
    form.name(const { &Field::new("process") }, event.process());
    form.number_of_some(const { &Field::new("rtt_ns") }, is_sent_by_tcp, event.rtt_ns());
    let dsacks = event.dsacks().map(u64::from);
    form.number_of_some(const { &Field::new("dsacks") }, dsacks.is_some(), dsacks);
    if event.parts().is_some() {
        let is_received = direction == Direction::In;
        let holder = event.cpu_held_by().map(u64::from);
        form.number_of_some(const { &Field::new("cpu_held_by") }, is_received, holder);
    }
    form.name(const { &Field::new("netns_name") }, event.netns_name());
    form.name(const { &Field::new("container") }, event.container());
}

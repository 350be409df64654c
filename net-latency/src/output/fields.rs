//! The fields of a packet's line, in the order that is part of the interface. JSON and CSV differ in how they write a field
//! ([`Form`]), never in which there are.

use std::net::IpAddr;

use net_latency_common::AF_INET6;

use crate::packet::{
    event::Event,
    stages::{crossed, dir, split},
};

/// How a form writes each kind of field. What is unknown is `None`.
pub(super) trait Form {
    /// Completion, in ns since 1970 in UTC.
    fn time(&mut self, field: &'static str, wall_ns: i64);
    /// One of a few words.
    fn word(&mut self, field: &'static str, word: &'static str);
    fn number(&mut self, field: &'static str, number: Option<u64>);
    /// Bytes of somebody's choice.
    fn name(&mut self, field: &'static str, name: Option<&[u8]>);
    fn address(&mut self, field: &'static str, address: IpAddr);
    /// Some of a few words.
    fn words(&mut self, field: &'static str, words: impl Iterator<Item = &'static str>);
    /// The times of the stages that the packet has crossed, by their places in
    /// [`STAGES`](crate::packet::stages::STAGES).
    fn stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>);
    /// The same of fine stages, by their places in [`FINE_STAGES`](crate::packet::stages::FINE_STAGES).
    fn fine_stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>);
}

/// Has `form` write each field of `event`.
#[inline]
pub(super) fn write(event: &Event<'_>, form: &mut impl Form) {
    let record = event.record();
    let (direction, protocol) = (event.direction(), event.protocol());
    form.time("ts", event.wall_ns());
    form.word("dir", dir(direction));
    form.word("proto", protocol.name());
    form.number("ipver", Some(if record.family == AF_INET6 { 6 } else { 4 }));
    form.number("pid", event.pid().map(u64::from));
    form.number("tid", event.tid().map(u64::from));
    form.name("comm", event.comm());
    form.address("saddr", event.saddr());
    form.number("sport", Some(record.sport.into()));
    form.address("daddr", event.daddr());
    form.number("dport", Some(record.dport.into()));
    form.number("len", Some(record.len.into()));
    form.number("seq", event.seq().map(u64::from));
    form.number("segs", Some(record.segs.into()));
    form.stages(crossed(direction, protocol).into_iter().zip(event.stages()));
    form.number("total_ns", event.total_ns());
    form.name("ifname", event.ifname());
    form.number("netns", (record.netns != 0).then_some(record.netns.into()));
    form.number("mark", Some(record.mark.into()));
    form.number("cpu", Some(record.cpu.into()));
    form.words("flags", event.flags());
    form.number("first_send_age_ns", event.first_send_age_ns());
    form.number("last_drv_ip_ns", event.last_drv_ip_ns());
    form.number("ns_pid", event.ns_pid().map(u64::from));
    if let Some(parts) = event.parts() {
        let places = split(direction, protocol).into_iter().zip(parts);
        form.fine_stages(places.filter_map(|(place, time)| Some((place?, time))));
    }
}

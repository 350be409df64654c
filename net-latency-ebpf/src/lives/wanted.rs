//! Filters by what packets say of themselves: a history runs twice, without such a filter and with one. The second time, the lines are
//! those of the first that the filter wants.

use std::{format, string::String, vec::Vec};

use net_latency_common::{Counters, FineRecord, PacketRecord};

use super::world;
use crate::{bpf::host::Machine, flow::filter};

/// What a packet is wanted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Port,
    Host,
    Family,
    Netns,
    Interface,
    Mark,
}

pub(super) const ALL: [Wanted; 6] =
    [Wanted::Port, Wanted::Host, Wanted::Family, Wanted::Netns, Wanted::Interface, Wanted::Mark];

impl Wanted {
    /// Wants packets that have this in common with one.
    fn ask(self, one: &PacketRecord) {
        Machine::with(|machine| {
            let settings = &mut machine.settings;
            match self {
                Self::Port => settings.filter_port = 1,
                Self::Host => settings.filter_host = 1,
                Self::Family => settings.filter_family = one.family.into(),
                Self::Netns => settings.filter_netns = 1,
                Self::Interface => settings.filter_interface = 1,
                Self::Mark => (settings.filter_mark, settings.mark) = (u32::MAX, one.mark),
            }
        });
        match self {
            Self::Port => filter::want_port(one.sport),
            Self::Host => filter::want_host(one.family, one.saddr),
            Self::Netns => filter::want_netns(one.netns),
            Self::Interface => filter::want_interface(world::device_name(one.ifindex)),
            Self::Family | Self::Mark => {}
        }
    }

    /// Whether a packet has that in common with one.
    fn is_common(self, packet: &PacketRecord, one: &PacketRecord) -> bool {
        match self {
            Self::Port => packet.sport == one.sport || packet.dport == one.sport,
            Self::Host => {
                packet.family == one.family && (packet.saddr == one.saddr || packet.daddr == one.saddr)
            }
            Self::Family => packet.family == one.family,
            Self::Netns => packet.netns == one.netns,
            Self::Interface => packet.ifindex == one.ifindex,
            Self::Mark => packet.mark == one.mark,
        }
    }
}

/// Whether a filter takes no line away that it wants, and leaves none that it doesn't. `run` runs a history, with something done to the
/// machine before its first step. Where processes are filtered too, there may be lines more: what an unwanted process does with a packet
/// that isn't looked at does not tell that only such ones use its socket.
pub(super) fn expect_same(
    wanted: Wanted,
    has_processes: bool,
    seed: u64,
    run: impl Fn(&dyn Fn()) -> (Vec<FineRecord>, Counters),
) -> Result<(), String> {
    let all = run(&|| ()).0;
    if all.is_empty() {
        return Ok(());
    }
    let one = &all[seed as usize % all.len()].packet;
    let said_of = |lines: &[FineRecord]| -> Vec<_> { lines.iter().map(|line| said(&line.packet)).collect() };
    let mut missing = said_of(&all);
    missing.retain(|line| wanted.is_common(line, one));
    let mut more = said_of(&run(&|| wanted.ask(one)).0);
    more.retain(|line| match missing.iter().position(|other| other == line) {
        Some(place) => {
            missing.remove(place);
            false
        }
        None => !(has_processes && wanted.is_common(line, one)),
    });
    if missing.is_empty() && more.is_empty() {
        return Ok(());
    }
    Err(format!("by {wanted:?}, {missing:#?} are missing, and {more:#?} are shown"))
}

/// What a line says, but for times, and for what took most of one. Of stamps, whether it has them.
fn said(line: &PacketRecord) -> PacketRecord {
    let is_known = |stamp: u64| u64::from(stamp != 0);
    let stamps = line.stamps.map(is_known);
    PacketRecord { stamps, other: is_known(line.other), held: 0, rtt_or_holder: 0, ..*line }
}

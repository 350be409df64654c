//! `journey`: its programs run where those of a history's hooks do. Each row has to be about the packet that its journey began with, and
//! what is read has a row that says so.

use std::{format, string::String, vec::Vec};

use net_latency_common::{
    IPPROTO_TCP,
    journey::{JourneyRow, JourneyStart, PLACE_TAKEN, ROW_UNWATCHED},
};

use super::{truth::Truth, world::World};
use crate::{bpf::host::Machine, journey::testing};

/// A place at which no row has a meaning of its own: the address of a function.
pub(super) const FUNCTION: u64 = 0xffff_ffff_8100_0000;

/// What a program is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// A packet.
    Packet(usize),
    /// What a call takes that reads.
    Call(usize),
}

/// The looks at the clock that a program took: those behind the first time, up to the second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Looks {
    from: u64,
    to: u64,
    about: About,
}

impl World {
    /// Packets that arrive are followed from now on.
    pub(super) fn begin_journeys(&mut self) {
        let dataref = self.offsets.skb_shared_info_dataref;
        Machine::with(|machine| (machine.journeys.begin_in, machine.journeys.dataref) = (1, dataref));
        testing::arm();
        self.journeys = Some(Vec::new());
    }

    /// Runs a program of `journey`, if packets are followed.
    pub(super) fn journey(&mut self, about: About, program: impl FnOnce()) {
        let Some(looks) = &mut self.journeys else { return };
        let from = Machine::with(|machine| machine.clock);
        program();
        let to = Machine::with(|machine| machine.clock);
        looks.push(Looks { from, to, about });
    }
}

/// Whether what all rows say is true; and whether none is missing that says that a packet was read, if all are there.
pub(super) fn check(truth: &Truth, looks: &[Looks], is_whole: bool) -> Result<(), String> {
    let (starts, rows) = testing::take();
    for start in &starts {
        let mine: Vec<_> = rows.iter().filter(|row| row.id == start.id && !contradicts(row, start)).collect();
        let about = |row: &JourneyRow| -> Result<About, String> {
            let index = looks.partition_point(|looks| looks.to < row.at);
            let its = looks.get(index).filter(|looks| looks.from < row.at);
            its.map(|looks| looks.about).ok_or_else(|| format!("{row:?} is of no program"))
        };
        let first = mine.first().ok_or_else(|| format!("{start:?} has no row"))?;
        let About::Packet(packet) = about(first)? else {
            return Err(format!("{start:?} begins with a read"));
        };
        let its = &truth.packets[packet];
        let has_copies = truth.has_copies_of(its.connection);
        for row in &mine {
            let is_true = match about(row)? {
                About::Packet(other) => other == packet,
                About::Call(call) => truth.reads.iter().any(|read| {
                    let is_its = has_copies || read.packet == packet;
                    is_its && read.call == call && (read.start..read.end).contains(&its.start)
                }),
            };
            if !is_true {
                return Err(format!("journey of packet {packet} has {row:?} about {:?}", about(row)));
            }
        }
        let is_read = truth.reads.iter().any(|read| read.packet == packet && read.start == its.start);
        let is_told = mine.iter().any(|row| row.place == PLACE_TAKEN || row.flags & ROW_UNWATCHED != 0);
        if is_whole && start.protocol == IPPROTO_TCP && is_read && !is_told && !has_copies {
            return Err(format!("nothing says that packet {packet} was read: {mine:#?}"));
        }
    }
    Ok(())
}

/// Whether a row has another packet's ports or number, as the user side sees too.
fn contradicts(row: &JourneyRow, start: &JourneyStart) -> bool {
    let ports = u64::from(start.sport) << 16 | u64::from(start.dport);
    let is_other = start.protocol == IPPROTO_TCP && start.len != 0 && row.content as u32 != start.seq;
    row.content != 0 && (row.content >> 32 != ports || is_other)
}

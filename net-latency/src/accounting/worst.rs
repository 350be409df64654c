//! The slowest packets, and what their time went to.

use std::{io, net::SocketAddr};

use net_latency_common::Direction;

use super::{human::Human, packet::Packet, table::direction_name};
use crate::{
    clock::{TimeStyle, TimeText, Zone},
    escape::write_name,
    packet::{
        event::{COLUMNS, Protocol},
        stages::{Stage, parts, stages},
    },
};

/// In place of the first column's hint for a segment that TCP had sent before.
const SENT_AGAIN: &str = "TCP sent its bytes again, having had no ACK for them";
/// How many are kept unless told otherwise.
const KEPT: usize = 5;
/// Room for a task's name, and for what reading a line back makes of one: 15 bytes, each U+FFFD at worst.
const NAME_LEN: usize = 48;
/// Width of what is written, as long as names and numbers allow.
const WIDTH: usize = 80;

/// The slowest packets, the slowest first; of equals the earlier. Its size is fixed.
#[derive(Clone, Debug)]
pub struct Worst {
    kept: Vec<Option<Kept>>,
    /// What the rank of the next has to exceed; `None` as long as there is room.
    least: Option<u64>,
}

impl Default for Worst {
    fn default() -> Self {
        Self::keeping(KEPT)
    }
}

/// A packet and, for its name, memory of its own.
#[derive(Clone, Copy, Debug)]
struct Kept {
    packet: Packet<'static>,
    rank: u64,
    comm: Option<([u8; NAME_LEN], usize)>,
}

impl Worst {
    /// Keeps this many packets.
    #[must_use]
    pub fn keeping(count: usize) -> Self {
        Self { kept: vec![None; count], least: None }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.kept.fill(None);
        self.least = None;
    }

    /// Whether the packet is one of the slowest so far. Most are not.
    #[inline]
    pub(super) fn would_keep(&self, packet: &Packet<'_>) -> bool {
        packet.rank().is_some_and(|rank| self.least.is_none_or(|least| least < rank))
    }

    /// Keeps the packet if it is one of the slowest so far.
    pub fn record(&mut self, packet: &Packet<'_>) {
        let Some(rank) = packet.rank() else { return };
        if !self.would_keep(packet) {
            return;
        }
        let is_slower = |kept: &Option<Kept>| kept.as_ref().is_none_or(|kept| kept.rank < rank);
        let Some(place) = self.kept.iter().position(is_slower) else { return };
        self.kept[place..].rotate_right(1);
        let comm = packet.comm.map(|name| {
            let len = name.len().min(NAME_LEN);
            let mut bytes = [0; NAME_LEN];
            bytes[..len].copy_from_slice(&name[..len]);
            (bytes, len)
        });
        self.kept[place] = Some(Kept { packet: Packet { comm: None, ..*packet }, rank, comm });
        self.least = self.kept.last().and_then(Option::as_ref).map(|last| last.rank);
    }

    /// The packets, the slowest first.
    pub fn packets(&self) -> impl Iterator<Item = Packet<'_>> {
        self.kept.iter().flatten().map(|kept| {
            let comm = kept.comm.as_ref().map(|(bytes, len)| &bytes[..*len]);
            Packet { comm, ..kept.packet }
        })
    }

    /// Writes two lines for each packet, with times in `zone`, and a sentence for each stage that dominates one.
    ///
    /// # Errors
    /// When `out` can't be written.
    pub fn write(&self, zone: Zone, out: &mut impl io::Write) -> io::Result<()> {
        let mut text = Vec::new();
        let mut time = TimeText::new(zone, TimeStyle::Calendar);
        for (index, packet) in self.packets().enumerate() {
            if index == 0 {
                text.extend_from_slice(b"  slowest:\n");
            }
            write_packet(&packet, &mut time, &mut text)?;
        }
        let mut told: Vec<(&str, &str)> = Vec::new();
        for packet in self.packets() {
            let Some(stage) = culprit(&packet).map(|(stage, _)| (stage.column, stage.hint)) else { continue };
            if !told.contains(&stage) {
                told.push(stage);
                let (column, hint) = stage;
                text.extend_from_slice(format!("  {column}: {hint}\n").as_bytes());
            }
        }
        out.write_all(&text)
    }
}

fn write_packet(packet: &Packet<'_>, time: &mut TimeText, out: &mut Vec<u8>) -> io::Result<()> {
    use io::Write as _;

    out.extend_from_slice(b"  ");
    match packet.wall_ns {
        Some(wall_ns) => time.write(wall_ns, out),
        None => write!(out, "{:19}", "-")?,
    }
    let total = packet.total.map_or_else(|| "-".to_owned(), |ns| Human(ns).to_string());
    write!(out, " {:4}{total:>7}  ", direction_name(packet.direction))?;
    match (culprit(packet), packet.total) {
        (None, _) => out.push(b'-'),
        (Some((stage, ns)), Some(total)) => {
            let percent = (u128::from(ns) * 100 + u128::from(total) / 2) / u128::from(total.max(1));
            write!(out, "{} {percent} %", stage.column)?;
        }
        (Some((stage, ns)), None) => write!(out, "{} {}", stage.column, Human(ns))?,
    }
    out.extend_from_slice(b"  ");
    write_name(packet.comm, out);
    match packet.pid {
        Some(pid) => writeln!(out, ", PID {pid}")?,
        None => writeln!(out, ", PID -")?,
    }
    if let Some([from, to]) = packet.ends {
        write_ends(from, to, out)?;
    }
    Ok(())
}

fn write_ends(from: SocketAddr, to: SocketAddr, out: &mut impl io::Write) -> io::Result<()> {
    let (from, to) = (from.to_string(), to.to_string());
    // Two long IPv6 addresses need a line each.
    let gap = if from.len() + to.len() + 9 > WIDTH { "\n      " } else { " " };
    writeln!(out, "      {from} >{gap}{to}")
}

/// The column in which the packet spent more time than in any other, as far as that is known for sure, and the
/// time. Where the total is unknown: the longest of the known ones.
#[must_use]
pub fn dominant(packet: &Packet<'_>) -> Option<(usize, u64)> {
    let known = packet.stages.iter().enumerate().filter_map(|(column, ns)| Some((column, (*ns)?)));
    let (column, longest) = known.rev().max_by_key(|(_, ns)| *ns)?;
    let unknown = packet.total.map_or(0, |total| {
        let sum: u128 = packet.stages.into_iter().flatten().map(u128::from).sum();
        u128::from(total).saturating_sub(sum)
    });
    (longest > 0 && u128::from(longest) >= unknown).then_some((column, longest))
}

/// The column's name, and what it means that the packet spent its time there.
#[must_use]
pub fn meaning(packet: &Packet<'_>, column: usize) -> (&'static str, &'static str) {
    let stage = stage(packet, column);
    (stage.column, stage.hint)
}

fn stage(packet: &Packet<'_>, column: usize) -> Stage {
    let waited_for_ack =
        packet.is_retransmission && packet.direction == Direction::Out && packet.protocol == Protocol::Tcp;
    let stage = stages(packet.direction, packet.protocol)[column];
    if waited_for_ack && column == 0 { Stage { hint: SENT_AGAIN, ..stage } } else { stage }
}

/// The stage that took most of a packet's time ([`dominant`]), and that time: of the last column the part that took most of it,
/// where its parts are known and one took more than all others.
pub(super) fn culprit(packet: &Packet<'_>) -> Option<(Stage, u64)> {
    let (column, ns) = dominant(packet)?;
    let last = packet.parts.filter(|_| column == COLUMNS - 1);
    let known = last.into_iter().flat_map(|times| {
        parts(packet.direction, packet.protocol).filter_map(move |(part, stage)| Some((*stage, times[part]?)))
    });
    let longest = known.max_by_key(|(_, time)| *time).filter(|(_, time)| *time > ns / 2);
    Some(longest.unwrap_or_else(|| (stage(packet, column), ns)))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::packet::event::{COLUMNS, fixtures::WALL_NS};

    const PACKET: Packet<'_> = Packet {
        wall_ns: Some(WALL_NS),
        direction: Direction::In,
        protocol: Protocol::Tcp,
        is_control: false,
        is_retransmission: false,
        stages: [Some(1_000), Some(2_000), Some(3_000)],
        total: Some(6_000),
        reasons: [None; COLUMNS + 1],
        parts: None,
        parts_reason: None,
        pid: Some(19550),
        comm: Some(b"firefox"),
        ends: None,
    };

    fn of_total(total: u64) -> Packet<'static> {
        Packet { stages: [Some(total), Some(0), Some(0)], total: Some(total), ..PACKET }
    }

    fn kept(packets: &[Packet<'_>]) -> Worst {
        let mut worst = Worst::default();
        for packet in packets {
            worst.record(packet);
        }
        worst
    }

    fn written(packets: &[Packet<'_>]) -> String {
        let mut out = Vec::new();
        kept(packets).write(Zone::UTC, &mut out).expect("memory can be written");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn the_slowest_stay_and_of_equals_the_first() {
        let packets: Vec<_> = [5, 1, 9, 9, 2, 8, 3, 9]
            .into_iter()
            .zip(1..)
            .map(|(total, pid)| Packet { pid: Some(pid), ..of_total(total) })
            .collect();
        let found: Vec<_> = kept(&packets).packets().map(|packet| (packet.total, packet.pid)).collect();
        let expected = [(9, 3), (9, 4), (9, 8), (8, 6), (5, 1)];
        assert_eq!(found, expected.map(|(total, pid)| (Some(total), Some(pid))));
    }

    #[test]
    fn as_many_are_kept_as_asked_for() {
        for count in [0, 1, 3, 9] {
            let mut worst = Worst::keeping(count);
            (1..=20).rev().chain(1..=20).for_each(|total| worst.record(&of_total(total)));
            let found: Vec<_> = worst.packets().filter_map(|packet| packet.total).collect();
            let expected: Vec<_> = (1..=20).rev().flat_map(|total| [total, total]).take(count).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn where_the_total_is_unknown_the_longest_stage_counts() {
        let partial = Packet { stages: [None, Some(7), Some(50)], total: None, ..PACKET };
        let nothing = Packet { stages: [None; 3], total: None, ..PACKET };
        let worst = kept(&[of_total(40), nothing, partial, of_total(60)]);
        let found: Vec<_> = worst.packets().map(|packet| packet.total).collect();
        assert_eq!(found, [Some(60), None, Some(40)]);
    }

    #[test]
    fn a_stage_dominates_only_if_no_unknown_one_can_be_longer() {
        let stages = |stages, total| dominant(&Packet { stages, total, ..PACKET });
        assert_eq!(stages([Some(1), Some(2), Some(3)], Some(6)), Some((2, 3)));
        assert_eq!(stages([Some(3), Some(3), Some(0)], Some(6)), Some((0, 3)));
        assert_eq!(stages([None, None, Some(5)], Some(11)), None);
        assert_eq!(stages([None, None, Some(5)], Some(10)), Some((2, 5)));
        assert_eq!(stages([None, None, Some(5)], None), Some((2, 5)));
        assert_eq!(stages([None; 3], None), None);
        assert_eq!(stages([Some(0); 3], Some(0)), None);
        // A log that somebody edited.
        assert_eq!(stages([Some(u64::MAX); 3], Some(1)), Some((0, u64::MAX)));
    }

    #[test]
    fn each_packet_says_what_is_known_of_it() {
        let ends = ["192.0.2.7:443", "198.51.100.20:51324"].map(|end| end.parse().expect("an address"));
        let long = ["[2001:db8:1111:2222:3333:4444:5555:6666]:65535"; 2].map(|end| end.parse().expect("one"));
        let again = Packet {
            direction: Direction::Out,
            is_retransmission: true,
            stages: [Some(200_000_000), Some(2_000), Some(3_000)],
            total: Some(200_005_000),
            ..PACKET
        };
        let text = written(&[
            Packet { ends: Some(ends), ..again },
            Packet { ends: Some(long), protocol: Protocol::Udp, is_retransmission: false, ..again },
            Packet { stages: [None, None, Some(9_000)], total: None, wall_ns: None, ..PACKET },
            Packet {
                stages: [None, None, Some(9_000)],
                total: Some(20_000),
                pid: None,
                comm: None,
                ..PACKET
            },
            Packet { comm: Some(b"\x1b[2J\n, PID 1 | x"), total: Some(6_001), ..PACKET },
        ]);
        // A name that has to be escaped may be longer.
        let mut lines = text.lines().filter(|line| !line.contains('\\'));
        assert!(lines.all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_snapshot!(text);
        assert_eq!(written(&[]), "");
    }

    #[test]
    fn every_sentence_fits() {
        for direction in [Direction::In, Direction::Out] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for is_retransmission in [false, true] {
                    for column in 0..COLUMNS {
                        let packet = Packet { direction, protocol, is_retransmission, ..PACKET };
                        let (name, hint) = meaning(&packet, column);
                        assert!(format!("  {name}: {hint}").len() <= WIDTH, "{hint}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_name_that_was_read_back_has_room() {
        let name = "\u{fffd}".repeat(15);
        let long = "x".repeat(100);
        let worst = kept(&[
            Packet { comm: Some(name.as_bytes()), ..PACKET },
            Packet { comm: Some(long.as_bytes()), ..PACKET },
        ]);
        let names: Vec<_> = worst.packets().map(|packet| packet.comm.map(<[u8]>::len)).collect();
        assert_eq!(names, [Some(45), Some(NAME_LEN)]);
    }
}

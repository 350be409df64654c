//! The slowest packets, and what their time went to.

use std::{io, net::SocketAddr};

use net_latency_common::Direction;

use super::{human::Human, packet::Packet};
use crate::{
    clock::{TimeStyle, TimeText, Zone},
    escape::write_name,
    packet::{
        event::COLUMNS,
        stages::{Stage, dir, parts, stages},
    },
};

/// How many are kept unless told otherwise.
const KEPT: usize = 5;
/// Room for a task's name, and for what reading a line back makes of one: 15 bytes, each U+FFFD at worst.
const NAME_LEN: usize = 48;
/// Width of the text, as long as names and numbers allow.
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

/// A packet and, for its names, memory of its own.
#[derive(Clone, Copy, Debug)]
struct Kept {
    packet: Packet<'static>,
    rank: u64,
    comm: Option<Name>,
    process: Option<Name>,
}

type Name = crate::name::Name<NAME_LEN>;

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
        packet.rank().is_some_and(|rank| self.would_keep_rank(rank))
    }

    /// Whether a packet with this rank is one of the slowest so far.
    #[inline]
    pub(super) fn would_keep_rank(&self, rank: u64) -> bool {
        self.least.is_none_or(|least| least < rank)
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
        self.kept[place] = Some(Kept {
            packet: Packet { comm: None, process: None, ..*packet },
            rank,
            comm: packet.comm.map(Name::new),
            process: packet.process.map(Name::new),
        });
        self.least = self.kept.last().and_then(Option::as_ref).map(|last| last.rank);
    }

    /// The packets, the slowest first.
    pub fn packets(&self) -> impl Iterator<Item = Packet<'_>> {
        self.kept.iter().flatten().map(|kept| {
            let [comm, process] = [&kept.comm, &kept.process].map(|name| name.as_ref().map(Name::bytes));
            Packet { comm, process, ..kept.packet }
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
    let whole = packet.whole().map_or_else(|| "-".to_owned(), |ns| Human(ns).to_string());
    write!(out, " {:4}{whole:>7}  ", dir(packet.direction))?;
    match (culprit(packet), packet.whole()) {
        (None, _) => out.push(b'-'),
        (Some((stage, ns)), Some(whole)) => {
            let percent = (u128::from(ns) * 100 + u128::from(whole) / 2) / u128::from(whole.max(1));
            write!(out, "{} {percent} %", stage.column)?;
        }
        (Some((stage, ns)), None) => write!(out, "{} {}", stage.column, Human(ns))?,
    }
    out.extend_from_slice(b"  ");
    write_name(packet.name(), out);
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
pub(crate) fn dominant(packet: &Packet<'_>) -> Option<(usize, u64)> {
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
pub(crate) fn meaning(packet: &Packet<'_>, column: usize) -> (&'static str, &'static str) {
    let stage = stages(packet.direction, packet.protocol)[column];
    (stage.column, stage.hint)
}

/// The stage that took most of a packet's time ([`dominant`]), and that time. For an incoming packet's last column it is the part that took
/// most of it, where its parts are known and one took more than all others; for an outgoing packet it may be one behind the columns.
pub(super) fn culprit(packet: &Packet<'_>) -> Option<(Stage, u64)> {
    let known = packet.parts.into_iter().flat_map(|times| {
        parts(packet.direction, packet.protocol).filter_map(move |(part, stage)| Some((*stage, times[part]?)))
    });
    let longest = known.max_by_key(|(_, time)| *time);
    let dominant = dominant(packet);
    let part = longest.filter(|(_, time)| match (packet.direction, dominant) {
        (Direction::In, Some((column, ns))) => column == COLUMNS - 1 && *time > ns / 2,
        (Direction::In, None) => false,
        (Direction::Out, dominant) => dominant.map_or(packet.total.is_some(), |(_, ns)| *time > ns),
    });
    part.or_else(|| dominant.map(|(column, ns)| (stages(packet.direction, packet.protocol)[column], ns)))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;
    use crate::packet::event::{COLUMNS, PARTS, Protocol, fixtures::WALL_NS};

    const PACKET: Packet<'_> = Packet {
        wall_ns: Some(WALL_NS),
        last_stage_ns: Some(WALL_NS),
        direction: Direction::In,
        protocol: Protocol::Tcp,
        is_control: false,
        stages: [Some(1_000), Some(2_000), Some(3_000)],
        total: Some(6_000),
        reasons: [None; COLUMNS + 1],
        parts: None,
        parts_reasons: [None; PARTS],
        may_wait_for_ack: false,
        pid: Some(19550),
        comm: Some(b"Socket Thread"),
        process: Some(b"firefox"),
        ends: None,
    };

    #[test]
    fn a_part_is_told_where_it_took_most() {
        let column = |packet: &Packet<'_>| culprit(packet).map(|(stage, ns)| (stage.column, ns));
        let parts = |gap, wait| Some([Some(gap), Some(wait), Some(0), Some(3_000 - gap - wait)]);
        assert_eq!(column(&Packet { parts: parts(0, 2_000), ..PACKET }), Some(("wait", 2_000)));
        // None took more than the others together.
        assert_eq!(column(&Packet { parts: parts(1_000, 1_000), ..PACKET }), Some(("tcp-app", 3_000)));
        // They say nothing about the other columns.
        let early = Packet { stages: [Some(9_000), Some(2_000), Some(3_000)], total: Some(14_000), ..PACKET };
        assert_eq!(column(&Packet { parts: parts(0, 2_000), ..early }), Some(("drv-ip", 9_000)));

        let sent = |qdisc, net| Packet {
            direction: Direction::Out,
            parts: Some([Some(qdisc), Some(100), net, None]),
            ..PACKET
        };
        assert_eq!(column(&sent(100, Some(2_999))), Some(("ip-drv", 3_000)));
        assert_eq!(column(&sent(100, Some(5_000))), Some(("net", 5_000)));
        assert_eq!(column(&sent(7_000, None)), Some(("qdisc", 7_000)));
        // The driver's call is where the network's part begins.
        assert_eq!(sent(100, Some(5_000)).whole(), Some(6_000 + 100 + 5_000));
        assert_eq!(sent(100, None).whole(), Some(6_000 + 100 + 100));
        assert_eq!(PACKET.whole(), Some(6_000));
    }

    #[test]
    fn a_delayed_ack_makes_no_packet_one_of_the_slowest() {
        let sent = |net, may_wait_for_ack| Packet {
            direction: Direction::Out,
            parts: Some([Some(50), Some(100), Some(net), None]),
            may_wait_for_ack,
            ..PACKET
        };
        assert_eq!(sent(44_000_000, true).rank(), Some(6_000 + 50 + 100));
        for other in [sent(44_000_000, false), sent(34_000_000, true), sent(300_000_000, true)] {
            assert_eq!(other.rank(), other.whole(), "{other:?}");
        }
    }

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
        // An edited log.
        assert_eq!(stages([Some(u64::MAX); 3], Some(1)), Some((0, u64::MAX)));
    }

    #[test]
    fn each_packet_says_what_is_known_of_it() {
        let ends = ["192.0.2.7:443", "198.51.100.20:51324"].map(|end| end.parse().expect("an address"));
        let long = ["[2001:db8:1111:2222:3333:4444:5555:6666]:65535"; 2].map(|end| end.parse().expect("one"));
        let again = Packet {
            direction: Direction::Out,
            stages: [Some(200_000_000), Some(2_000), Some(3_000)],
            total: Some(200_005_000),
            ..PACKET
        };
        let text = written(&[
            Packet { ends: Some(ends), ..again },
            Packet { ends: Some(long), protocol: Protocol::Udp, ..again },
            Packet { stages: [None, None, Some(9_000)], total: None, wall_ns: None, ..PACKET },
            Packet {
                stages: [None, None, Some(9_000)],
                total: Some(20_000),
                pid: None,
                comm: None,
                process: None,
                ..PACKET
            },
            Packet { process: Some(b"\x1b[2J\n, PID 1 | x"), total: Some(6_001), ..PACKET },
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
                for column in 0..COLUMNS {
                    let (name, hint) = meaning(&Packet { direction, protocol, ..PACKET }, column);
                    assert!(format!("  {name}: {hint}").len() <= WIDTH, "{hint}");
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
            Packet { comm: Some(long.as_bytes()), process: Some(b"short"), ..PACKET },
            Packet { process: None, ..PACKET },
        ]);
        let len = |name: Option<&[u8]>| name.map(<[u8]>::len);
        let names: Vec<_> = worst.packets().map(|packet| (len(packet.comm), len(packet.process))).collect();
        assert_eq!(names, [(Some(45), Some(7)), (Some(NAME_LEN), Some(5)), (Some(13), None)]);
        // In a log that lacks the process's, the thread's is better than none.
        let names: Vec<_> = worst.packets().map(|packet| len(packet.name())).collect();
        assert_eq!(names, [Some(7), Some(5), Some(13)]);
    }
}

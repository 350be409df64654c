//! Logs of traffic that never was: the same for the same number of packets, made by the tool's own writers.

use std::io::{self, Write};

use net_latency::inside::{Event, Format, Options, Stages, Writer, Zone, completion_ns, header};
use net_latency_common::{
    AF_INET, AF_INET6, Direction, FLAG_CONTROL, FLAG_RETRANS, IPPROTO_TCP, IPPROTO_UDP, PacketRecord,
};

/// 2022-03-02 16:01:36 UTC in ns.
const START_NS: i64 = 1_646_236_896_000_000_000;
/// Names of the processes; one would run as a script in a careless page.
const NAMES: [&[u8]; 6] =
    [b"firefox", b"nginx", b"postgres", b"redis-server", b"<script>alert(1", b"\"'&<b>\x1b[2J"];
const CONNECTIONS: u64 = 300;

/// Numbers as good as random (xorshift64*).
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % below
    }

    /// Mostly about `ns`, now and then very much longer, as latencies are.
    fn latency(&mut self, ns: u64) -> u64 {
        let tail = 1 << (self.roll(1 << 12) + 1).leading_zeros().saturating_sub(51);
        ns / 2 + self.roll(ns) * tail
    }
}

/// Appends `packets` lines, spread over `span_ns`, in the middle tenth of which readers are slow.
pub(crate) fn write(packets: u64, span_ns: u64, format: Format, out: &mut impl Write) -> io::Result<()> {
    let options = Options { zone: Zone::UTC, details: false, colour: false };
    let mut writer = Writer::new(format, &options);
    let mut lines = header(format, Stages::Basic).to_vec();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for number in 0..packets {
        let at = (u128::from(number) * u128::from(span_ns) / u128::from(packets)) as u64;
        let slow = (packets * 9 / 20..packets * 11 / 20).contains(&number);
        let record = record(at, slow, &mut dice);
        let wall_ns = START_NS + completion_ns(&record) as i64;
        writer.write(&Event::new(&record, wall_ns, Some(b"eth0")), &mut lines);
        if lines.len() > 1 << 16 {
            out.write_all(&lines)?;
            lines.clear();
        }
    }
    out.write_all(&lines)
}

fn record(at: u64, slow: bool, dice: &mut Dice) -> PacketRecord {
    // Some connections are much busier than others.
    let connection = dice.roll(CONNECTIONS).min(dice.roll(CONNECTIONS));
    let out = dice.roll(2) == 1;
    let udp = connection % 10 == 9;
    let v6 = connection % 7 == 6;
    let process = connection % NAMES.len() as u64;
    let begin = at + 1;
    let stages = if out {
        [dice.latency(3_000), dice.latency(2_000), dice.latency(1_500)]
    } else {
        [dice.latency(8_000), dice.latency(12_000), dice.latency(60_000) * if slow { 40 } else { 1 }]
    };
    let times = [begin, begin + stages[0], begin + stages[0] + stages[1], begin + stages.iter().sum::<u64>()];
    let mut stamps = if out { [times[3], times[2], times[1], times[0]] } else { times };
    if dice.roll(500) == 0 {
        // A stage that was not seen.
        stamps[1] = 0;
    }
    let here = address(v6, 1, 1);
    let peer = address(v6, 2, connection as u8);
    let (port, peer_port) = (40_000 + connection as u16, [443, 80, 5432][connection as usize % 3]);
    let mut comm = [0; 16];
    let name = NAMES[process as usize];
    comm[..name.len()].copy_from_slice(name);
    let flags = match dice.roll(1_000) {
        0 if out && !udp => FLAG_RETRANS,
        1 if out && !udp => FLAG_CONTROL,
        _ => 0,
    };
    PacketRecord {
        stamps,
        saddr: if out { here } else { peer },
        daddr: if out { peer } else { here },
        comm,
        process: comm,
        pid: 1_000 + process as u32,
        tid: 1_000 + process as u32 + dice.roll(2) as u32,
        len: dice.roll(1_449) as u32,
        seq: dice.roll(1 << 32) as u32,
        ifindex: 2,
        netns: 4_026_531_840,
        sport: if out { port } else { peer_port },
        dport: if out { peer_port } else { port },
        segs: 1,
        cpu: dice.roll(8) as u16,
        flags,
        direction: if out { Direction::Out as u8 } else { Direction::In as u8 },
        protocol: if udp { IPPROTO_UDP } else { IPPROTO_TCP },
        family: (if v6 { AF_INET6 } else { AF_INET }) as u8,
        ..PacketRecord::default()
    }
}

fn address(v6: bool, network: u8, host: u8) -> [u8; 16] {
    if v6 {
        [0x20, 1, 0x0d, 0xb8, 0, network, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]
    } else {
        [10, 0, network, host, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    }
}

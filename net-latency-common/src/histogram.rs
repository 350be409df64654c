//! Distributions that the kernel side keeps itself, in place of a record for each packet.

use crate::{PARTS as FINE_PARTS, UNKNOWNS};

/// Parts of each power of two, as a power of two itself: buckets are an eighth of a power wide, 12.5 % of their lower bound.
const PARTS_BITS: u32 = 3;
const PARTS: u64 = 1 << PARTS_BITS;
/// The power of two, in ns, from which all times are in one bucket: 73 minutes.
const LONGEST_BITS: u32 = 42;

/// Buckets of a distribution. The last holds all that is longer than any other's.
pub const BUCKETS: usize = ((LONGEST_BITS - PARTS_BITS + 1) << PARTS_BITS) as usize + 1;
/// In place of a bucket: the packet's time is not known. The first of a cell for each reason ([`crate::Unknown`]).
pub const UNKNOWN: usize = BUCKETS;
/// In place of a bucket: the packet never had that time, since it carried no data.
pub const NEVER: usize = UNKNOWN + UNKNOWNS;
/// Counts that a distribution has: of its buckets, and of packets that are in none.
pub const CELLS: usize = NEVER + 1;

/// Rows that a kind of traffic has: one for each of its columns, and the last for the time from the first stage to the last. Every
/// packet is in one cell of that one, and in one at most of each other.
pub const ROWS: u32 = 4;
/// The rows of a kind of traffic, or those of its parts: what the kernel side looks up for a packet.
pub type Block = [[u64; CELLS]; ROWS as usize];
const _: () = assert!(FINE_PARTS == ROWS as usize, "parts fill a block");
/// Row of the time from the first stage to the last.
pub const ROW_TOTAL: u32 = 3;
/// Rows that a kind of traffic has with fine stages: those, and one for each part.
pub const FINE_ROWS: u32 = ROWS + FINE_PARTS as u32;
/// Kinds of traffic by direction and protocol: in and out, TCP and UDP.
pub const TRAFFIC_KINDS: u32 = 4;
/// Bit of a kind: packets go out.
pub const TRAFFIC_OUT: u32 = 1;
/// Bit of a kind: packets are UDP's.
pub const TRAFFIC_UDP: u32 = 2;

/// The bucket of a time in ns: the time itself up to 8, then 8 buckets for each power of two.
#[inline(always)]
#[must_use]
pub const fn bucket(ns: u64) -> usize {
    if ns < PARTS {
        return ns as usize;
    }
    if ns >> LONGEST_BITS != 0 {
        return BUCKETS - 1;
    }
    let power = log2(ns);
    let part = (ns >> (power - PARTS_BITS)) & (PARTS - 1);
    (((power - PARTS_BITS + 1) << PARTS_BITS) as u64 | part) as usize
}

/// Which power of two `ns`, below the longest and not 0, is at least. The machine of the kernel side can't count zeroes: the byte with
/// the highest bit is found by steps, and looked up.
#[inline(always)]
const fn log2(ns: u64) -> u32 {
    let shift = if ns >> 16 == 0 {
        if ns >> 8 == 0 { 0 } else { 8 }
    } else if ns >> 24 == 0 {
        16
    } else if ns >> 32 == 0 {
        24
    } else if ns >> 40 == 0 {
        32
    } else {
        40
    };
    shift + LOG2[(ns >> shift) as usize & 0xff] as u32
}

/// The highest bit of each byte but 0.
static LOG2: [u8; 256] = {
    let mut powers = [0; 256];
    let mut byte = 2;
    while byte < powers.len() {
        powers[byte] = powers[byte / 2] + 1;
        byte += 1;
    }
    powers
};

/// The times of a bucket in ns: from the first, up to the second, which is not one of them; the last bucket has no end.
#[must_use]
pub const fn bounds(bucket: usize) -> (u64, u64) {
    (lower(bucket), if bucket + 1 < BUCKETS { lower(bucket + 1) } else { u64::MAX })
}

const fn lower(bucket: usize) -> u64 {
    let (octave, part) = (bucket as u64 >> PARTS_BITS, bucket as u64 & (PARTS - 1));
    if octave == 0 { part } else { (PARTS + part) << (octave - 1) }
}

/// What packets are grouped by: [`crate::Settings::histograms_by`], 0 being no histograms at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum GroupBy {
    /// Nothing: the dense map has all.
    Stage = 1,
    /// The process.
    Pid = 2,
    /// The name of the thread.
    Comm = 3,
    /// The server's port ([`service_port`]).
    Port = 4,
    /// The other end's address.
    Host = 5,
    /// The device.
    Interface = 6,
    /// The process' cgroup.
    Cgroup = 7,
    /// The name of the process.
    Process = 8,
    /// The connection of TCP: both ends, as this end sees them.
    Connection = 9,
}

/// What has a number: an IPv4 connection (both addresses as they lie in memory, the local one in the lower half; [`Self::V4`]; [`Self::rest`]),
/// an IPv6 address (its words as they lie in memory, [`Self::ADDRESS`]), or an IPv6 connection (the numbers of the local and of the remote
/// address; [`Self::rest`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct ConnectionKey(pub [u64; 3]);

impl ConnectionKey {
    /// In the second word: no address has such a number, whose lower bits are those of a CPU.
    pub const V4: u64 = u64::MAX;
    /// In the third: no connection has ports of 0.
    pub const ADDRESS: u64 = 0;

    /// The last word of a connection: its local and its remote port, and its network namespace.
    #[inline]
    #[must_use]
    pub const fn rest([local, remote]: [u16; 2], netns: u32) -> u64 {
        local as u64 | (remote as u64) << 16 | (netns as u64) << 32
    }

    /// What [`Self::rest`] was made of.
    #[inline]
    #[must_use]
    pub const fn ports_and_netns(rest: u64) -> ([u16; 2], u32) {
        ([rest as u16, (rest >> 16) as u16], (rest >> 32) as u32)
    }
}

/// Whose packets, and which cell. What `group` holds depends on [`GroupBy`]: a process id; a name, zero behind its end;
/// a port; an IPv6 address or an IPv4-mapped one, as it lies in memory; index and namespace of a device; a cgroup's id; the number
/// of a connection ([`ConnectionKey`]), and 1 where there is one.
/// All zero where that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CellKey {
    /// Whose.
    pub group: [u64; 2],
    /// [`row`] of a kind of traffic.
    pub row: u32,
    /// Index of the cell, below [`CELLS`].
    pub cell: u32,
}

/// The number of a row of a kind of traffic: those of parts come behind all others. [`ROWS`] in a row are a [`Block`].
#[inline(always)]
#[must_use]
pub const fn row(traffic: u32, row: u32) -> u32 {
    if row < ROWS {
        traffic * ROWS + row
    } else {
        TRAFFIC_KINDS * ROWS + traffic * (FINE_ROWS - ROWS) + (row - ROWS)
    }
}

/// In place of a time: the packet has none, and is counted in this cell.
#[inline(always)]
#[must_use]
pub const fn no_time(cell: usize) -> u64 {
    u64::MAX - (CELLS - 1 - cell) as u64
}

/// The cell of a time in ns, or of the reason in its place ([`no_time`]).
#[inline(always)]
#[must_use]
pub const fn cell(time: u64) -> usize {
    if time >= no_time(BUCKETS) { CELLS - 1 - (u64::MAX - time) as usize } else { bucket(time) }
}

/// The time of a part as [`crate::FineRecord::parts`] has it, or its cell's [`no_time`] where that is not known. A control packet
/// never had what it lacks.
#[inline(always)]
#[must_use]
pub const fn part_time(value: u64, is_control: bool) -> u64 {
    let reason = u64::MAX - value;
    if reason >= UNKNOWNS as u64 {
        value
    } else if is_control {
        no_time(NEVER)
    } else {
        no_time(UNKNOWN + reason as usize)
    }
}

/// The port by which people know a connection: this end's, unless that is one that the kernel gave out and the other end's is
/// not; then this end is the client, and it is the server's. `ephemeral` is [`crate::Settings::ephemeral_ports`].
#[inline(always)]
#[must_use]
pub const fn service_port(local: u16, remote: u16, ephemeral: u32) -> u16 {
    if is_client(local, remote, ephemeral) { remote } else { local }
}

/// Whether this end is the client of a connection by [`service_port`]'s rule.
#[inline(always)]
#[must_use]
pub const fn is_client(local: u16, remote: u16, ephemeral: u32) -> bool {
    is_ephemeral(local, ephemeral) && !is_ephemeral(remote, ephemeral)
}

#[inline(always)]
const fn is_ephemeral(port: u16, range: u32) -> bool {
    port >= range as u16 && port <= (range >> 16) as u16
}

/// Completions, in ns of `CLOCK_MONOTONIC`, that are valid: while every hook was attached. None while all is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    /// The first.
    pub start: u64,
    /// The last.
    pub end: u64,
}

/// A name in two words, the first byte being the lowest, with zeroes behind its end: what the kernel leaves there differs.
#[inline(always)]
#[must_use]
pub const fn without_rest([start, end]: [u64; 2]) -> [u64; 2] {
    let (start, is_whole) = until_nul(start);
    [start, if is_whole { until_nul(end).0 } else { 0 }]
}

/// The bytes before the first that is 0, and whether there is none.
#[inline(always)]
const fn until_nul(word: u64) -> (u64, bool) {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    // The lowest bit set is the high one of the first byte that is 0.
    let zeroes = word.wrapping_sub(LOW) & !word & HIGH;
    if zeroes == 0 {
        return (word, true);
    }
    let first = zeroes & zeroes.wrapping_neg();
    (word & ((first - 1) >> 7), false)
}

// SAFETY: `repr(C)`, integers only, no padding (asserted below).
#[cfg(feature = "user")]
unsafe impl aya::Pod for CellKey {}
const _: () = assert!(size_of::<CellKey>() == 24, "keys have no padding");
// SAFETY: `repr(transparent)` over 64-bit integers.
#[cfg(feature = "user")]
unsafe impl aya::Pod for ConnectionKey {}
// SAFETY: `repr(C)`, 64-bit integers only.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Span {}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeSet;

    use super::*;
    use crate::{Unknown, unknown_part};

    #[test]
    fn each_row_has_a_number_of_its_own() {
        let numbers = |rows: u32| {
            (0..TRAFFIC_KINDS).flat_map(move |kind| (0..rows).map(move |number| row(kind, number)))
        };
        let all: BTreeSet<_> = numbers(FINE_ROWS).collect();
        assert_eq!(all, (0..TRAFFIC_KINDS * FINE_ROWS).collect());
        // Without fine stages, no room is left for parts.
        assert_eq!(numbers(ROWS).max(), Some(TRAFFIC_KINDS * ROWS - 1));
    }

    #[test]
    fn each_power_of_two_is_found() {
        for power in 0..LONGEST_BITS {
            for ns in [1 << power, (1 << power) + 1, (2 << power) - 1] {
                assert_eq!(log2(ns), ns.ilog2(), "{ns}");
            }
        }
    }

    #[test]
    fn what_a_part_says_is_in_its_cell() {
        for reason in Unknown::ALL {
            assert_eq!(cell(part_time(unknown_part(reason), false)), UNKNOWN + reason as usize);
            assert_eq!(cell(part_time(unknown_part(reason), true)), NEVER);
        }
        for time in [0, 5_000, 1 << 50] {
            assert_eq!(cell(part_time(time, false)), bucket(time));
        }
    }
}

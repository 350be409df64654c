//! The two addresses of a connection or a packet.

use net_latency_common::{AF_INET, AF_INET6, Direction};

use super::settings::setting;
use crate::kernel::{memory::Memory, socket::Socket};

/// 2^64 divided by the golden ratio: an odd factor with bits all over, which spreads numbers that differ little.
pub(crate) const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Two addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AddrPair {
    /// `AF_INET` also for an IPv4-mapped IPv6 socket.
    pub(crate) family: u32,
    reserved: u32,
    /// Remote, then local address in network order; an IPv4 pair in `[0]`, as in the IP header of a
    /// received packet.
    pub(crate) addresses: [u64; 4],
}

impl AddrPair {
    /// None.
    pub(crate) const UNKNOWN: Self = Self { family: 0, reserved: 0, addresses: [0; 4] };

    /// Those that stand in an IP header: source, then destination.
    #[inline(always)]
    pub(crate) fn new(family: u32, addresses: [u64; 4]) -> Self {
        Self { family, reserved: 0, addresses }
    }

    /// A socket's.
    #[inline(always)]
    pub(crate) fn of_socket<M: Memory>(socket: Socket<M>) -> Self {
        // The last 32 bits before the IPv4 address in ::ffff:a.b.c.d, as a little-endian load sees them.
        const MAPPED: u32 = 0xffff_0000;
        if socket.family() == AF_INET6 {
            let [remote_high, remote_low] = socket.remote_v6();
            if remote_high != 0 || remote_low as u32 != MAPPED {
                let [local_high, local_low] = socket.local_v6();
                return Self::new(AF_INET6, [remote_high, remote_low, local_high, local_low]);
            }
        }
        Self::new(AF_INET, [socket.pair_v4(), 0, 0, 0])
    }

    /// Source and destination address of a packet that goes in this direction, as
    /// [`net_latency_common::PacketRecord`] has them.
    #[inline(always)]
    pub(crate) fn of_record(&self, direction: Direction) -> ([u8; 16], [u8; 16]) {
        let [a, b, c, d] = self.addresses;
        let (remote, local) =
            if self.family == AF_INET { ([a & 0xffff_ffff, 0], [a >> 32, 0]) } else { ([a, b], [c, d]) };
        let (remote, local) = (bytes(remote), bytes(local));
        match direction {
            Direction::In => (remote, local),
            Direction::Out => (local, remote),
        }
    }

    /// Both in one word, for keys.
    #[inline(always)]
    pub(crate) fn mixed(&self) -> u64 {
        self.mixed_by(setting!(seed))
    }

    /// By the factor that belongs to this seed. It is secret: the owner of a network could otherwise find two of its addresses that mix to
    /// the same value.
    #[inline(always)]
    fn mixed_by(&self, seed: u64) -> u64 {
        // The 64-bit FNV prime; any odd constant with bits all over spreads as well.
        const PRIME: u64 = 0x0100_0000_01b3;
        let [a, b, c, d] = self.addresses;
        if self.family == AF_INET {
            return a;
        }
        let factor = PRIME ^ seed << 1;
        let mut sum = a ^ seed;
        for word in [b, c, d] {
            sum = (sum ^ (sum >> 29)).wrapping_mul(factor).wrapping_add(word);
        }
        sum
    }
}

/// The bytes of an address or a name, as they lie in memory.
#[inline(always)]
pub(crate) fn bytes(words: [u64; 2]) -> [u8; 16] {
    // SAFETY: same size, and any bytes are valid.
    unsafe { core::mem::transmute(words) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_addresses_of_a_record() {
        // 10.0.0.1 is the other end, 192.168.1.2 this one.
        let pair = u64::from_le_bytes([10, 0, 0, 1, 192, 168, 1, 2]);
        let pair = AddrPair::new(AF_INET, [pair, 0, 0, 0]);
        let mut remote = [0; 16];
        remote[..4].copy_from_slice(&[10, 0, 0, 1]);
        let mut local = [0; 16];
        local[..4].copy_from_slice(&[192, 168, 1, 2]);
        assert_eq!(pair.of_record(Direction::In), (remote, local));
        assert_eq!(pair.of_record(Direction::Out), (local, remote));
    }

    #[test]
    fn ipv6_addresses_of_a_record() {
        let pair = AddrPair::new(AF_INET6, [0x20fe, 0x0100 << 48, 0, 0x0100_0000_0000_0000]);
        let (source, destination) = pair.of_record(Direction::In);
        assert_eq!((source[0], source[1], source[15]), (0xfe, 0x20, 0x01));
        assert_eq!(destination, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(pair.of_record(Direction::Out), (destination, source));
    }

    #[test]
    fn who_crafts_addresses_that_meet_has_to_know_the_seed() {
        const KNOWN: u64 = 0x5eed;
        let pair = AddrPair::new(AF_INET6, [0x20fe, 1, 0xfd, 2]);
        let mut crafted = pair;
        // Another word, and what the last one has to be to make up for it.
        crafted.addresses[2] += 1;
        crafted.addresses[3] = pair.mixed_by(KNOWN).wrapping_sub(crafted.mixed_by(KNOWN)).wrapping_add(2);
        assert_eq!(crafted.mixed_by(KNOWN), pair.mixed_by(KNOWN));
        for other in (0..64).map(|bit| KNOWN ^ 1 << bit) {
            // The highest bit is shifted out of the factor, and the words before the last differ all the same.
            assert!(
                other ^ KNOWN == 1 << 63 || crafted.mixed_by(other) != pair.mixed_by(other),
                "{other:#x}"
            );
        }
    }

    #[test]
    fn each_word_of_an_address_counts() {
        let pair = AddrPair::new(AF_INET6, [1, 2, 3, 4]);
        for word in 0..4 {
            for bit in 0..64 {
                let mut other = pair;
                other.addresses[word] ^= 1 << bit;
                assert_ne!(other.mixed(), pair.mixed(), "word {word}, bit {bit}");
            }
        }
        // The order does too, so that an address is not its own answer's.
        assert_ne!(AddrPair::new(AF_INET6, [3, 4, 1, 2]).mixed(), pair.mixed());
    }
}

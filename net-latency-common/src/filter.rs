//! What filters need besides numbers: names of tasks, addresses, names of devices.

/// Length of a device's name, the closing NUL included (`IFNAMSIZ` in the kernel).
pub const INTERFACE_LEN: usize = 16;

/// Cgroups that a filter can have at most.
pub const MAX_CGROUPS: u32 = 16;

/// For [`Settings::filter_pid`](crate::Settings::filter_pid): processes are in the set. No process has this id
/// (`PID_MAX_LIMIT` is 2^22).
pub const PIDS_IN_SET: u32 = u32::MAX;
/// State of a process to show.
pub const PID_ALONE: u64 = 1;
/// State of a process to show with those that it starts. A larger one is that of a process that has exited: when it was started, ns.
pub const PID_WITH_CHILDREN: u64 = 2;

/// Globs that one [`Bank`] holds.
pub const GLOBS_PER_BANK: usize = 4;
/// Banks that there are at most.
pub const MAX_BANKS: usize = 2;

/// The key of an address: as many of its bits count as the trie's entry says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Host {
    /// `AF_INET` or `AF_INET6`.
    pub family: u32,
    /// The address in network order; an IPv4 address is the first of these.
    pub address: [u32; 4],
}

impl Host {
    /// Bits of `family`, which come before those of the address.
    pub const FAMILY_BITS: u32 = u32::BITS;
    /// All bits.
    pub const BITS: u32 = Self::FAMILY_BITS + 128;
}

/// Globs as a machine that reads a name once, byte by byte, whatever they look like.
///
/// Each glob has 16 bits (a name has 15 bytes at most). Bit `n` of them is set while the glob's first `n`
/// elements, stars aside, can have matched what was read; a star before element `n` lets that bit stay.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Bank {
    /// The state before the first byte.
    pub start: u64,
    /// Bits that stay whatever is read.
    pub stay: u64,
    /// Bits that mean that a glob has matched.
    pub accept: u64,
    /// For each byte, the bits whose glob goes on by it: each moves one place up.
    pub step: [u64; 256],
}

impl Bank {
    /// A bank without globs, which matches nothing.
    pub const EMPTY: Self = Self { start: 0, stay: 0, accept: 0, step: [0; 256] };

    /// Whether one of the globs matches the name in these two words, the first byte being the lowest. A NUL ends it.
    #[inline(always)]
    #[must_use]
    pub fn matches(&self, name: [u64; 2]) -> bool {
        let mut state = self.start;
        let mut rest = name[0];
        let mut read = 0;
        while read < 16 {
            if read == 8 {
                rest = name[1];
            }
            let byte = rest as u8;
            if byte == 0 {
                break;
            }
            state = (state & self.step[usize::from(byte)]) << 1 | state & self.stay;
            rest >>= 8;
            read += 1;
        }
        state & self.accept != 0
    }
}

// SAFETY: `repr(C)`, 64-bit integers only.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Bank {}
// SAFETY: `repr(C)`, 32-bit integers only.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Host {}

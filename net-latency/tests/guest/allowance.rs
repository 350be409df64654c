//! How many packets a run of the tool may miss: none, but for what the kernel leaves out by its nature.

use crate::tool::Backend;

/// Of fewer packets than this none may be missing: nothing else is going on then that a program could be interrupted by.
const FEW: u64 = 50;
/// One in this many packets may be missing in the long run,
const LONG_SHARE: u64 = 500;
/// and N besides, since one that is skipped takes those with it that TCP has joined to it: of 363 segments through a
/// card 8 were seen missing on Linux 5.10, by 3 calls that were skipped.
const BURSTS: u64 = 20;
/// Of few packets that is one in N,
const SHORT_SHARE: u64 = 20;
/// and N besides.
const LEAST: u64 = 4;

/// How many packets may have no line, or a line with a gap. Whatever it is: no line may be wrong.
///
/// The kernel runs no program of a kprobe while another one runs on the same CPU (`trace_call_bpf`), which happens when a
/// softirq comes in the middle of one. A program of fentry is skipped only while it runs itself (`__bpf_prog_enter_recur`,
/// Linux 5.12): a task is preempted in it, or a softirq comes in the middle of it and sends or receives on another socket. On a
/// machine that is busy with other guests the latter was seen for 2 segments of 66 (Linux 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// None: fentry and auto where the kernel doesn't count what it skips, and skips nothing (before Linux 5.12).
    Exact,
    /// A small share. Where the kernel counts the calls that it skipped (kprobes: since Linux 6.7), not more than these.
    Share { skipped_calls: Option<u64> },
    /// One for each call that the kernel skipped, as it says.
    Counted { skipped_calls: u64 },
}

impl Allowance {
    /// Of a run in which the kernel skipped N calls, if it says.
    pub(crate) fn of(backend: Backend, skipped_calls: Option<u64>) -> Self {
        match (backend, skipped_calls) {
            (Backend::Auto | Backend::Fentry, None) => Self::Exact,
            _ => Self::Share { skipped_calls },
        }
    }

    /// [`Self::of`] with more tasks than CPUs, which preempt each other in programs of fentry too.
    pub(crate) fn under_load(backend: Backend, skipped_calls: Option<u64>) -> Self {
        match (backend, skipped_calls) {
            (Backend::Auto | Backend::Fentry, Some(skipped_calls)) => Self::Counted { skipped_calls },
            _ => Self::of(backend, skipped_calls),
        }
    }

    /// The most that may be missed of N packets.
    pub(crate) fn most(self, packets: u64) -> u64 {
        self.most_lines(packets, packets)
    }

    /// The most lines that may be missed of N, which hold N segments: GRO and TSO make few lines of much traffic.
    /// Of 24 lines with 360 segments to a card 2 were seen missing, by 2 calls that were skipped (Linux 7.3, auto).
    pub(crate) fn most_lines(self, lines: u64, segments: u64) -> u64 {
        match self {
            Self::Exact => 0,
            Self::Share { .. } if segments < FEW => 0,
            Self::Share { skipped_calls } => {
                let most = LEAST + lines / SHORT_SHARE;
                most.min(BURSTS + lines / LONG_SHARE).min(skipped_calls.unwrap_or(u64::MAX))
            }
            Self::Counted { skipped_calls } => skipped_calls,
        }
    }

    /// Whether `found` are all of `packets`, as far as has to be.
    pub(crate) fn allows(self, found: u64, packets: u64) -> bool {
        found <= packets && packets - found <= self.most(packets)
    }
}

//! What `net-latency calls` needs: the record of a finished call, what the programs are told, what they count.

use crate::COMM_LEN;

/// Name of the ring buffer that carries [`CallRecord`]s.
pub const CALLS_MAP: &str = "CALLS";
/// Name of the per-CPU array with one [`CallCounters`] element.
pub const CALL_COUNTERS_MAP: &str = "CALL_COUNTERS";
/// Name of the map of calls that have not returned, by context.
pub const STACKS_MAP: &str = "STACKS";
/// Name of the [`CallSettings`] global.
pub const CALL_SETTINGS_GLOBAL: &str = "CALL_SETTINGS";

/// Calls within each other that are followed in one context.
pub const MAX_DEPTH: usize = 32;

/// The task's own code, system calls and kernel threads.
pub const LEVEL_TASK: u8 = 0;
/// A softirq, which interrupts a task, or which a task runs before it goes on.
pub const LEVEL_SOFTIRQ: u8 = 1;
/// A hardirq.
pub const LEVEL_HARDIRQ: u8 = 2;
/// A non-maskable interrupt.
pub const LEVEL_NMI: u8 = 3;

/// A call that has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CallRecord {
    /// When the function was entered, in ns of `CLOCK_MONOTONIC`.
    pub entry_ns: u64,
    /// When it returned.
    pub exit_ns: u64,
    /// How much of that its own traced callees took.
    pub children_ns: u64,
    /// Address of the function's first instruction that can be probed.
    pub function: u64,
    /// What tells tasks apart, those without a number of their own too: the address of the `task_struct` that the CPU ran.
    pub task: u64,
    /// That task's process id in the upper half, its thread id in the lower.
    pub ids: u64,
    /// That task's name.
    pub comm: [u8; COMM_LEN],
    /// The CPU at the entry.
    pub entry_cpu: u32,
    /// The CPU at the return.
    pub cpu: u32,
    /// Traced calls around this one.
    pub depth: u32,
    /// One of the `LEVEL_` constants: what interrupts has calls of its own.
    pub level: u32,
}

/// A call that has not returned.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallFrame {
    /// Where on the kernel's stack its return address is, or where that stack ended when it began, by architecture: no other call that is
    /// under way has the same place, but for one that has ended by jumping to this.
    pub slot: u64,
    /// As in [`CallRecord`].
    pub function: u64,
    /// As in [`CallRecord`].
    pub entry_ns: u64,
    /// As in [`CallRecord`].
    pub children_ns: u64,
    /// As in [`CallRecord`].
    pub entry_cpu: u64,
}

/// The calls under way in one context, the outermost first.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallStack {
    /// How many there are.
    pub depth: u64,
    /// The task's ids, as in [`CallRecord`]: another task may get the same address.
    pub ids: u64,
    /// The calls.
    pub frames: [CallFrame; MAX_DEPTH],
}

/// A call that a return was found to belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReturnedCall {
    /// Calls around it, which is also where it was.
    pub depth: u64,
    /// Calls within it whose returns were not seen.
    pub dropped: u64,
}

/// The core of pairing, apart from where it gets its facts, so that it can be tried on any sequence of events.
impl CallStack {
    /// Drops the calls that have been left for good by the time a function is entered whose return address is at `slot`,
    /// and returns how many these were. `is_expected`: whether a call at that place on the kernel's stack is still to return to the
    /// address by which its return is seen.
    #[inline(always)]
    pub fn prune(&mut self, slot: u64, mut is_expected: impl FnMut(u64) -> bool) -> u64 {
        let before = self.depth;
        let mut turn = 0;
        while turn < MAX_DEPTH {
            if self.depth == 0 {
                break;
            }
            // The stack grows down: calls around this one are above it. At the same place is a call that has ended by jumping to this
            // function, if both returns are to come.
            let around = self.frames[index(self.depth - 1)].slot;
            if around >= slot && is_expected(around) {
                break;
            }
            self.depth -= 1;
            turn += 1;
        }
        before - self.depth
    }

    /// The place for the next call; none if there are too many.
    #[inline(always)]
    pub fn push(&mut self) -> Option<&mut CallFrame> {
        let depth = self.depth;
        if depth >= MAX_DEPTH as u64 {
            return None;
        }
        self.depth = depth + 1;
        Some(&mut self.frames[index(depth)])
    }

    /// Takes the call off that returns now, if its entry was seen. `function` is 0 where the kernel does not tell it: of calls with one
    /// place on the stack, each of which has ended by jumping to the next, the last returns first.
    #[inline(always)]
    pub fn pop(&mut self, slot: u64, function: u64, exit_ns: u64) -> Option<ReturnedCall> {
        let mut at = self.depth;
        let mut turn = 0;
        while turn < MAX_DEPTH {
            if at == 0 {
                break;
            }
            at -= 1;
            let frame = &self.frames[index(at)];
            if frame.slot == slot && (frame.function == function || function == 0) {
                let entry_ns = frame.entry_ns;
                if at > 0 {
                    self.frames[index(at - 1)].children_ns += exit_ns.saturating_sub(entry_ns);
                }
                let dropped = self.depth - at - 1;
                self.depth = at;
                return Some(ReturnedCall { depth: at, dropped });
            }
            // All further calls are above.
            if frame.slot > slot {
                break;
            }
            turn += 1;
        }
        None
    }

    /// A call by its depth.
    #[inline(always)]
    #[must_use]
    pub fn frame(&self, depth: u64) -> &CallFrame {
        &self.frames[index(depth)]
    }
}

/// A place in an array of frames, by a mask, which the verifier follows further than a comparison.
#[inline(always)]
fn index(depth: u64) -> usize {
    depth as usize & (MAX_DEPTH - 1)
}

const _: () = assert!(MAX_DEPTH.is_power_of_two(), "indices are masked");

/// What has its own calls.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct CallContext {
    /// The address of the `task_struct` that the CPU runs.
    pub task: u64,
    /// One of the `LEVEL_` constants.
    pub level: u64,
}

/// What the programs are told before they are loaded: addresses from /proc/kallsyms, offsets from BTF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallSettings {
    /// Where a call whose return is probed returns to.
    pub trampoline: u64,
    /// Where a call returns to that ftrace's `function_graph` follows; 0 if it can't.
    pub graph_return: u64,
    /// Address of `__per_cpu_offset`, an array of where each CPU has its variables.
    pub per_cpu_offset: u64,
    /// Offset of the variable with the preemption count, relative to that; or, by architecture, of the field of `task_struct`.
    pub preempt_count: u64,
    /// Offset of the variable `current_kprobe`, relative to that.
    pub current_kprobe: u64,
    /// Offset of `kprobe.addr`.
    pub kprobe_addr: u32,
    /// Offset of `task_struct.softirq_disable_cnt`, which only PREEMPT_RT has; 0 elsewhere.
    pub softirq_disable_cnt: u32,
}

/// What the programs count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum CallCounter {
    /// Calls that began, of those requested.
    Entered,
    /// Calls that returned while the ring buffer was full.
    RingFull,
    /// Calls that were dropped because their return can't come any more: it was not seen.
    NoReturn,
    /// Returns of calls whose entry was not followed: they began before, or found no room.
    NoEntry,
    /// Calls that began within too many others to be followed.
    TooDeep,
    /// Calls that began while there was no room for another context.
    NoRoom,
}

impl CallCounter {
    /// How many there are.
    pub const COUNT: usize = 6;
}

/// Counts by [`CallCounter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CallCounters {
    /// The counts.
    pub values: [u64; CallCounter::COUNT],
}

impl CallCounters {
    /// One of them.
    #[must_use]
    pub const fn get(&self, counter: CallCounter) -> u64 {
        self.values[counter as usize]
    }

    /// The counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut values = self.values;
        for (value, before) in values.iter_mut().zip(earlier.values) {
            *value = value.saturating_sub(before);
        }
        Self { values }
    }
}

const _: () = assert!(size_of::<CallRecord>() == 6 * 8 + COMM_LEN + 4 * 4, "records have no padding");
const _: () = assert!(size_of::<CallSettings>() == 5 * 8 + 2 * 4, "settings have no padding");

// SAFETY: `repr(C)`, integers only, no padding (asserted above).
#[cfg(feature = "user")]
unsafe impl aya::Pod for CallRecord {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for CallSettings {}
// SAFETY: `repr(C)`, 64-bit integers only.
#[cfg(feature = "user")]
unsafe impl aya::Pod for CallCounters {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for CallStack {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for CallContext {}

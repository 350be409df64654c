//! What the kernel gives its programs, on a machine made of plain Rust: one for each thread, so that tests don't meet.
//!
//! It has the kernel's meaning where the logic above can tell: maps that evict what was used least recently and give an entry's memory to
//! the next one, arrays of fixed size, a ring buffer that may be full, a clock that goes on with each look. Addresses of the kernel's memory
//! are numbers of its own, the same in each run. What a test does with it: [`Machine`], [`memory`].
mod maps;
pub mod memory;
pub(crate) mod order;

#[cfg(test)]
use std::vec::Vec;
use std::{cell::RefCell, thread::LocalKey};

pub(crate) use aya_ebpf_macros::map;
pub(crate) use maps::{
    Array, CgroupArray, HashMap, Key, LpmTrie, LruHashMap, PerCpuArray, PerCpuHashMap, RingBuf, Table,
};
pub(crate) use memory::{read_kernel, read_kernel_str, tcp_sock};
#[cfg(test)]
use net_latency_common::journey::JourneySettings;
use net_latency_common::{COMM_LEN, Offsets, Settings};

/// CPUs at most.
pub const CPUS: usize = 4;

/// What a machine has beside its maps and its memory.
pub struct Machine {
    /// Where the fields of the kernel's structs lie.
    pub offsets: Offsets,
    /// What the user asks for.
    pub settings: Settings,
    /// What the user asks `journey` for.
    #[cfg(test)]
    pub journeys: JourneySettings,
    /// The next look at the clock gives this, ns.
    pub clock: u64,
    /// The CPU that works.
    pub cpu: usize,
    /// Process id of the current task in the upper half, thread id in the lower.
    pub ids: u64,
    /// Address of its `struct task_struct`, whose name it has.
    pub task: u64,
    /// Id of its cgroup.
    pub cgroup: u64,
    /// Which cgroups of the filter it is in, a bit for each.
    pub in_cgroups: u32,
    /// The next random number follows from this.
    pub random: u64,
    /// Entries of a hash table at most, whatever it has room for on a real machine.
    pub entries: usize,
    /// Entries that the user side makes room for in arrays that are declared with one. In tables it makes all the room that they need.
    pub room: usize,
    /// Bytes in a ring buffer at most.
    pub ring_bytes: usize,
}

impl Machine {
    const fn new() -> Self {
        // SAFETY: words of 32 bits.
        let (offsets, settings) = unsafe { (core::mem::zeroed(), core::mem::zeroed()) };
        Self {
            offsets,
            settings,
            #[cfg(test)]
            journeys: JourneySettings::NONE,
            clock: 1,
            cpu: 0,
            ids: 0,
            task: 0,
            cgroup: 0,
            in_cgroups: 0,
            random: 1,
            entries: usize::MAX,
            room: 1,
            ring_bytes: 1 << 20,
        }
    }

    /// Does something with this thread's.
    #[inline]
    pub fn with<R>(work: impl FnOnce(&mut Self) -> R) -> R {
        local(&MACHINE, work)
    }

    /// This thread's machine is as new: its maps are empty, and all its memory is free.
    pub fn reset() {
        maps::reset();
        memory::reset();
        Self::with(|machine| *machine = Self::new());
    }
}

std::thread_local! {
    static MACHINE: RefCell<Machine> = const { RefCell::new(Machine::new()) };
}

/// Does something with this thread's own. As `LocalKey::with_borrow_mut`, which no optimizer sees through in small parts of a crate, and
/// here it is called some thousand times for each history.
#[inline]
fn local<T, R>(own: &'static LocalKey<RefCell<T>>, work: impl FnOnce(&mut T) -> R) -> R {
    own.try_with(|own| work(&mut own.borrow_mut())).expect("the thread runs")
}

/// Records that a ring buffer's reader has not taken: their bytes, as words.
#[cfg(test)]
pub type Records = Vec<Vec<u64>>;

/// Those that are as long as a record of this type, which consists of numbers.
#[cfg(test)]
pub(crate) fn of_type<T: Copy>(records: &Records) -> Vec<T> {
    let its = records.iter().filter(|words| size_of_val(&words[..]) == size_of::<T>());
    // SAFETY: words of that size, of which any are a record.
    its.map(|words| unsafe { words.as_ptr().cast::<T>().read() }).collect()
}

/// Now. Each look is later than the one before, so that a time tells which look it is of.
#[inline]
pub(crate) fn now() -> u64 {
    Machine::with(|machine| {
        machine.clock += 1;
        machine.clock
    })
}

#[inline]
pub(crate) fn cpu() -> u32 {
    Machine::with(|machine| machine.cpu as u32)
}

/// A random number (xorshift).
#[inline]
pub(crate) fn random() -> u32 {
    Machine::with(|machine| {
        machine.random ^= machine.random << 13;
        machine.random ^= machine.random >> 7;
        machine.random ^= machine.random << 17;
        machine.random as u32
    })
}

#[inline]
pub(crate) fn current_ids() -> u64 {
    Machine::with(|machine| machine.ids)
}

#[inline]
pub(crate) fn current_task() -> *const u8 {
    Machine::with(|machine| machine.task as *const u8)
}

pub(crate) fn current_task_known() -> *const u8 {
    current_task()
}

pub(crate) unsafe fn task_registers(task: *const u8) -> *const u8 {
    let Offsets { task_struct_stack, stack_registers, .. } = Machine::with(|machine| machine.offsets);
    let stack: u64 = memory::read(task as u64 + u64::from(task_struct_stack));
    (stack + u64::from(stack_registers)) as *const u8
}

pub(crate) unsafe fn read_current_comm(to: *mut u8, len: u32) {
    let at = Machine::with(|machine| machine.task + u64::from(machine.offsets.task_struct_comm));
    assert_eq!(len as usize, COMM_LEN, "a name's length");
    // SAFETY: as the caller says.
    unsafe { read_kernel(to, len, at as *const u8) };
}

pub(crate) fn current_cgroup() -> u64 {
    Machine::with(|machine| machine.cgroup)
}

/// The word of 32 bits that is N bytes within the offsets.
#[inline]
pub(crate) fn offset(at: usize) -> u32 {
    Machine::with(|machine| {
        // SAFETY: a struct of such words.
        unsafe { (&raw const machine.offsets).byte_add(at).cast::<u32>().read() }
    })
}

/// The setting that this picks.
#[inline]
pub(crate) fn setting<T>(pick: fn(&Settings) -> T) -> T {
    Machine::with(|machine| pick(&machine.settings))
}

pub(crate) unsafe fn submit(entry: *mut u8, _flags: u64) {
    maps::hand_back(entry, true);
}

pub(crate) unsafe fn discard(entry: *mut u8, _flags: u64) {
    maps::hand_back(entry, false);
}

//! The task that gives or takes bytes.

use core::{marker::PhantomData, mem::MaybeUninit};

use net_latency_common::COMM_LEN;

#[cfg(feature = "fine")]
use super::arch;
use super::{
    memory::{Direct, Memory, Probed, probe},
    offsets::{At as _, offset},
};
#[cfg(feature = "fine")]
use crate::bpf::task_registers;
use crate::bpf::{self, current_task, current_task_known, read_current_comm, read_kernel};

/// A name, ended by NUL; words, so that it is copied by words.
pub(crate) type Name = [u64; COMM_LEN / 8];

/// A task by ids and names; all zero where unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Task {
    /// Process id in the upper half, thread id in the lower, as `bpf_get_current_pid_tgid` gives them.
    pub ids: u64,
    /// The thread's name. While times are counted by cgroup the name is not needed, and the first word is the cgroup's id: what is sent
    /// later, from a softirq, could not look that up. While they are counted by process, it is when that was started.
    name: Name,
    /// The process' name, which is that of the thread group's leader.
    process: Name,
}

/// The last byte of a name, which can only be NUL, says whether the task is wanted, where that matters. It is decided when the task gives
/// or takes bytes; they are sent or shown later, outside that task.
const VERDICT: u64 = 0xff << 56;
/// The verdict on a task that isn't wanted.
const UNWANTED: u64 = 1 << 56;

impl Task {
    /// No task.
    pub(crate) const UNKNOWN: Self = Self { ids: 0, name: [0; COMM_LEN / 8], process: [0; COMM_LEN / 8] };

    /// The task this CPU runs. Only of use where the hook runs on that task's behalf.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        let ids = Self::current_ids();
        // One place for both names: some programs have no room for two.
        let mut place = MaybeUninit::uninit();
        let name = Self::read_current_name(&mut place);
        if !is_leader(ids) {
            read_leader_name(place.as_mut_ptr());
        }
        // SAFETY: written by either.
        Self { ids, name, process: unsafe { place.assume_init() } }
    }

    /// The current task without its names.
    #[inline(always)]
    pub(crate) fn current_unnamed() -> Self {
        Self { ids: Self::current_ids(), ..Self::UNKNOWN }
    }

    /// The task with a verdict, which `is_wanted` gives of its names.
    #[inline(always)]
    pub(crate) fn judged(mut self, is_wanted: impl FnOnce(&Self) -> bool) -> Self {
        // Bytes behind the end of the name are as they were.
        self.name[1] &= !VERDICT;
        if !is_wanted(&self) {
            self.name[1] |= UNWANTED;
        }
        self
    }

    /// The current task with the start of its process in place of its name.
    #[cfg(feature = "hist")]
    #[inline(always)]
    pub(crate) fn with_start(mut self) -> Self {
        self.name[0] = Self::current_start();
        self
    }

    /// The current task with its cgroup in place of its name.
    #[cfg(feature = "hist")]
    #[inline(always)]
    pub(crate) fn with_cgroup(mut self) -> Self {
        self.name[0] = bpf::current_cgroup();
        self
    }

    /// Whether this CPU runs one of the kernel's own tasks.
    #[cfg(feature = "connections")]
    #[inline(always)]
    pub(crate) fn current_is_of_kernel() -> bool {
        Thread::<Probed>::new(current_task()).is_of_kernel()
    }

    /// When the process was started that this CPU runs, ns.
    #[inline(always)]
    pub(crate) fn current_start() -> u64 {
        if offset!(bpf_get_current_task_btf).value() != 0 {
            Thread::<Direct>::new(current_task_known()).start()
        } else {
            Thread::<Probed>::new(current_task()).start()
        }
    }

    /// The name of the thread that this CPU runs.
    #[cfg(any(feature = "calls", feature = "journey"))]
    #[inline(always)]
    pub(crate) fn current_name() -> Name {
        Self::read_current_name(&mut MaybeUninit::uninit())
    }

    /// Reads the current thread's name by way of `place`.
    #[inline(always)]
    fn read_current_name(place: &mut MaybeUninit<Name>) -> Name {
        if offset!(bpf_get_current_task_btf).value() != 0 {
            // Two loads, where the other helper takes 70 instructions.
            // SAFETY: the helper gives the address of a live task, and the verifier knows it as one. The offset is a field's, from BTF.
            let name = unsafe {
                let task = current_task_known();
                let at = offset!(task_struct_comm);
                [Direct::read(task, at), Direct::read(task, at.behind::<8>())]
            };
            return *place.write(name);
        }
        // SAFETY: there is room for a name; the helper ends it by NUL.
        unsafe {
            read_current_comm(place.as_mut_ptr().cast(), COMM_LEN as u32);
            place.assume_init()
        }
    }

    /// Whether the task was requested when it gave or took bytes.
    #[inline(always)]
    pub(crate) fn is_wanted(&self) -> bool {
        self.name[1] & VERDICT == 0
    }

    /// The ids of the task this CPU runs.
    #[inline(always)]
    pub(crate) fn current_ids() -> u64 {
        bpf::current_ids()
    }

    /// The process id of the task this CPU runs.
    #[inline(always)]
    pub(crate) fn current_pid() -> u32 {
        (Self::current_ids() >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn pid(&self) -> u32 {
        (self.ids >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn tid(&self) -> u32 {
        self.ids as u32
    }

    /// The names of the thread and of its process.
    #[cfg(feature = "names")]
    #[inline(always)]
    pub(crate) fn names(&self) -> [Name; 2] {
        [self.name, self.process]
    }

    /// The thread's name as [`net_latency_common::PacketRecord`] has it, of a task that is wanted.
    #[inline(always)]
    pub(crate) fn comm(&self) -> [u8; COMM_LEN] {
        bytes(self.name)
    }

    /// The process' name in the same form.
    #[inline(always)]
    pub(crate) fn process(&self) -> [u8; COMM_LEN] {
        bytes(self.process)
    }
}

/// Writes the name of the leader of the current task's thread group, zeroes if it can't be read. Where the leader has exited before
/// others of its group, the kernel keeps it, and its name, until they have too.
///
/// A function with a stack of its own: some programs have no room for more beside what they call.
#[inline(never)]
fn read_leader_name(name: *mut Name) {
    // SAFETY: the caller has room for a name. The helper gives the address of a live task, whose group has a leader as long as
    // it lives; the offsets are those of fields, from BTF. The helpers survive a fault.
    unsafe {
        let task = current_task();
        let leader: *const u8 = probe(offset!(task_struct_group_leader).of(task));
        let from = offset!(task_struct_comm).of(leader);
        read_kernel(name.cast(), COMM_LEN as u32, from);
    }
}

#[inline(always)]
fn bytes(name: Name) -> [u8; COMM_LEN] {
    // SAFETY: same size, and any bytes are valid.
    unsafe { core::mem::transmute(name) }
}

/// Whether the task with these ids leads its thread group, as all do whose process has a single thread.
#[inline(always)]
fn is_leader(ids: u64) -> bool {
    ids >> 32 == ids & u64::from(u32::MAX)
}

/// A `struct task_struct` in kernel memory.
#[derive(Clone, Copy)]
pub struct Thread<M> {
    pointer: *const u8,
    memory: PhantomData<M>,
}

impl<M: Memory> Thread<M> {
    /// The task that a hook got as an argument.
    #[inline(always)]
    #[must_use]
    pub fn new(pointer: *const u8) -> Self {
        Self { pointer, memory: PhantomData }
    }

    /// Its process' id.
    #[inline(always)]
    pub(crate) fn process(self) -> u32 {
        // SAFETY: `pointer` is a live task (the hook's argument) and the offset is a field's, from BTF.
        unsafe { M::read(self.pointer, offset!(task_struct_tgid)) }
    }

    /// Whether it is one of the kernel's own, as each CPU's idle task is.
    #[cfg(any(feature = "fine", feature = "connections"))]
    #[inline(always)]
    pub(crate) fn is_of_kernel(self) -> bool {
        /// `PF_KTHREAD` (include/linux/sched.h).
        const KERNEL: u32 = 0x0020_0000;
        // SAFETY: as above.
        let flags: u32 = unsafe { M::read(self.pointer, offset!(task_struct_flags)) };
        flags & KERNEL != 0
    }

    /// The number of the system call that it is in, and 1; 0 for none, or one that is not known: of a process of 32 bits, whose numbers
    /// are others.
    #[cfg(feature = "fine")]
    #[inline(always)]
    pub(crate) fn system_call(self) -> u64 {
        if offset!(task_struct_stack).value() == 0 || self.is_of_kernel() {
            return 0;
        }
        // SAFETY: as above. A task that is not the kernel's own has the registers of its entry into the kernel at the end of its stack
        // (`task_pt_regs`), and the stack as long as it may run. The helper gives their address (Linux 5.15).
        let (of_32_bits, number): (u32, i32) = unsafe {
            let of_32_bits = M::read(self.pointer, offset!(task_struct_of_32_bits));
            let number = if offset!(bpf_task_pt_regs).value() == 0 {
                let stack: *const u8 = M::read(self.pointer, offset!(task_struct_stack));
                probe(offset!(pt_regs_call).of(offset!(stack_registers).of(stack)))
            } else {
                M::read(task_registers(self.pointer), offset!(pt_regs_call))
            };
            (of_32_bits, number)
        };
        // Where it came into the kernel by a fault or an interrupt the number is -1 (`entry_64.S`; `kernel_entry` in entry.S of arm64).
        if of_32_bits & arch::OF_32_BITS == 0 && number >= 0 { number as u64 + 1 } else { 0 }
    }

    /// Its id.
    #[inline(always)]
    pub(crate) fn thread(self) -> u32 {
        // SAFETY: as above.
        unsafe { M::read(self.pointer, offset!(task_struct_pid)) }
    }

    /// Whether all tasks of its process exit, of one that does itself.
    #[inline(always)]
    pub(crate) fn is_last(self) -> bool {
        // SAFETY: as above; a task has its `signal_struct` until it is gone for good.
        unsafe {
            let signal: *const u8 = M::read(self.pointer, offset!(task_struct_signal));
            let live: u32 = M::read(signal, offset!(signal_struct_live));
            live == 0
        }
    }

    /// When its process was started, ns. A thread that takes its process over by executing a program takes this over too (`de_thread`).
    #[inline(always)]
    pub(crate) fn start(self) -> u64 {
        // SAFETY: as above; a task's group has a leader as long as it lives.
        unsafe {
            let leader: *const u8 = M::read(self.pointer, offset!(task_struct_group_leader));
            M::read(leader, offset!(task_struct_start_time))
        }
    }
}

#[cfg(test)]
mod tests {
    use net_latency_common::Offsets;

    use super::*;
    use crate::bpf::host::{Machine, memory};

    const ID: u32 = 1001;
    const LEADER: u32 = 1000;

    /// The current task is a thread of a process that was started then. The kernel may give its address as one that is known.
    fn run(id: u32, start: u64, is_known: bool) {
        Machine::reset();
        let slab = memory::slab(64);
        let [thread, leader] = [memory::take(slab), memory::take(slab)];
        let task = if id == LEADER { leader } else { thread };
        let offsets = Offsets {
            task_struct_group_leader: 8,
            task_struct_start_time: 16,
            task_struct_comm: 24,
            bpf_get_current_task_btf: u32::from(is_known),
            ..Offsets::default()
        };
        for (address, name, start) in
            [(thread, *b"worker\0another\0\0", start + 5), (leader, *b"server\0another\0\0", start)]
        {
            memory::write(address + 8, leader);
            memory::write(address + 16, start);
            memory::write(address + 24, name);
        }
        Machine::with(|machine| {
            machine.offsets = offsets;
            machine.ids = u64::from(LEADER) << 32 | u64::from(id);
            machine.task = task;
            machine.cgroup = 77;
        });
    }

    #[test]
    fn a_thread_has_its_own_name_and_that_of_its_process() {
        for is_known in [false, true] {
            for (id, name) in [(ID, b"worker"), (LEADER, b"server")] {
                run(id, 3_000, is_known);
                let task = Task::current();
                assert_eq!((task.tid(), task.pid(), Task::current_pid()), (id, LEADER, LEADER));
                assert_eq!((&task.comm()[..6], &task.process()[..6]), (&name[..], &b"server"[..]));
                assert_eq!(Task::current_start(), 3_000);
                assert_eq!(task.with_start().names()[0][0], 3_000);
                assert_eq!(task.with_cgroup().names()[0][0], 77);
                let unnamed = Task::current_unnamed();
                assert_eq!((unnamed.ids, unnamed.names()), (task.ids, [[0; 2]; 2]));
            }
        }
    }

    #[test]
    fn a_verdict_is_kept_with_the_name() {
        run(ID, 1, false);
        memory::write(Machine::with(|machine| machine.task) + 24, [b'x'; COMM_LEN]);
        let task = Task::current();
        let before = task.names()[0];
        for is_wanted in [true, false, true] {
            let judged = task.judged(|judged| {
                assert_eq!(judged.names()[0][1] & VERDICT, 0);
                is_wanted
            });
            assert_eq!(judged.is_wanted(), is_wanted);
            assert_eq!(
                (judged.names()[0][0], judged.names()[0][1] & !VERDICT),
                (before[0], before[1] & !VERDICT)
            );
            assert!(judged.judged(|_| true).is_wanted());
        }
    }
}

//! The task that gives or takes bytes.

use core::mem::MaybeUninit;

use aya_ebpf::helpers::{bpf_get_current_pid_tgid, generated};
use net_latency_common::COMM_LEN;

/// A task by id and name; all zero where unknown.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Task {
    /// Process id in the upper half, thread id in the lower, as `bpf_get_current_pid_tgid` gives them.
    pub ids: u64,
    /// The name, ended by NUL; words, so that it is copied by words.
    comm: [u64; COMM_LEN / 8],
}

impl Task {
    /// No task.
    pub(crate) const UNKNOWN: Self = Self { ids: 0, comm: [0; COMM_LEN / 8] };

    /// The task this CPU runs. Only of use where the hook runs on that task's behalf.
    #[inline(always)]
    pub(crate) fn current() -> Self {
        let mut comm = MaybeUninit::<[u64; COMM_LEN / 8]>::uninit();
        // SAFETY: the buffer has room for a name; the helper fills it, with zeroes if it fails.
        let comm = unsafe {
            generated::bpf_get_current_comm(comm.as_mut_ptr().cast(), COMM_LEN as u32);
            comm.assume_init()
        };
        Self { ids: Self::current_ids(), comm }
    }

    /// The ids of the task this CPU runs.
    #[inline(always)]
    pub(crate) fn current_ids() -> u64 {
        bpf_get_current_pid_tgid()
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

    /// The name as [`net_latency_common::PacketRecord`] has it.
    #[inline(always)]
    pub(crate) fn comm(&self) -> [u8; COMM_LEN] {
        // SAFETY: same size, and any bytes are valid.
        unsafe { core::mem::transmute(self.comm) }
    }
}

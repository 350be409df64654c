//! Hooks that a test has skipped, as the kernel skips calls of programs: what their packets show then. In the object for
//! tests alone.

use aya_ebpf::{macros::map, maps::HashMap};

use crate::entry::Field;

/// Whether a hook is skipped, and how many of its calls have been.
#[repr(C)]
pub struct Skip {
    is_on: Field<u64>,
    skipped: Field<u64>,
}

/// The hooks that are skipped now or have been, by `net_latency_common::hook_key`.
#[map]
static SKIPS: HashMap<u32, Skip> = HashMap::with_max_entries(64, 0);

/// Whether this call of the hook is to be skipped.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn is_skipped(hook: u32) -> u32 {
    let Some(skip) = SKIPS.get_ptr(hook) else { return 0 };
    // SAFETY: tests remove no entry, and what changes are fields.
    let skip = unsafe { &*skip };
    if skip.is_on.get() == 0 {
        return 0;
    }
    skip.skipped.set(skip.skipped.get() + 1);
    1
}

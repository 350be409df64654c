//! Read-only globals that the user side fills before loading. Their map is frozen, so that the
//! verifier knows every value (`bpf_map_direct_read`, Linux 5.5): an offset is a constant and a
//! branch that a setting switches off is no code at all.

use net_latency_common::Offsets;

/// Field offsets of the running kernel.
#[unsafe(no_mangle)]
pub static OFFSETS: Offsets = ZERO_OFFSETS;

// SAFETY: all fields are integers.
const ZERO_OFFSETS: Offsets = unsafe { core::mem::zeroed() };

/// The value that a field of such a global has when the program runs; hence volatile, since it is not
/// the one in this object.
#[inline(always)]
pub(crate) fn constant<T: Copy>(field: &'static T) -> T {
    // SAFETY: a reference is readable, and nothing writes to these statics.
    unsafe { core::ptr::read_volatile(field) }
}

/// The offset named by an `Offsets` field.
macro_rules! offset {
    ($field:ident) => {
        $crate::kernel::offsets::constant(&$crate::kernel::offsets::OFFSETS.$field) as usize
    };
}
pub(crate) use offset;

//! Read-only globals, which the user side fills before loading: what only some programs read, and not for each packet. Their map is
//! frozen, so that the verifier knows every value (`bpf_map_direct_read`, Linux 5.5): it is a constant, and a branch that it switches
//! off is no code at all.

/// The value that a field of such a global has when the program runs; hence volatile, since it is not
/// the one in this object.
#[inline(always)]
pub(crate) fn constant<T: Copy>(field: &'static T) -> T {
    // SAFETY: a reference is readable, and nothing writes to these statics.
    unsafe { core::ptr::read_volatile(field) }
}

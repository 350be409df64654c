//! Fields of maps' entries.
//!
//! A program and what interrupts it, two programs on two CPUs, and two functions of one program reach the same entry. So
//! nobody has it by a `&mut`: it is shared, and its fields change in place.

use core::cell::UnsafeCell;

/// A field that changes while others have a reference to its entry.
#[repr(transparent)]
pub(crate) struct Field<T>(UnsafeCell<T>);

// SAFETY: entries are shared between CPUs by their nature. Either one program at a time has an entry (a socket's, by the
// socket's lock; a thread's; a CPU's), or any value of its fields, which are integers, serves: see where the map is.
unsafe impl<T: Copy> Sync for Field<T> {}

impl<T: Copy> Field<T> {
    /// A field of a new entry.
    #[inline(always)]
    pub(crate) const fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    /// The value that it has now.
    #[inline(always)]
    pub(crate) fn get(&self) -> T {
        // SAFETY: a reference is readable, and no reference to the value itself is ever given away.
        unsafe { *self.0.get() }
    }

    /// Gives it another value.
    #[inline(always)]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: as in `get`; maps' entries are writable.
        unsafe { *self.0.get() = value }
    }
}

/// Adds one to a count of this CPU, a word in a map's entry. In one instruction, since a softirq or another task may run
/// between a read and a write: a count that is lost would be a packet that is nowhere. The target has no atomics in
/// `core` that are stable.
#[inline(always)]
pub(crate) fn increment(count: *mut u64) {
    add(count, 1);
}

/// Adds `more`, in the same way.
#[inline(always)]
pub(crate) fn add(count: *mut u64, more: u64) {
    // SAFETY: aligned, and mapped while a program runs.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("lock *(u64 *)({count} + 0) += {more}", count = in(reg) count, more = in(reg) more, options(nostack));
    }
    // Where this is only checked.
    // SAFETY: as above.
    #[cfg(not(target_arch = "bpf"))]
    unsafe {
        *count += more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_changes_under_two_references() {
        let field = Field::new(1_u32);
        let (one, other) = (&field, &field);
        one.set(2);
        assert_eq!(other.get(), 2);
    }

    #[test]
    fn counts_add_up() {
        let mut count = 40;
        increment(&raw mut count);
        add(&raw mut count, 1);
        assert_eq!(count, 42);
    }
}

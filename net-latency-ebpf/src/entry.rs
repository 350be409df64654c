//! Fields of maps' entries.
//!
//! A program and what interrupts it, two programs on two CPUs, and two functions of one program reach the same entry. So
//! nobody has it by a `&mut`: it is shared, and its fields change in place.

use core::{cell::UnsafeCell, mem::MaybeUninit};

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

/// A table of so many entries, a power of two, in the object's own memory (`.bss`): the address of an entry is reckoned, where an
/// array's is looked up. All zeroes at first.
///
/// Not for what is larger than a MiB: to fill it before the start, Linux 5.10 wants memory in one piece for it (`kmalloc` in
/// `map_update_elem`).
///
/// `no_mangle`, as all that is in `.bss`: else LLVM makes it smaller than its type, or in parts, and the kernel refuses the BTF.
#[repr(transparent)]
pub(crate) struct Own<T, const ENTRIES: usize>(UnsafeCell<[T; ENTRIES]>);

// SAFETY: as of `Field`; entries are given by pointer only.
unsafe impl<T, const ENTRIES: usize> Sync for Own<T, ENTRIES> {}

impl<T, const ENTRIES: usize> Own<T, ENTRIES> {
    /// # Safety
    /// All zeroes are a `T`.
    pub(crate) const unsafe fn zeroed() -> Self {
        const { assert!(ENTRIES.is_power_of_two() && ENTRIES * size_of::<T>() <= 1 << 20, "see above") };
        // SAFETY: as the caller says.
        Self(UnsafeCell::new(unsafe { MaybeUninit::zeroed().assume_init() }))
    }

    /// The entry of this number, of which the lower bits count.
    #[inline(always)]
    pub(crate) fn at(&'static self, number: u64) -> *mut T {
        let table = self.0.get().cast::<T>();
        // In one piece: the verifier of Linux 5.10 forgets how large a number can be that the compiler keeps on the stack.
        #[cfg(target_arch = "bpf")]
        {
            let mut entry = number;
            // SAFETY: changes the register only.
            unsafe {
                core::arch::asm!(
                    "{0} &= {mask}",
                    "{0} *= {size}",
                    "{0} += {1}",
                    inout(reg) entry,
                    in(reg) table,
                    mask = const ENTRIES - 1,
                    size = const size_of::<T>(),
                    options(nomem, nostack, pure),
                );
            }
            entry as *mut T
        }
        // SAFETY: within the table.
        #[cfg(not(target_arch = "bpf"))]
        unsafe {
            table.add(number as usize & (ENTRIES - 1))
        }
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

/// Adds `more` to a count of 32 bits, in the same way.
#[inline(always)]
pub(crate) fn add_to_half(count: *mut u32, more: u32) {
    // SAFETY: as in `add`.
    #[cfg(target_arch = "bpf")]
    unsafe {
        core::arch::asm!("lock *(u32 *)({count} + 0) += {more}", count = in(reg) count, more = in(wreg) more, options(nostack));
    }
    // SAFETY: as in `add`.
    #[cfg(not(target_arch = "bpf"))]
    unsafe {
        *count = (*count).wrapping_add(more);
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

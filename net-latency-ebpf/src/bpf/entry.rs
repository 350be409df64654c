//! Fields of maps' entries.
//!
//! A program and what interrupts it, two programs on two CPUs, and two functions of one program reach the same entry. So there is never a
//! `&mut` of it: it is shared, and its fields change in place.

use core::cell::UnsafeCell;
#[cfg(target_arch = "bpf")]
use core::mem::MaybeUninit;

#[cfg(test)]
use super::host::order;

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
        #[cfg(test)]
        if order::is_running() {
            return order::load(self.0.get());
        }
        // SAFETY: a reference is readable, and no reference to the value itself is ever given away.
        unsafe { *self.0.get() }
    }

    /// Where it is, for [`add`] and for what keeps memory in order.
    #[cfg(any(feature = "connections", feature = "packets"))]
    #[inline(always)]
    pub(crate) fn address(&self) -> *mut T {
        self.0.get()
    }

    /// Gives it another value.
    #[inline(always)]
    pub(crate) fn set(&self, value: T) {
        // SAFETY: as in `get`; maps' entries are writable.
        unsafe { *self.0.get() = value }
        #[cfg(test)]
        order::wrote(self.0.get());
    }
}

/// A variable in the object's own memory (`.bss`), all zeroes at first.
#[repr(transparent)]
pub(crate) struct Global<T: 'static>(Own<Field<T>, 1>);

impl<T: Copy> Global<T> {
    /// # Safety
    /// All zeroes are a `T`.
    pub(crate) const unsafe fn zeroed() -> Self {
        // SAFETY: as the caller says.
        Self(unsafe { Own::zeroed() })
    }

    /// The value that it has now.
    #[inline(always)]
    pub(crate) fn get(&'static self) -> T {
        // SAFETY: mapped while a program runs; what changes is a field.
        unsafe { (*self.0.first()).get() }
    }

    /// Gives it another value.
    #[inline(always)]
    pub(crate) fn set(&'static self, value: T) {
        // SAFETY: as above.
        unsafe { (*self.0.first()).set(value) }
    }
}

/// A table of N entries, a power of two, in the object's own memory (`.bss`): the address of an entry is computed, where an array's is
/// looked up. All zeroes at first.
///
/// Not for more than a MiB: to fill it before the start, Linux 5.10 wants memory in one piece for it (`kmalloc` in `map_update_elem`).
///
/// `no_mangle`, as all that is in `.bss`: else LLVM makes it smaller than its type, or in parts, and the kernel refuses the BTF.
#[repr(transparent)]
pub(crate) struct Own<T: 'static, const ENTRIES: usize>(
    #[cfg(target_arch = "bpf")] UnsafeCell<[T; ENTRIES]>,
    #[cfg(not(target_arch = "bpf"))] super::Table<T>,
);

// SAFETY: as of `Field`; entries are given by pointer only.
unsafe impl<T, const ENTRIES: usize> Sync for Own<T, ENTRIES> {}

impl<T, const ENTRIES: usize> Own<T, ENTRIES> {
    const IS_GOOD: () =
        assert!(ENTRIES.is_power_of_two() && ENTRIES * size_of::<T>() <= 1 << 20, "see above");

    /// # Safety
    /// All zeroes are a `T`.
    pub(crate) const unsafe fn zeroed() -> Self {
        const { Self::IS_GOOD };
        #[cfg(target_arch = "bpf")]
        // SAFETY: as the caller says.
        return Self(UnsafeCell::new(unsafe { MaybeUninit::zeroed().assume_init() }));
        #[cfg(not(target_arch = "bpf"))]
        Self(super::Table::new())
    }

    #[cfg(target_arch = "bpf")]
    #[inline(always)]
    fn first(&'static self) -> *mut T {
        self.0.get().cast()
    }

    #[cfg(not(target_arch = "bpf"))]
    fn first(&'static self) -> *mut T {
        self.0.at(0, ENTRIES)
    }

    /// The entry of this number, of which the lower bits count.
    #[inline(always)]
    pub(crate) fn at(&'static self, number: u64) -> *mut T {
        // In one piece: the verifier of Linux 5.10 forgets how large a number can be that the compiler keeps on the stack.
        #[cfg(target_arch = "bpf")]
        {
            let table = self.first();
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
        #[cfg(not(target_arch = "bpf"))]
        self.0.at(number as usize & (ENTRIES - 1), ENTRIES)
    }

    /// Entries that were looked at: all others are zeroes.
    #[cfg(test)]
    pub(crate) fn touched(&'static self) -> impl Iterator<Item = *mut T> {
        self.0.touched(ENTRIES).into_iter().map(|(_, entry)| entry)
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
        *count = (*count).wrapping_add(more);
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

//! Where the fields of the kernel's structs lie, which the user side writes into the instructions before it loads them ([`Place`]).

#[cfg(target_arch = "bpf")]
use core::{arch::asm, hint::assert_unchecked, mem::transmute_copy};

#[cfg(target_arch = "bpf")]
use net_latency_common::Place;

#[cfg(not(target_arch = "bpf"))]
use crate::bpf::host;

/// Where a field of a struct lies.
pub trait At: Copy {
    /// The offset as a number.
    fn value(self) -> u32;

    /// The address of the field, of a struct at `base`.
    fn of(self, base: *const u8) -> *const u8;

    /// The field, of a struct at `base`, by a plain load.
    ///
    /// # Safety
    /// The verifier knows `base` as a pointer to the struct, and the field is a `T`, of which any bits are valid.
    unsafe fn load<T: Copy>(self, base: *const u8) -> T;

    /// Loads the field from a copy on the stack.
    ///
    /// # Safety
    /// There are a `T`'s bytes, of which any are valid.
    #[inline(always)]
    unsafe fn load_copied<T: Copy>(self, base: *const u8) -> T {
        // SAFETY: as the caller says. The kernel's memory and a program's are read by the same instruction.
        #[cfg(target_arch = "bpf")]
        return unsafe { self.load(base) };
        // SAFETY: as the caller says.
        #[cfg(not(target_arch = "bpf"))]
        unsafe {
            self.of(base).cast::<T>().read_unaligned()
        }
    }
}

/// The offset that is `FIELD` bytes within [`net_latency_common::Offsets`], and `BEHIND` bytes more.
#[derive(Clone, Copy)]
pub struct Offset<const FIELD: usize, const BEHIND: usize = 0>;

impl<const FIELD: usize> Offset<FIELD> {
    /// The offset N bytes behind the field's beginning.
    #[inline(always)]
    pub(crate) fn behind<const BYTES: usize>(self) -> Offset<FIELD, BYTES> {
        Offset
    }
}

#[cfg(target_arch = "bpf")]
impl<const FIELD: usize, const BEHIND: usize> Offset<FIELD, BEHIND> {
    const PLACE: Place = Place::of_field(FIELD, BEHIND);
}

#[cfg(target_arch = "bpf")]
impl<const FIELD: usize, const BEHIND: usize> At for Offset<FIELD, BEHIND> {
    #[inline(always)]
    fn value(self) -> u32 {
        let value;
        // SAFETY: sets the register only.
        unsafe {
            asm!("{0} = {1}", lateout(wreg) value, const Self::PLACE.in_immediate(), options(nomem, nostack, pure));
        }
        value
    }

    #[inline(always)]
    fn of(self, base: *const u8) -> *const u8 {
        let mut address = base;
        // SAFETY: changes the register only.
        unsafe {
            asm!("{0} += {1}", inout(reg) address, const Self::PLACE.in_immediate(), options(nomem, nostack, pure));
        }
        address
    }

    #[inline(always)]
    unsafe fn load<T: Copy>(self, base: *const u8) -> T {
        const { assert!(matches!(size_of::<T>(), 1 | 2 | 4 | 8), "no load has that size") };
        // Neither `pure` nor `nomem`: as volatile loads, they are as many as the code has, and in that order.
        macro_rules! load {
            ($load:literal) => {{
                let value: u64;
                asm!($load, lateout(reg) value, in(reg) base, const Self::PLACE.in_load(), options(nostack, readonly));
                value
            }};
        }
        // SAFETY: the verifier proves the access; see the trait. A load of fewer than 64 bits makes the others 0, and the first bytes
        // of a word are its lowest bits.
        unsafe {
            let value = match size_of::<T>() {
                1 => load!("{0} = *(u8 *)({1} + {2})"),
                2 => load!("{0} = *(u16 *)({1} + {2})"),
                4 => load!("{0} = *(u32 *)({1} + {2})"),
                _ => load!("{0} = *(u64 *)({1} + {2})"),
            };
            if size_of::<T>() < 8 {
                assert_unchecked(value >> (size_of::<T>() * 8 % 64) == 0);
            }
            transmute_copy(&value)
        }
    }
}

#[cfg(not(target_arch = "bpf"))]
impl<const FIELD: usize, const BEHIND: usize> At for Offset<FIELD, BEHIND> {
    fn value(self) -> u32 {
        host::offset(FIELD) + BEHIND as u32
    }

    fn of(self, base: *const u8) -> *const u8 {
        base.wrapping_add(self.value() as usize)
    }

    unsafe fn load<T: Copy>(self, base: *const u8) -> T {
        host::memory::read(self.of(base) as u64)
    }
}

/// The offset named by an `Offsets` field.
macro_rules! offset {
    ($field:ident) => {
        $crate::kernel::offsets::Offset::<{ core::mem::offset_of!(net_latency_common::Offsets, $field) }>
    };
}
pub(crate) use offset;

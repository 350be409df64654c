//! The two ways of reading kernel memory, so that one body of logic serves all program types.

use core::{marker::PhantomData, mem::MaybeUninit, ptr};

use super::offsets::{At, offset};
use crate::bpf::{read_kernel, tcp_sock};

/// A way of reading a field of a kernel struct.
pub trait Memory: Copy {
    /// Reads a field, a `T`, of a struct at `base`; all zero where the memory can't be read.
    ///
    /// # Safety
    /// `base` comes from the hook's arguments or from another read, and the struct has that field.
    unsafe fn read<T: Copy>(base: *const u8, at: impl At) -> T;

    /// Reads a value at any offset.
    ///
    /// # Safety
    /// As for [`Self::read`]; `offset` is from BTF.
    #[cfg(feature = "journey")]
    unsafe fn read_at<T: Copy>(base: *const u8, offset: usize) -> T;

    /// `sk` as a `struct tcp_sock`, null if it is none (a request or time-wait socket, or not TCP).
    ///
    /// # Safety
    /// `sk` points to a `struct sock_common`.
    unsafe fn tcp_sock(sk: *const u8) -> *const u8;

    /// `sk`, known to be a `struct tcp_sock`, as one.
    ///
    /// # Safety
    /// `sk` points to one.
    unsafe fn known_tcp_sock(sk: *const u8) -> *const u8;

    /// Copies what lies from a field on of a struct at `base`, where each read is a call: [`Near`]. Returns the address at which the
    /// struct would begin, were `room` a part of it.
    ///
    /// # Safety
    /// As of [`Self::read`].
    unsafe fn copy<const WORDS: usize>(room: &mut Room<WORDS>, base: *const u8, from: impl At) -> *const u8;

    /// Reads a field of the struct at `base`, whose copy is where [`Self::copy`] says.
    ///
    /// # Safety
    /// As of [`Self::read`], and `from` is what was copied from.
    unsafe fn read_near<T: Copy, const WORDS: usize>(
        base: *const u8,
        copy: *const u8,
        from: impl At,
        at: impl At,
    ) -> T;
}

/// Room for a copy.
pub(crate) type Room<const WORDS: usize> = MaybeUninit<[u64; WORDS]>;

/// The fields of a struct that lie near each other: `WORDS` words from that of `F` on, which is in the first. One call reads them where
/// each read is a call; those that lie elsewhere, on another kernel, are read by a call each.
pub(crate) struct Near<M, F, const WORDS: usize> {
    base: *const u8,
    copy: *const u8,
    from: F,
    memory: PhantomData<M>,
}

impl<M: Memory, F: At, const WORDS: usize> Near<M, F, WORDS> {
    /// Those of a struct at `base`. The room has them for as long as they are wanted.
    ///
    /// # Safety
    /// As of [`Memory::read`], for each field that is wanted; `room` lasts as long as what this returns.
    #[inline(always)]
    pub(crate) unsafe fn new(room: &mut Room<WORDS>, base: *const u8, from: F) -> Self {
        // SAFETY: as the caller says.
        Self { base, copy: unsafe { M::copy(room, base, from) }, from, memory: PhantomData }
    }

    /// A field.
    #[inline(always)]
    pub(crate) fn field<T: Copy>(&self, at: impl At) -> T {
        // SAFETY: as its maker says.
        unsafe { M::read_near::<T, WORDS>(self.base, self.copy, self.from, at) }
    }
}

/// Where a copy begins: words lie aligned in it.
#[inline(always)]
fn start(from: impl At) -> u64 {
    u64::from(from.value()) & !7
}

/// A number that a hook got as an argument.
#[derive(Clone, Copy)]
pub struct Number(u64);

impl Number {
    /// The argument, in the form in which hooks get all of theirs.
    #[inline(always)]
    #[must_use]
    pub fn new(argument: *const u8) -> Self {
        Self(argument as u64)
    }

    /// As the address of something.
    #[cfg(any(feature = "journey", feature = "packets"))]
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0
    }

    /// As a `size_t`, or `most` if it is more.
    #[inline(always)]
    pub(crate) fn at_most(self, most: u32) -> u32 {
        if self.0 > u64::from(most) { most } else { self.0 as u32 }
    }

    /// As an `int`.
    #[inline(always)]
    pub(crate) fn signed(self) -> i32 {
        self.0 as i32
    }
}

/// Plain loads, for programs whose arguments have BTF types (fentry, BTF tracepoints). The verifier
/// checks every access against the struct; the JIT handles faults (`BPF_PROBE_MEM`, Linux 5.5).
#[derive(Clone, Copy)]
pub struct Direct;

/// `bpf_probe_read_kernel` (Linux 5.5), for kprobes and raw tracepoints.
#[derive(Clone, Copy)]
pub struct Probed;

impl Memory for Direct {
    #[inline(always)]
    unsafe fn read<T: Copy>(base: *const u8, at: impl At) -> T {
        // SAFETY: see the trait; the verifier proves the access.
        unsafe { at.load(base) }
    }

    #[cfg(feature = "journey")]
    #[inline(always)]
    unsafe fn read_at<T: Copy>(base: *const u8, offset: usize) -> T {
        // SAFETY: the verifier proves the access; see the trait. Volatile, so that loads are neither
        // merged nor widened beyond the field.
        unsafe { ptr::read_volatile(base.add(offset).cast::<T>()) }
    }

    #[inline(always)]
    unsafe fn tcp_sock(sk: *const u8) -> *const u8 {
        // A load past the end of `struct sock` needs the larger type.
        // SAFETY: as the caller says.
        unsafe { tcp_sock(sk) }
    }

    #[inline(always)]
    unsafe fn known_tcp_sock(sk: *const u8) -> *const u8 {
        // SAFETY: as the caller says. The verifier does not know it.
        unsafe { Self::tcp_sock(sk) }
    }

    #[inline(always)]
    unsafe fn copy<const WORDS: usize>(_: &mut Room<WORDS>, base: *const u8, _: impl At) -> *const u8 {
        base
    }

    #[inline(always)]
    unsafe fn read_near<T: Copy, const WORDS: usize>(
        base: *const u8,
        _: *const u8,
        _: impl At,
        at: impl At,
    ) -> T {
        // SAFETY: see the trait.
        unsafe { Self::read(base, at) }
    }
}

impl Memory for Probed {
    #[inline(always)]
    unsafe fn read<T: Copy>(base: *const u8, at: impl At) -> T {
        // SAFETY: the caller says that the struct has that field.
        unsafe { probe(at.of(base)) }
    }

    #[cfg(feature = "journey")]
    #[inline(always)]
    unsafe fn read_at<T: Copy>(base: *const u8, offset: usize) -> T {
        // SAFETY: the caller says that base and offset belong together.
        unsafe { probe(base.wrapping_add(offset)) }
    }

    #[inline(always)]
    unsafe fn tcp_sock(sk: *const u8) -> *const u8 {
        // TCP_TIME_WAIT and TCP_NEW_SYN_RECV are the states of the small socket structs
        // (`sk_fullsock` in include/net/sock.h).
        const SMALL: u32 = 1 << 6 | 1 << 12;
        // SAFETY: the caller says that this is a socket.
        let state: u8 = unsafe { Self::read(sk, offset!(sock_skc_state)) };
        if SMALL & (1u32.wrapping_shl(u32::from(state))) != 0 { ptr::null() } else { sk }
    }

    #[inline(always)]
    unsafe fn known_tcp_sock(sk: *const u8) -> *const u8 {
        sk
    }

    #[inline(always)]
    unsafe fn copy<const WORDS: usize>(room: &mut Room<WORDS>, base: *const u8, from: impl At) -> *const u8 {
        let start = start(from) as usize;
        let copy = room.as_mut_ptr().cast::<u8>();
        // SAFETY: there is room for that; on a fault the helper fills it with zeroes.
        unsafe {
            read_kernel(copy, size_of::<Room<WORDS>>() as u32, base.wrapping_add(start));
        }
        // The verifier prohibits subtraction from an address on the stack, and allows the addition of a negative number.
        copy.wrapping_add(below_zero(start as u64) as usize)
    }

    #[inline(always)]
    unsafe fn read_near<T: Copy, const WORDS: usize>(
        base: *const u8,
        copy: *const u8,
        from: impl At,
        at: impl At,
    ) -> T {
        // Constants, to the verifier too.
        let behind = u64::from(at.value()).wrapping_sub(start(from));
        if behind <= (size_of::<Room<WORDS>>() - size_of::<T>()) as u64 {
            // SAFETY: within the copy, and aligned as in the struct.
            unsafe { at.load_copied(copy) }
        } else {
            // SAFETY: see the trait.
            unsafe { Self::read(base, at) }
        }
    }
}

/// Reads a `T` at any kernel address, such as packet data, which has no BTF type; zero where it can't.
///
/// # Safety
/// Every bit pattern is a valid `T`. The address may be any: the helper survives a fault.
#[inline(always)]
pub(crate) unsafe fn probe<T: Copy>(address: *const u8) -> T {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the destination has room for a `T`; on a fault the helper fills it with zeroes.
    unsafe {
        read_kernel(value.as_mut_ptr().cast(), size_of::<T>() as u32, address);
        value.assume_init()
    }
}

/// An address, which the verifier may know as a pointer, as a number to calculate with.
#[inline(always)]
pub(crate) fn number(address: u64) -> u64 {
    // The verifier lets a user who may see addresses negate a pointer, and forgets that it was one (`check_alu_op`); all other arithmetic
    // with pointers to kernel structs it prohibits.
    negated(address).wrapping_neg()
}

/// 1 unless the number is 0. The compiler must make no branch of it, which the verifier would follow both ways: so it does not see the
/// shift.
#[inline(always)]
pub(crate) fn is_nonzero(number: u64) -> u64 {
    let top = number | negated(number);
    #[cfg(target_arch = "bpf")]
    {
        let mut bit = top;
        // SAFETY: changes the register only.
        unsafe { core::arch::asm!("{0} >>= 63", inout(reg) bit, options(nomem, nostack, pure)) };
        bit
    }
    #[cfg(not(target_arch = "bpf"))]
    {
        top >> (u64::BITS - 1)
    }
}

/// The number, hidden from the compiler: what a loop computes from it is computed there, each time anew, and not kept on the stack.
#[cfg(feature = "names")]
#[inline(always)]
pub(crate) fn hidden(number: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut hidden = number;
        // SAFETY: no instruction at all.
        unsafe { core::arch::asm!("/* {0} */", inout(reg) hidden, options(nomem, nostack)) };
        hidden
    }
    #[cfg(not(target_arch = "bpf"))]
    number
}

/// The number, hidden from the compiler where it is compared and used. An instruction, unlike [`hidden`]: otherwise one place in the code
/// would have two source lines, which the kernel refuses (`check_btf_line`).
#[cfg(feature = "hist")]
#[inline(always)]
pub(crate) fn as_it_is(number: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut same = number;
        // SAFETY: changes nothing.
        unsafe { core::arch::asm!("{0} = {0}", inout(reg) same, options(nomem, nostack, pure)) };
        same
    }
    #[cfg(not(target_arch = "bpf"))]
    number
}

/// The negative of a number that the verifier knows, which it then knows too, and of which the compiler knows nothing.
#[inline(always)]
fn below_zero(number: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let below;
        // SAFETY: sets the register only.
        unsafe {
            core::arch::asm!("{0} = 0", "{0} -= {1}", out(reg) below, in(reg) number, options(nomem, nostack, pure));
        }
        below
    }
    #[cfg(not(target_arch = "bpf"))]
    number.wrapping_neg()
}

/// A number's negative, in a way that neither the compiler nor the verifier can see through.
#[inline(always)]
fn negated(number: u64) -> u64 {
    #[cfg(target_arch = "bpf")]
    {
        let mut negated = number;
        // SAFETY: changes the register only.
        unsafe { core::arch::asm!("{0} = -{0}", inout(reg) negated, options(nomem, nostack, pure)) };
        negated
    }
    #[cfg(not(target_arch = "bpf"))]
    number.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::Number;

    #[test]
    fn a_size_is_at_most_what_is_of_use() {
        let sizes = [0, 4, 5, 6, usize::MAX].map(|size| Number::new(size as *const u8).at_most(5));
        assert_eq!(sizes, [0, 4, 5, 5, 5]);
    }
}

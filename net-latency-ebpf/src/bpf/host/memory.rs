//! The kernel's memory: slabs, from which a test takes objects, and which give an address again as soon as its object is freed, the last
//! first, as SLUB does.
use core::ptr;
use std::{cell::RefCell, vec::Vec};

use super::{Machine, local};

/// Where memory begins: in the direct mapping of x86-64 kernels.
const START: u64 = 0xffff_8881_0000_0000;

/// What each slab takes of the memory.
const SLAB: u64 = 1 << 16;

struct Memory {
    bytes: Vec<u8>,
    slabs: Vec<Slab>,
}

/// Objects of one size.
struct Slab {
    size: u64,
    /// Bytes of those that were ever taken.
    used: u64,
    free: Vec<u64>,
}

std::thread_local! {
    static MEMORY: RefCell<Memory> = const { RefCell::new(Memory { bytes: Vec::new(), slabs: Vec::new() }) };
}

/// Memory for objects of N bytes each. Returns its number.
pub fn slab(size: u64) -> usize {
    local(&MEMORY, |memory| {
        memory.slabs.push(Slab { size: size.next_multiple_of(64), used: 0, free: Vec::new() });
        let bytes = memory.slabs.len() * SLAB as usize;
        if memory.bytes.len() < bytes {
            memory.bytes.resize(bytes, 0);
        }
        memory.slabs.len() - 1
    })
}

/// Takes an object of a slab. It has in it what its last owner left there.
///
/// # Panics
/// If the slab has no more.
pub fn take(slab: usize) -> u64 {
    local(&MEMORY, |memory| {
        let of = &mut memory.slabs[slab];
        of.free.pop().unwrap_or_else(|| {
            assert!(of.used + of.size <= SLAB, "slab {slab} has no more");
            of.used += of.size;
            START + slab as u64 * SLAB + of.used - of.size
        })
    })
}

/// Frees an object.
pub fn free(address: u64) {
    local(&MEMORY, |memory| memory.slabs[((address - START) / SLAB) as usize].free.push(address));
}

impl Memory {
    /// The bytes there, which are an object's.
    #[inline]
    fn object(&mut self, address: u64, len: usize) -> &mut [u8] {
        let at = (address - START) as usize;
        let used = self.slabs[at / SLAB as usize].used as usize;
        assert!(at % SLAB as usize + len <= used, "an object that was taken");
        &mut self.bytes[at..at + len]
    }
}

/// Writes a value.
///
/// # Panics
/// If there is no such memory.
#[inline]
pub fn write<T: Copy>(address: u64, value: T) {
    local(&MEMORY, |memory| {
        let bytes = memory.object(address, size_of::<T>());
        // SAFETY: there is room for it, at any alignment.
        unsafe { bytes.as_mut_ptr().cast::<T>().write_unaligned(value) };
    });
}

/// Writes zeroes. Panics likewise.
#[cfg(test)]
pub(crate) fn clear(address: u64, len: u32) {
    local(&MEMORY, |memory| memory.object(address, len as usize).fill(0));
}

/// Copies bytes from one object to another. Panics likewise.
#[cfg(test)]
pub(crate) fn copy(from: u64, to: u64, len: u32) {
    local(&MEMORY, |memory| {
        let bytes = memory.object(from, len as usize).to_vec();
        memory.object(to, len as usize).copy_from_slice(&bytes);
    });
}

/// Reads a value; zeroes where there is no memory. Any bytes have to be one.
#[must_use]
#[inline]
pub fn read<T: Copy>(address: u64) -> T {
    let mut value = core::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: there is room for it, and it is written.
    unsafe {
        read_kernel(value.as_mut_ptr().cast(), size_of::<T>() as u32, address as *const u8);
        value.assume_init()
    }
}

pub(super) fn reset() {
    local(&MEMORY, |memory| {
        let Memory { bytes, slabs } = memory;
        // Only objects are written to.
        for (slab, start) in slabs.drain(..).zip((0..).step_by(SLAB as usize)) {
            bytes[start..start + slab.used as usize].fill(0);
        }
    });
}

#[inline]
pub(crate) unsafe fn read_kernel(to: *mut u8, len: u32, from: *const u8) {
    let len = len as usize;
    local(&MEMORY, |memory| {
        let at = (from as u64).wrapping_sub(START) as usize;
        let bytes = at.checked_add(len).and_then(|end| memory.bytes.get(at..end));
        // SAFETY: the caller has room for `len` bytes.
        unsafe {
            match bytes {
                Some(bytes) => ptr::copy_nonoverlapping(bytes.as_ptr(), to, len),
                None => ptr::write_bytes(to, 0, len),
            }
        }
    });
}

pub(crate) unsafe fn read_kernel_str(to: *mut u8, len: u32, from: *const u8) {
    for at in 0..len as usize {
        let byte = if at + 1 == len as usize { 0 } else { read::<u8>(from as u64 + at as u64) };
        // SAFETY: the caller has room for `len` bytes.
        unsafe { to.add(at).write(byte) };
        if byte == 0 {
            break;
        }
    }
}

/// As `bpf_skc_to_tcp_sock` does: a full socket, of TCP.
pub(crate) unsafe fn tcp_sock(sk: *const u8) -> *const u8 {
    // `TCP_TIME_WAIT` and `TCP_NEW_SYN_RECV`.
    const SMALL: u32 = 1 << 6 | 1 << 12;
    const TCP: u16 = 6;
    let (state, protocol) =
        Machine::with(|machine| (machine.offsets.sock_skc_state, machine.offsets.sock_sk_protocol));
    let state: u8 = read(sk as u64 + u64::from(state));
    let protocol: u16 = read(sk as u64 + u64::from(protocol));
    let is_full = 1_u32.checked_shl(state.into()).is_some_and(|bit| bit & SMALL == 0);
    if is_full && protocol == TCP { sk } else { ptr::null() }
}

//! The kernel's ring buffer (kernel/bpf/ringbuf.c), read where it is: nothing is copied. A record stays until it is released, with all
//! before it.
//!
//! aya's reader lends one record at a time and releases it before the next. Records have to be put in order first, so each
//! would have to be copied.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    sync::atomic::{AtomicU32, AtomicUsize, Ordering},
};

use anyhow::{Result, ensure};
use rustix::{
    mm::{MapFlags, ProtFlags, mmap, munmap},
    param::page_size,
};

/// In front of each record: its length with the two bits below, and a word that is not for us.
const HEADER: usize = 8;
/// Its program still writes it (`BPF_RINGBUF_BUSY_BIT`).
const BUSY: u32 = 1 << 31;
/// Its program has given it up (`BPF_RINGBUF_DISCARD_BIT`).
const DISCARDED: u32 = 1 << 30;

/// Where a record is, counted from the first that was ever written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position(usize);

/// The ring buffer. Records are of one size.
pub(super) struct Buffer {
    map: OwnedFd,
    /// How far all is released, which the kernel reads.
    released: Mapping,
    /// A page with how far the kernel has written, and then what it has written, twice in a row: no record is torn at the end.
    written: Mapping,
    /// Where that begins.
    records: NonNull<u8>,
    /// One less than the bytes that the kernel has for records, a power of two.
    mask: usize,
    /// Bytes of a record.
    size: usize,
    /// How far we have read.
    next: usize,
    /// How far the kernel had written when we last looked.
    end: usize,
}

impl Buffer {
    /// Maps a ring buffer of `bytes`, whose records have `size` bytes each, a multiple of 8.
    ///
    /// # Errors
    /// If the kernel refuses to.
    pub(super) fn map(map: OwnedFd, bytes: usize, size: usize) -> io::Result<Self> {
        let page = page_size();
        let released = Mapping::new(map.as_fd(), 0, page, ProtFlags::READ | ProtFlags::WRITE)?;
        let written = Mapping::new(map.as_fd(), page, page + 2 * bytes, ProtFlags::READ)?;
        // SAFETY: the mapping goes on behind its first page.
        let records = unsafe { written.start.add(page) };
        assert!(bytes.is_power_of_two() && size.is_multiple_of(8) && size + HEADER <= bytes);
        let next = released.position().load(Ordering::Relaxed);
        Ok(Self { map, released, written, records, mask: bytes - 1, size, next, end: next })
    }

    /// The next record, if there is one and its program has written it.
    ///
    /// # Errors
    /// If it has another size than all.
    #[inline]
    pub(super) fn read(&mut self) -> Result<Option<Position>> {
        loop {
            if self.is_read() {
                self.end = self.written.position().load(Ordering::Acquire);
                if self.is_read() {
                    return Ok(None);
                }
            }
            let position = Position(self.next);
            // SAFETY: the kernel has written a header here, which is aligned as all of them are, and changes it only as a whole.
            let header = unsafe { AtomicU32::from_ptr(self.at(self.next).cast().as_ptr()) };
            // What its program has written before it was done is seen too.
            let header = header.load(Ordering::Acquire);
            if header as usize == self.size {
                self.next += HEADER + self.size;
                return Ok(Some(position));
            }
            if header & BUSY != 0 {
                return Ok(None);
            }
            ensure!(header & DISCARDED != 0, "the kernel side sent a record of {header} bytes");
            self.next += HEADER + ((header ^ DISCARDED) as usize).next_multiple_of(8);
        }
    }

    /// Where a record is that was read and not released yet: as many bytes as one has, aligned to 8.
    #[inline]
    pub(super) fn record(&self, Position(position): Position) -> NonNull<u8> {
        debug_assert!(self.is_kept(position));
        self.at(position + HEADER)
    }

    /// Whether all is read that the kernel had written when we last looked.
    #[inline]
    pub(super) fn is_read(&self) -> bool {
        self.next == self.end
    }

    /// Where the next is that will be read.
    pub(super) fn next_position(&self) -> Position {
        Position(self.next)
    }

    /// Gives the room of all that was read before `position` back to the kernel.
    pub(super) fn release(&mut self, Position(position): Position) {
        debug_assert!(position == self.next || self.is_kept(position));
        // The kernel looks at it before it writes there, so that all we have read is read by then.
        self.released.position().store(position, Ordering::Release);
    }

    fn is_kept(&self, position: usize) -> bool {
        let released = self.released.position().load(Ordering::Relaxed);
        position.wrapping_sub(released) < self.next.wrapping_sub(released)
    }

    #[inline]
    fn at(&self, position: usize) -> NonNull<u8> {
        // SAFETY: within the mapping, by the mask; a record that begins there ends before its end, since all is there twice.
        unsafe { self.records.add(position & self.mask) }
    }
}

impl AsFd for Buffer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

// SAFETY: `records` is in one of its mappings.
unsafe impl Send for Buffer {}

/// A part of a file in memory.
struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is memory of its own, and what others write there is read as atomics or after they are done.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(file: BorrowedFd<'_>, from: usize, bytes: usize, protection: ProtFlags) -> io::Result<Self> {
        // SAFETY: the kernel chooses a place where nothing is.
        let start = unsafe { mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, file, from as u64)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, bytes })
    }

    /// The position that its first page begins with.
    #[inline]
    fn position(&self) -> &AtomicUsize {
        // SAFETY: a page is aligned and has room for it; it is read and written as a whole everywhere.
        unsafe { AtomicUsize::from_ptr(self.start.cast().as_ptr()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: there is no reference to it any more. That this fails is not to be expected, and would only cost memory.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt as _};

    use net_latency_common::PacketRecord;

    use super::*;

    const BYTES: usize = 1 << 16;
    const SIZE: usize = size_of::<PacketRecord>();

    /// The kernel's part, in a file.
    struct Kernel {
        file: File,
        written: usize,
    }

    impl Kernel {
        fn new() -> Self {
            let file = tempfile::tempfile().expect("a temporary file");
            file.set_len((2 * page_size() + 2 * BYTES) as u64).expect("it can be made longer");
            Self { file, written: 0 }
        }

        fn buffer(&self) -> Buffer {
            let file = self.file.try_clone().expect("a descriptor");
            Buffer::map(file.into(), BYTES, SIZE).expect("a file can be mapped")
        }

        fn put(&self, offset: usize, bytes: &[u8]) {
            self.file.write_all_at(bytes, offset as u64).expect("it can be written");
        }

        /// Writes a record, all of this byte, with these bits in its header, and says where.
        fn write(&mut self, bits: u32, length: usize, byte: u8) -> usize {
            let at = self.written;
            let header = u64::from(bits | length as u32).to_ne_bytes();
            let bytes = header.into_iter().chain(vec![byte; length]);
            for (place, byte) in bytes.enumerate() {
                let offset = (at + place) % BYTES;
                for copy in [0, BYTES] {
                    self.put(2 * page_size() + copy + offset, &[byte]);
                }
            }
            self.written += (HEADER + length).next_multiple_of(8);
            self.put(page_size(), &self.written.to_ne_bytes());
            at
        }

        fn released(&self) -> usize {
            let mut bytes = [0; size_of::<usize>()];
            self.file.read_exact_at(&mut bytes, 0).expect("it can be read");
            usize::from_ne_bytes(bytes)
        }
    }

    fn bytes(buffer: &Buffer, position: Position) -> &[u8] {
        // SAFETY: it was read and is not released.
        unsafe { std::slice::from_raw_parts(buffer.record(position).as_ptr(), SIZE) }
    }

    #[test]
    fn what_is_read_stays_until_it_is_released() {
        let mut kernel = Kernel::new();
        let mut buffer = kernel.buffer();
        assert_eq!(buffer.read().expect("nothing is wrong"), None);
        kernel.write(0, SIZE, 1);
        kernel.write(DISCARDED, 37, 9);
        kernel.write(0, SIZE, 2);
        let mut read = || buffer.read().expect("nothing is wrong");
        let [Some(first), Some(second), None] = [read(), read(), read()] else { panic!("two records") };
        assert_eq!(bytes(&buffer, first), [1; SIZE]);
        assert_eq!(bytes(&buffer, second), [2; SIZE]);
        assert_eq!(kernel.released(), 0);
        buffer.release(second);
        assert_eq!(kernel.released(), HEADER + SIZE + 48);
        assert_eq!(bytes(&buffer, second), [2; SIZE]);
        buffer.release(buffer.next_position());
        assert_eq!(kernel.released(), kernel.written);
    }

    #[test]
    fn one_that_is_still_being_written_is_waited_for() {
        let mut kernel = Kernel::new();
        let mut buffer = kernel.buffer();
        let busy = kernel.write(BUSY, SIZE, 1);
        kernel.write(0, SIZE, 2);
        assert_eq!(buffer.read().expect("nothing is wrong"), None);
        kernel.put(2 * page_size() + busy, &(SIZE as u32).to_ne_bytes());
        let read = [(); 3].map(|()| buffer.read().expect("nothing is wrong"));
        assert_eq!(read.iter().flatten().count(), 2);
    }

    #[test]
    fn no_record_is_torn_at_the_end() {
        let mut kernel = Kernel::new();
        let mut buffer = kernel.buffer();
        for turn in 0..2 * BYTES / SIZE {
            kernel.write(0, SIZE, turn as u8);
            let position = buffer.read().expect("nothing is wrong").expect("a record");
            assert_eq!(bytes(&buffer, position), [turn as u8; SIZE]);
            buffer.release(buffer.next_position());
        }
    }

    #[test]
    fn another_size_is_an_error() {
        let mut kernel = Kernel::new();
        let mut buffer = kernel.buffer();
        kernel.write(0, SIZE + 8, 1);
        assert!(buffer.read().is_err());
    }
}

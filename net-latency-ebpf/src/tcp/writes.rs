//! Write calls whose bytes are not all sent, and segments that are sent again.

use net_latency_common::hook_key;

use crate::{
    bpf::{LruHashMap, entry::Field, map},
    kernel::{sequence::before, task::Task},
    skips,
};

/// A write call of a socket, or a segment, by the number of its first byte.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct WriteKey {
    socket: u64,
    seq: u32,
    reserved: u32,
}

/// A write call.
#[repr(C)]
pub(crate) struct Write {
    /// When the application called, ns. 0 where another call waited in the kernel meanwhile: some of the bytes may be that one's.
    pub(super) at: Field<u64>,
    /// The task that called.
    pub(super) task: Field<Task>,
    /// Where the following write call starts, if `has_next`; else where this one's bytes end, or later: what comes behind is of a
    /// call that was not seen.
    pub(super) next: Field<u32>,
    /// Whether there was a following call.
    pub(super) has_next: Field<u32>,
}

/// A segment that was sent again.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Resent {
    /// When it was sent last: no other segment of this socket was sent then. Written before `first`, and read behind it.
    pub(super) last: u64,
    /// When it was first sent, ns.
    pub(super) first: u64,
}

/// Write calls whose bytes wait behind other unsent bytes. Evicts: app-tcp is unknown until all is sent.
#[map]
pub(super) static WRITES: LruHashMap<WriteKey, Write> = LruHashMap::with_max_entries(16384, 0);

/// Segments that were sent more than once. Evicts: the age of the first send is unknown.
#[map]
pub(super) static RESENT: LruHashMap<WriteKey, Resent> = LruHashMap::with_max_entries(4096, 0);

impl WriteKey {
    /// What begins with the byte `seq` of the socket at this address.
    #[inline(always)]
    pub(super) fn new(socket: u64, seq: u32) -> Self {
        Self { socket, seq, reserved: 0 }
    }
}

impl Write {
    /// A call after which there was no other, and which ends before this byte.
    #[inline(always)]
    pub(super) fn new(at: u64, task: Task, end: u32) -> Self {
        Self { at: Field::new(at), task: Field::new(task), next: Field::new(end), has_next: Field::new(0) }
    }

    /// Becomes a call after which there was no other, and which ends before this byte.
    #[inline(always)]
    pub(super) fn set(&self, at: u64, task: Task, end: u32) {
        self.at.set(at);
        self.task.set(task);
        self.next.set(end);
        self.has_next.set(0);
    }

    /// Whether it was alone, and has written all that it was to if the next byte is this one.
    #[inline(always)]
    pub(super) fn is_through(&self, next: u32) -> bool {
        self.has_next.get() == 0 && self.next.get() == next && self.at.get() != 0
    }

    /// Becomes the call that begins with `key`, and takes it out of the map; false if it isn't there.
    #[inline(always)]
    pub(super) fn become_next(&self, key: &WriteKey) -> bool {
        let Some(next) = WRITES.get_ptr(key) else { return false };
        // SAFETY: both are entries of maps, mapped while a program runs; the socket's lock keeps others away. All of a call
        // is fields, which change in place.
        unsafe { core::ptr::copy_nonoverlapping(next, (&raw const *self).cast_mut(), 1) };
        skips::evict(const { hook_key("writes::evicted") }, &WRITES, key);
        // One that was evicted meanwhile may have been another by the time that it was copied.
        WRITES.remove(key).is_ok()
    }

    /// The call that begins with `start` follows this one, or one that was not seen, if this one's bytes end before. Where the next one
    /// begins.
    #[inline(always)]
    pub(super) fn link(&self, start: u32) -> u32 {
        if !before(self.next.get(), start) {
            self.next.set(start);
        }
        self.has_next.set(1);
        self.next.get()
    }
}

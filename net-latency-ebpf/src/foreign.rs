//! Sockets that are left alone, since only processes that nobody asked for use them: under `--pid` most are. What a connection
//! receives is recognised by its headers, before anything is kept of it; what a socket sends, by its address.
//!
//! A plain array without locks: one connection in each slot. Another's in its place, or two mixed by two CPUs that write at the
//! same time, make a connection that is not recognised for a while, which then costs what it did before. By its socket, which
//! early demux finds, it could be recognised more cheaply, but not on loopback, where there is none (`ip_rcv_finish_core`).

use crate::{
    before,
    connection::Connection,
    filter,
    ingress::mix,
    maps::{FOREIGN, WANTED},
    memory::{Memory, number},
    socket::{Ends, Identity, Socket},
};

/// Slots of the array, as a power of two.
const SLOT_BITS: u32 = 12;
/// Slots of the array.
pub(crate) const SLOTS: u32 = 1 << SLOT_BITS;

/// Bytes that may be on their way through TCP where some wait for the socket's lock, or for others before them: more than that as
/// a rule. They are followed to their end, so that they are counted once.
const UNDER_WAY: u32 = 1 << 16;

/// A connection that is left alone.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Flow {
    addresses: u64,
    /// Remote and local port; 0 for none.
    ports: u32,
    netns: u32,
    /// Received bytes before this number are followed, unless all are left alone by now.
    from: u32,
    is_whole: u32,
}

/// A connection, told from others.
#[derive(Clone, Copy)]
pub(crate) struct Key {
    addresses: u64,
    ports: u32,
    netns: u32,
}

/// The slot of what is told by this number.
#[inline(always)]
fn slot(number: u64) -> u32 {
    // 2^64 divided by the golden ratio.
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    (number.wrapping_mul(SPREAD) >> (u64::BITS - SLOT_BITS)) as u32
}

/// A process that was asked for uses the socket at this address. That stays: the address may be another socket's later, or share
/// its slot, which then costs what it would without this.
#[inline(always)]
pub(crate) fn want(socket: u64) {
    if let Some(is_wanted) = WANTED.get_ptr_mut(slot(socket)) {
        // SAFETY: an array's entry, mapped while a program runs, to which all write the same.
        unsafe { *is_wanted = 1 };
    }
}

/// Whether nothing is to be shown of what the socket sends, as far as its address tells. A control packet may be before
/// there is a process that uses the socket.
#[inline(always)]
pub(crate) fn is_unwanted<M: Memory>(socket: Socket<M>) -> bool {
    if !filter::is_by_process() || filter::control() {
        return false;
    }
    let is_wanted = WANTED.get_ptr(slot(number(socket.address())));
    // SAFETY: as above.
    is_wanted.is_some_and(|is_wanted| unsafe { *is_wanted } == 0)
}

impl Key {
    #[inline(always)]
    pub(crate) fn new(ends: &Ends, remote_port: u16, local_port: u16, netns: u32) -> Self {
        Self { addresses: mix(ends), ports: u32::from(remote_port) << 16 | u32::from(local_port), netns }
    }

    #[inline(always)]
    pub(crate) fn of(connection: &Connection) -> Self {
        let identity = &connection.identity;
        Self::new(&connection.ends, identity.remote_port(), identity.local_port(), connection.netns)
    }

    /// The same, of a connection of which only the socket is at hand.
    #[inline(always)]
    pub(crate) fn of_socket<M: Memory>(socket: Socket<M>, identity: &Identity) -> Self {
        Self::new(&socket.ends(), identity.remote_port(), identity.local_port(), socket.netns())
    }

    #[inline(always)]
    fn flow(self) -> Option<&'static mut Flow> {
        let flow = FOREIGN
            .get_ptr_mut(slot(self.addresses ^ u64::from(self.ports) << 16 ^ u64::from(self.netns)))?;
        // SAFETY: an array's entries are mapped while a program runs, and hold numbers that may be anything.
        Some(unsafe { &mut *flow })
    }

    #[inline(always)]
    fn is(self, flow: &Flow) -> bool {
        flow.ports == self.ports && flow.addresses == self.addresses && flow.netns == self.netns
    }

    /// Whether nothing that the connection receives is followed.
    #[inline(always)]
    pub(crate) fn is_left_alone(self) -> bool {
        self.flow().is_some_and(|flow| self.is(flow) && flow.is_whole != 0)
    }

    /// Whether a received segment of this connection that starts there is left alone.
    #[inline(always)]
    pub(crate) fn leaves_alone(self, seq: u32) -> bool {
        let Some(flow) = self.flow() else { return false };
        self.is(flow) && (flow.is_whole != 0 || !before(seq, flow.from))
    }

    /// The connection is not left alone any more, or is no more.
    #[inline(always)]
    pub(crate) fn forget(self) {
        if let Some(flow) = self.flow()
            && self.is(flow)
        {
            flow.ports = 0;
        }
    }
}

/// A task that nobody asked for has read from the connection up to `copied`; TCP expects `expected` next, and `is_quiet` says
/// whether nothing behind that waits. Tells up to where its segments are followed; nothing if not at all.
#[inline(always)]
pub(crate) fn shun(
    connection: &mut Connection,
    copied: u32,
    expected: u32,
    is_quiet: impl FnOnce() -> bool,
) -> Option<u32> {
    let key = Key::of(connection);
    let Some(flow) = key.flow() else { return Some(copied) };
    if !key.is(flow) {
        flow.ports = 0;
        flow.addresses = key.addresses;
        flow.netns = key.netns;
        // Another CPU may have the next segment in hand already.
        flow.from = expected.wrapping_add(if is_quiet() { 1 } else { UNDER_WAY });
        flow.is_whole = 0;
        flow.ports = key.ports;
        if connection.is_left_alone != 0 {
            // Another connection has taken its place, and what came since was followed.
            connection.read_known = 0;
            connection.is_left_alone = 0;
        }
        return Some(copied);
    }
    if flow.is_whole != 0 {
        connection.is_left_alone = 1;
        return None;
    }
    if before(flow.from, copied) {
        flow.is_whole = 1;
        connection.is_left_alone = 1;
        return Some(flow.from);
    }
    Some(copied)
}

/// A task that was asked for uses the connection.
#[inline(always)]
pub(crate) fn welcome(connection: &mut Connection) {
    if connection.is_wanted != 0 {
        return;
    }
    connection.is_wanted = 1;
    want(connection.address);
    Key::of(connection).forget();
    if connection.is_left_alone != 0 {
        // What came meanwhile was not followed.
        connection.read_known = 0;
        connection.is_left_alone = 0;
    }
}

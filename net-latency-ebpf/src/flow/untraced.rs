//! Untraced flows: connections that only processes use that nobody asked for; under `--pid` most are. What such a connection
//! receives is recognised by its headers, before anything is kept of it; what a socket sends, by its address.
//!
//! A plain array without locks: one connection in each slot. Another's in its place, or two mixed by two CPUs that write at the
//! same time, make a connection that is not recognised for a while, which then costs what it did before. By its socket, which
//! early demux finds, it could be recognised more cheaply, but not on loopback, where there is none (`ip_rcv_finish_core`).

use aya_ebpf::{macros::map, maps::Array};

use super::{
    addresses::{AddrPair, SPREAD},
    filter,
};
use crate::{
    entry::Field,
    kernel::{
        memory::{Memory, number},
        sequence::before,
        socket::{Identity, Socket},
    },
};

/// Slots of the array, as a power of two.
const SLOT_BITS: u32 = 12;
/// Slots of the array.
const SLOTS: u32 = 1 << SLOT_BITS;

/// Flows that are untraced.
#[map]
static UNTRACED: Array<UntracedFlow> = Array::with_max_entries(SLOTS, 0);

/// Whether a process that was asked for has used a socket, by a hash of the socket's address.
#[map]
static TRACED_SOCKETS: Array<Field<u64>> = Array::with_max_entries(SLOTS, 0);

/// Bytes that may be in flight through TCP where some wait for the socket's lock, or for others before them: more than that as
/// a rule. They are followed to their end, so that they are counted once.
const IN_FLIGHT: u32 = 1 << 16;

/// A flow that is untraced. Its fields may be two flows', see the module's head: any values serve.
#[repr(C)]
pub struct UntracedFlow {
    addresses: Field<u64>,
    /// Remote and local port; 0 for none.
    ports: Field<u32>,
    netns: Field<u32>,
    /// Received bytes before this number are followed, unless all are untraced by now.
    from: Field<u32>,
    is_whole: Field<u32>,
}

/// A connection, told from others.
#[derive(Clone, Copy)]
pub(crate) struct FlowKey {
    addresses: u64,
    ports: u32,
    netns: u32,
}

/// What of a flow is untraced since a task that nobody asked for read from it.
#[derive(Clone, Copy)]
pub(crate) enum Extent {
    /// What comes later. If the flow was untraced before, another has taken its place meanwhile.
    Later,
    /// Nothing yet, or nothing that was read.
    Nothing,
    /// What comes from this number on.
    From(u32),
    /// All of it.
    All,
}

/// The slot of what is told by this number.
#[inline(always)]
fn slot(number: u64) -> u32 {
    (number.wrapping_mul(SPREAD) >> (u64::BITS - SLOT_BITS)) as u32
}

/// A process that was asked for uses the socket at this address. That stays: the address may be another socket's later, or share
/// its slot, which then costs what it would without this.
#[inline(always)]
pub(crate) fn mark_socket_traced(socket: u64) {
    if let Some(is_traced) = TRACED_SOCKETS.get(slot(socket)) {
        // All write the same.
        is_traced.set(1);
    }
}

/// Whether nothing is to be shown of what the socket sends, as far as its address tells. A control packet may be before
/// there is a process that uses the socket.
#[inline(always)]
pub(crate) fn is_socket_untraced<M: Memory>(socket: Socket<M>) -> bool {
    if !filter::is_by_process() || filter::control() {
        return false;
    }
    TRACED_SOCKETS.get(slot(number(socket.address()))).is_some_and(|is_traced| is_traced.get() == 0)
}

impl FlowKey {
    #[inline(always)]
    pub(crate) fn new(pair: &AddrPair, remote_port: u16, local_port: u16, netns: u32) -> Self {
        Self { addresses: pair.mixed(), ports: u32::from(remote_port) << 16 | u32::from(local_port), netns }
    }

    /// The same, of a connection of which only the socket is at hand.
    #[inline(always)]
    pub(crate) fn of_socket<M: Memory>(socket: Socket<M>, identity: &Identity) -> Self {
        let pair = AddrPair::of_socket(socket);
        Self::new(&pair, identity.remote_port(), identity.local_port(), socket.netns())
    }

    #[inline(always)]
    fn flow(self) -> Option<&'static UntracedFlow> {
        UNTRACED.get(slot(self.addresses ^ u64::from(self.ports) << 16 ^ u64::from(self.netns)))
    }

    #[inline(always)]
    fn is(self, flow: &UntracedFlow) -> bool {
        flow.ports.get() == self.ports
            && flow.addresses.get() == self.addresses
            && flow.netns.get() == self.netns
    }

    /// Whether nothing that the connection receives is followed.
    #[inline(always)]
    pub(crate) fn is_untraced(self) -> bool {
        self.flow().is_some_and(|flow| self.is(flow) && flow.is_whole.get() != 0)
    }

    /// Whether a received segment of this connection that starts there is untraced.
    #[inline(always)]
    pub(crate) fn is_untraced_at(self, seq: u32) -> bool {
        let Some(flow) = self.flow() else { return false };
        self.is(flow) && (flow.is_whole.get() != 0 || !before(seq, flow.from.get()))
    }

    /// The connection is traced, or is no more.
    #[inline(always)]
    pub(crate) fn mark_traced(self) {
        if let Some(flow) = self.flow()
            && self.is(flow)
        {
            flow.ports.set(0);
        }
    }

    /// A task that nobody asked for has read from the connection up to `copied`; TCP expects `expected` next, and `is_quiet` says
    /// whether nothing behind that waits.
    #[inline(always)]
    pub(crate) fn mark_untraced(self, copied: u32, expected: u32, is_quiet: impl FnOnce() -> bool) -> Extent {
        let Some(flow) = self.flow() else { return Extent::Nothing };
        if !self.is(flow) {
            flow.ports.set(0);
            flow.addresses.set(self.addresses);
            flow.netns.set(self.netns);
            // Another CPU may have the next segment in hand already.
            flow.from.set(expected.wrapping_add(if is_quiet() { 1 } else { IN_FLIGHT }));
            flow.is_whole.set(0);
            flow.ports.set(self.ports);
            return Extent::Later;
        }
        if flow.is_whole.get() != 0 {
            return Extent::All;
        }
        let from = flow.from.get();
        if before(from, copied) {
            flow.is_whole.set(1);
            return Extent::From(from);
        }
        Extent::Nothing
    }
}

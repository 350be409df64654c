//! Untraced flows: connections that only processes use that are not wanted; under `--pid` most are. What such a connection
//! receives is recognised by its headers, before anything is kept of it; what a socket sends, by its address.
//!
//! A plain table without locks: one connection in each slot. Another's in its place, or two mixed by two CPUs that write at the
//! same time, make a connection that is not recognised for a while, which then costs what it did before. By its socket, which
//! early demux finds, it could be recognised more cheaply, but not on loopback, where there is none (`ip_rcv_finish_core`).

use super::{
    addresses::{AddrPair, SPREAD},
    filter,
};
use crate::{
    bpf::entry::{Field, Own},
    kernel::{
        memory::{Memory, number},
        sequence::before,
        socket::{Identity, Socket},
    },
};

/// Slots of each table, as a power of two.
const SLOT_BITS: u32 = 12;
/// Slots of each table.
const SLOTS: usize = 1 << SLOT_BITS;

/// Flows that are untraced. When a slot is taken, the newer one stands: the other flow costs what it did before.
#[unsafe(no_mangle)]
// SAFETY: fields of integers.
static UNTRACED: Own<UntracedFlow, SLOTS> = unsafe { Own::zeroed() };

/// Whether a wanted process has used a socket, by a hash of the socket's address. Never full: sockets share a slot, and what
/// one sends is then followed because of the other.
#[unsafe(no_mangle)]
// SAFETY: as above.
static TRACED_SOCKETS: Own<Field<u64>, SLOTS> = unsafe { Own::zeroed() };

/// UDP sockets from which an unwanted task took last, as [`Receiver::word`] has them. When a slot is taken, the newer one
/// stands: the other socket costs what it did before.
#[unsafe(no_mangle)]
// SAFETY: as above.
static UNTRACED_RECEIVERS: Own<Field<u64>, SLOTS> = unsafe { Own::zeroed() };

/// For so long such a socket is untraced, as a power of two, ns: a second. Its address may be another one's by then.
const EPOCH_BITS: u32 = 30;
/// Bits of a socket's word that say in which of these times; the others tell it from other sockets of its slot.
const EPOCHS: u64 = (1 << 24) - 1;

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

/// What of a flow is untraced since an unwanted task read from it.
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

/// The slot for this number.
#[inline(always)]
fn slot(number: u64) -> u64 {
    number.wrapping_mul(SPREAD) >> (u64::BITS - SLOT_BITS)
}

/// Whether a wanted process has used a socket at this address, or another of its slot.
#[inline(always)]
fn traced_socket(socket: u64) -> &'static Field<u64> {
    // SAFETY: an entry of a table, mapped while a program runs; what changes is a field.
    unsafe { &*TRACED_SOCKETS.at(slot(socket)) }
}

/// A wanted process uses the socket at this address. That stays: the address may be another socket's later, or share
/// its slot, which then costs what it would without this.
#[inline(always)]
pub(crate) fn mark_socket_traced(socket: u64) {
    // All write the same.
    traced_socket(socket).set(1);
}

/// Whether a wanted process has used a socket of this slot.
#[inline(always)]
fn is_socket_traced(socket: u64) -> bool {
    traced_socket(socket).get() != 0
}

/// Whether nothing is to be shown of what the socket sends, as far as its address tells. A control packet may be before
/// there is a process that uses the socket.
#[inline(always)]
pub(crate) fn is_socket_untraced<M: Memory>(socket: Socket<M>) -> bool {
    if !filter::is_by_process() || filter::control() {
        return false;
    }
    traced_socket(number(socket.address())).get() == 0
}

/// A socket of UDP, told from others, and by port and namespace from most others that have had its address.
#[derive(Clone, Copy)]
pub(crate) struct Receiver {
    socket: u64,
    mixed: u64,
}

impl Receiver {
    #[inline(always)]
    pub(crate) fn new<M: Memory>(socket: Socket<M>) -> Self {
        Self::of(number(socket.address()), socket.local_port(), socket.net())
    }

    #[inline(always)]
    fn of(socket: u64, port: u16, net: u64) -> Self {
        let mixed = (socket.wrapping_mul(SPREAD) ^ u64::from(port) << 48 ^ net).wrapping_mul(SPREAD);
        Self { socket, mixed }
    }

    #[inline(always)]
    fn mark(self) -> &'static Field<u64> {
        // SAFETY: as in `traced_socket`.
        unsafe { &*UNTRACED_RECEIVERS.at(self.mixed >> (u64::BITS - SLOT_BITS)) }
    }

    /// The content of its slot while it is untraced: which socket, and until when. One word, since locks are not allowed here.
    #[inline(always)]
    fn word(self, now: u64) -> u64 {
        self.tag() | (now >> EPOCH_BITS) & EPOCHS
    }

    #[inline(always)]
    fn tag(self) -> u64 {
        self.mixed << SLOT_BITS & !EPOCHS
    }

    /// Whether nothing that it receives `now` is followed.
    #[inline(always)]
    pub(crate) fn is_untraced(self, now: u64) -> bool {
        self.mark().get() == self.word(now) && !is_socket_traced(self.socket)
    }

    /// Whether it was untraced at some time, so that what waits may not have been followed.
    #[inline(always)]
    pub(crate) fn was_untraced(self) -> bool {
        self.mark().get() & !EPOCHS == self.tag()
    }

    /// An unwanted task has taken from it.
    #[inline(always)]
    pub(crate) fn mark_untraced(self, now: u64) {
        self.mark().set(self.word(now));
    }

    /// A wanted task has taken from it: from now on all that it receives is followed.
    #[inline(always)]
    pub(crate) fn mark_traced(self) {
        mark_socket_traced(self.socket);
    }
}

impl FlowKey {
    #[inline(always)]
    pub(crate) fn new(pair: &AddrPair, remote_port: u16, local_port: u16, netns: u32) -> Self {
        Self { addresses: pair.mixed(), ports: u32::from(remote_port) << 16 | u32::from(local_port), netns }
    }

    /// The receiver of a connection of which only the socket is at hand.
    #[inline(always)]
    pub(crate) fn of_socket<M: Memory>(socket: Socket<M>, identity: &Identity) -> Self {
        let pair = AddrPair::of_socket(socket);
        Self::new(&pair, identity.remote_port(), identity.local_port(), socket.netns())
    }

    #[inline(always)]
    fn flow(self) -> &'static UntracedFlow {
        // SAFETY: as in `traced_socket`.
        unsafe { &*UNTRACED.at(slot(self.addresses ^ u64::from(self.ports) << 16 ^ u64::from(self.netns))) }
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
        let flow = self.flow();
        self.is(flow) && flow.is_whole.get() != 0
    }

    /// Whether a received segment of this connection whose last byte has this number is untraced. By its first one a segment could be followed
    /// of which others have read a part.
    #[inline(always)]
    pub(crate) fn is_untraced_at(self, seq: u32) -> bool {
        let flow = self.flow();
        self.is(flow) && (flow.is_whole.get() != 0 || !before(seq, flow.from.get()))
    }

    /// The connection is traced, or is no more.
    #[inline(always)]
    pub(crate) fn mark_traced(self) {
        let flow = self.flow();
        if self.is(flow) {
            flow.ports.set(0);
        }
    }

    /// An unwanted task has read from the connection up to `copied`; TCP expects `expected` next, and `is_quiet` says
    /// whether nothing behind that waits.
    #[inline(always)]
    pub(crate) fn mark_untraced(self, copied: u32, expected: u32, is_quiet: impl FnOnce() -> bool) -> Extent {
        let flow = self.flow();
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, vec::Vec};

    use super::*;
    use crate::bpf::host::Machine;

    const SOCKET: u64 = 0xffff_8881_0234_0000;
    const NET: u64 = 0xffff_8881_0001_2340;

    #[test]
    fn a_receiver_is_told_by_socket_port_and_namespace() {
        let told = |receiver: Receiver| (receiver.mixed >> (u64::BITS - SLOT_BITS), receiver.tag());
        let one = told(Receiver::of(SOCKET, 53, NET));
        for bit in 3..47 {
            assert_ne!(told(Receiver::of(SOCKET ^ 1 << bit, 53, NET)), one, "{bit}");
            assert_ne!(told(Receiver::of(SOCKET, 53, NET ^ 1 << bit)), one, "{bit}");
        }
        for bit in 0..16 {
            assert_ne!(told(Receiver::of(SOCKET, 53 ^ 1 << bit, NET)), one, "{bit}");
        }
    }

    /// Slot and tag have all of what tells it that there is room for.
    #[test]
    fn no_bit_of_a_receiver_is_lost_for_nothing() {
        let told = |mixed: u64| (mixed >> (u64::BITS - SLOT_BITS), Receiver { socket: 0, mixed }.tag());
        for bit in EPOCHS.count_ones() - SLOT_BITS..u64::BITS {
            assert_ne!(told(1 << bit), told(0), "{bit}");
        }
    }

    #[test]
    fn a_receivers_word_lasts_for_a_second() {
        let receiver = Receiver::of(SOCKET, 53, NET);
        let second = 1 << EPOCH_BITS;
        let now = 1_000 * second + 5;
        assert_eq!(receiver.word(now), receiver.word(now + second - 6));
        assert_ne!(receiver.word(now), receiver.word(now + second - 5));
        assert_ne!(receiver.word(now), receiver.word(now + (second << 20)));
    }

    #[test]
    fn sockets_and_flows_are_spread_over_their_tables() {
        Machine::reset();
        let slots: BTreeSet<u64> = (0..4096).map(|number| slot(SOCKET + number * 2432)).collect();
        assert!(slots.len() > SLOTS / 2 && slots.iter().all(|slot| *slot < SLOTS as u64), "{}", slots.len());
        // Each part of a flow alone tells it, whatever the others are.
        for of in [0, u64::MAX] {
            let parts: [fn(u64, u32) -> FlowKey; 4] = [
                |of, number| FlowKey {
                    addresses: of ^ u64::from(number),
                    ports: of as u32,
                    netns: of as u32,
                },
                |of, number| FlowKey { addresses: of, ports: number ^ of as u32, netns: of as u32 },
                |of, number| FlowKey { addresses: of, ports: number << 16 ^ of as u32, netns: of as u32 },
                |of, number| FlowKey { addresses: of, ports: of as u32, netns: number ^ of as u32 },
            ];
            for (part, key) in parts.into_iter().enumerate() {
                let flows = (0..4096).map(|number| &raw const *key(of, number).flow());
                let count = flows.collect::<BTreeSet<_>>().len();
                assert!(count > SLOTS / 2, "part {part}, others {of:x}: {count}");
            }
        }
    }

    #[test]
    fn a_receiver_is_untraced_until_a_second_or_a_task_ends_that() {
        Machine::reset();
        let second = 1 << EPOCH_BITS;
        let now = 1_000 * second + 5;
        let all: Vec<_> = (0..100).map(|number| Receiver::of(SOCKET + number * 1_536, 53, NET)).collect();
        assert!(!all.iter().any(|receiver| receiver.is_untraced(now) || receiver.was_untraced()));
        all.iter().for_each(|receiver| receiver.mark_untraced(now));
        // Two may have a slot in common.
        let untraced = |at| all.iter().filter(|receiver| receiver.is_untraced(at)).count();
        assert!(untraced(now) > 95);
        assert_eq!(untraced(now + second), 0);
        assert!(all.iter().filter(|receiver| receiver.was_untraced()).count() > 95);
        let one = all[99];
        assert!(one.is_untraced(now));
        one.mark_traced();
        assert!(!one.is_untraced(now) && one.was_untraced());
    }

    #[test]
    fn who_shares_a_slot_with_what_was_untraced_was_not() {
        Machine::reset();
        let one = Receiver::of(SOCKET, 53, NET);
        let others = (1..1 << 20).map(|number| Receiver::of(SOCKET + number * 64, 53, NET));
        let mut sharing = others.filter(|other| core::ptr::eq(other.mark(), one.mark()));
        let other = sharing.next().expect("one of many");
        one.mark_untraced(5);
        assert!(one.was_untraced() && !other.was_untraced() && !other.is_untraced(5));
    }
}

//! The state that is kept per TCP socket. Every hook that touches a connection runs under the socket's lock (by a task, or in softirq while
//! no task owns it), so that an entry needs no locking of its own; this also holds where softirqs are preemptible (PREEMPT_RT), and where a
//! per-CPU slot would not.

#[cfg(feature = "fine")]
use net_latency_common::Served;
use net_latency_common::{Counter, hook_key};

use super::writes::Write;
#[cfg(feature = "fine")]
use super::{
    holding::Holding,
    in_flight::{self, InFlight},
};
#[cfg(feature = "fine")]
use crate::{bpf::now, readers::Reading, service::Asked};
use crate::{
    bpf::{Array, LruHashMap, entry::Field, map},
    emit::counters,
    flow::{
        addresses::AddrPair,
        untraced::{self, Extent, FlowKey},
    },
    kernel::{
        arch,
        memory::{Memory, number},
        socket::{Identity, Socket},
        task::Task,
    },
    skips::entries,
    slots::{Slots, Table},
};

/// Pairs of slots, as a power of two.
const SLOT_BITS: u32 = 12;

/// TCP sockets in use, by address. A slot is its socket's until that is destroyed: another socket's lock would not keep a new owner from
/// its fields.
#[map]
static CONNECTION_SLOTS: Array<Slots<Connection>> = Array::with_max_entries(1 << SLOT_BITS, 0);

/// Sockets that found no slot. Evicts: the next packet starts it again.
#[map]
static CONNECTIONS: LruHashMap<u64, Connection> = LruHashMap::with_max_entries(entries(2048), 0);

const USED: Table<Connection, SLOT_BITS> = Table::new(&CONNECTION_SLOTS, &CONNECTIONS);

/// Whose bytes a sent packet holds.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Author {
    /// Not known.
    Unknown = 0,
    /// The task of `Connection::write`.
    Writer = 1,
    /// The last task that used the socket: kernel-made segments.
    User = 2,
}

/// The packet in flight from TCP to the device. There is one at most: nearly always the way is synchronous and the socket locked. A packet
/// that waits on the way, for its neighbour's address (`arp_queue`), a verdict (NFQUEUE) or its encryption, comes to the device without the
/// lock. So TCP's hook alone writes all fields but `ended` and `copy`, `skb` first and last, and the device's hook looks at `skb` again
/// when it has read the rest.
#[repr(C)]
pub(crate) struct Transmission {
    /// Address of its skb, which TCP has let go; 0 for none.
    pub(super) skb: Field<u64>,
    /// Address of a copy of that; when it was sent by TCP's own clock if it was cut into segments, which is no address and which these have
    /// too; 0 for neither.
    pub(super) copy: Field<u64>,
    /// The `transport` of the last one that is not in flight any more.
    pub(super) ended: Field<u64>,
    pub(super) app: Field<u64>,
    /// When TCP let it go.
    pub(super) transport: Field<u64>,
    /// For a retransmission: when these bytes were first sent, 0 where unknown.
    pub(super) first: Field<u64>,
    pub(super) seq: Field<u32>,
    pub(super) len: Field<u32>,
    pub(super) segs: Field<u16>,
    pub(super) flags: Field<u16>,
    pub(super) author: Field<Author>,
    /// For a segment that the kernel made: the ids of the task that was the last to use the socket.
    pub(super) user: Field<u64>,
    /// Why TCP had held its bytes back, a [`net_latency_common::Held`]; 0 if it didn't, or the reason is unknown.
    pub(super) held: Field<u16>,
    /// As a record has them.
    pub(super) dsacks: Field<u16>,
    pub(super) rtt: Field<u32>,
}

impl Transmission {
    /// Whether its skb is at this address.
    #[inline(always)]
    pub(super) fn is(&self, skb: u64) -> bool {
        // The skb that was cut is free, and its address may be another's.
        self.skb.get() == skb && !self.was_cut() || self.copy.get() == skb
    }

    /// The skb at this address, if it is this one, has got a copy. If another one has, and the copy has this one's address, this one ended
    /// where no hook saw it.
    #[inline(always)]
    pub(super) fn has_copy(&self, skb: u64, copy: u64) {
        if self.is(skb) {
            self.copy.set(copy);
        } else if self.of(copy).is_some() {
            self.lose();
        }
    }

    /// The skb at this address, if it is this one, was cut into segments. By TCP's own clock it was sent at that time. If it is another
    /// one, its segments may have this one's address, should this one have ended where no hook saw it.
    #[inline(always)]
    pub(super) fn is_cut(&self, skb: u64, sent_at: u64) {
        if self.is(skb) {
            // Addresses have the highest bit, and times don't.
            self.copy.set(sent_at & (u64::MAX >> 1));
        } else {
            self.lose();
        }
    }

    /// Whether it was cut into segments.
    #[inline(always)]
    pub(super) fn was_cut(&self) -> bool {
        self.copy.get() as i64 > 0
    }

    /// When TCP let the skb go that is at this address, if it is in flight.
    #[inline(always)]
    pub(super) fn of(&self, skb: u64) -> Option<u64> {
        // In this order: TCP's hook writes it after it has taken another skb's address away.
        let transport = self.transport.get();
        arch::in_order(self.skb.address());
        (self.is(skb) && self.ended.get() != transport).then_some(transport)
    }

    /// What is in flight has not come to a device, and is not followed any more.
    #[inline(always)]
    pub(super) fn give_up(&self) {
        if self.is_in_flight() {
            counters::one(Counter::OvertakenOut);
        }
    }

    /// Gives up what is in flight, on a connection that stays.
    #[inline(always)]
    fn lose(&self) {
        self.give_up();
        self.ended.set(self.transport.get());
    }

    /// Whether there is one.
    #[inline(always)]
    pub(super) fn is_in_flight(&self) -> bool {
        self.skb.get() != 0 && self.ended.get() != self.transport.get()
    }
}

/// One TCP socket.
#[repr(C)]
pub(crate) struct Connection {
    /// Address of the socket, which is a mere number here: a global function takes no pointers.
    pub(super) address: Field<u64>,
    pub(super) identity: Field<Identity>,
    pub(super) addresses: Field<AddrPair>,
    /// Inode number of the network namespace.
    pub(super) netns: Field<u32>,
    /// The last task that read or wrote.
    pub(super) user: Field<Task>,
    /// The write call that holds the next bytes to be sent for the first time, if `has_write`.
    pub(super) write: Write,
    /// Where it starts.
    pub(super) write_start: Field<u32>,
    /// Where the newest write call starts.
    pub(super) last_write: Field<u32>,
    /// Where that one's bytes end, or later: what comes behind is of a call that was not seen.
    pub(super) last_end: Field<u32>,
    pub(super) has_write: Field<u32>,
    /// Whether a call was evicted whose bytes are not all sent.
    pub(super) write_evicted: Field<u32>,
    /// Whether more than one process wrote to this socket.
    pub(super) several_writers: Field<u32>,
    pub(super) transmission: Transmission,
    /// When the bytes were first sent that TCP is about to send again, ns; 0 if it isn't, or that isn't known.
    pub(super) resent_first: Field<u64>,
    /// The number of the first of these bytes.
    pub(super) resent_seq: Field<u32>,
    /// Whether it has sent something again.
    pub(super) has_resent: Field<u32>,
    /// Sequence number at which the next segment starts that has no line yet, if `read_known`.
    pub(super) read_next: Field<u32>,
    pub(super) read_known: Field<u32>,
    /// Everything before this number the application took at `taken_at` or, before `late_until`, at
    /// `late_at`: then one run of a program was not enough for all lines of that call.
    pub(super) taken_until: Field<u32>,
    pub(super) late_until: Field<u32>,
    pub(super) taken_at: Field<u64>,
    pub(super) late_at: Field<u64>,
    pub(super) is_late: Field<u32>,
    /// The bytes of the skb from which the application took last, by their sequence numbers; none if it is gone.
    pub(super) skb_start: Field<u32>,
    pub(super) skb_end: Field<u32>,
    /// Whether the next to report what was taken does so when the buffers are gone.
    pub(super) reports_late: Field<u32>,
    /// Up to this number the skbs that are read follow each other: no bytes of one are in the one before.
    pub(super) sure_until: Field<u32>,
    /// What lies before this number and has no line yet was taken by calls that were not seen.
    pub(super) taken_from: Field<u32>,
    /// Whether a wanted process has used it.
    pub(super) is_traced: Field<u32>,
    /// Whether what it receives is untraced ([`crate::flow::untraced`]).
    pub(super) is_untraced: Field<u32>,
    /// What of [`Socket::drops`] is known, where drops are not seen.
    pub(super) drops: Field<u32>,
    /// What came by then, in units of 2^20 ns, may have been dropped unseen.
    pub(super) unproven_until: Field<u32>,
    /// Of MPTCP's socket: up to this number the writers of bytes are settled, known or unknown.
    pub(super) written_until: Field<u32>,
    pub(super) written_known: Field<u32>,
    /// Whether it has a slot, and so stays until its socket is destroyed: 0 in all that may be evicted.
    pub(super) stays: Field<u32>,
    #[cfg(feature = "fine")]
    pub(super) fine: Fine,
}

/// What fine stages take beside all else.
#[cfg(feature = "fine")]
#[repr(C)]
pub(super) struct Fine {
    /// All bytes before `read_next` had come by then, ns, if that is later than `unsure_until`.
    pub(super) complete_at: Field<u64>,
    /// Bytes before `read_next` came up to then, ns, at a time that was not seen.
    pub(super) unsure_until: Field<u64>,
    /// The reader at `taken_at`.
    pub(super) reading: Field<Reading>,
    pub(super) in_flight: InFlight,
    pub(super) holding: Holding,
    /// The reader of a request that has no answer yet.
    pub(super) asked: Asked,
    /// The number of an answer's first byte, and above it how far that is: [`WRITTEN`] or [`UNDER_WAY`]; 0 for none.
    answer: Field<u64>,
    /// What was done for it.
    served: Field<Served>,
}

/// It has not been sent.
#[cfg(feature = "fine")]
const WRITTEN: u64 = 1 << 32;
/// It is in the segment on its way to the device, which is the first one of its bytes.
#[cfg(feature = "fine")]
const UNDER_WAY: u64 = 2 << 32;

#[cfg(feature = "fine")]
impl Fine {
    /// The current thread calls at `at` to write, from this number on.
    ///
    /// Likewise a function with a stack of its own.
    #[inline(never)]
    pub(super) fn writes(&self, start: u32, at: u64) {
        let served = self.asked.answer(at);
        if served.all != 0 {
            // Before the rest: a segment that waits on its way may be about to read that.
            arch::write_in_order(self.answer.address(), WRITTEN | u64::from(start));
            self.served.set(served);
        }
    }

    /// TCP lets these bytes go, for the first time or again.
    #[inline(always)]
    pub(super) fn sends(&self, seq: u32, len: u32, is_first: bool) {
        let answer = self.answer.get();
        if answer & WRITTEN != 0 && is_first && (answer as u32).wrapping_sub(seq) < len {
            self.answer.set(answer ^ WRITTEN | UNDER_WAY);
        } else if answer & UNDER_WAY != 0 {
            self.answer.set(0);
        }
    }

    /// What was done for the answer that begins in these bytes, which are on their way. Nothing is said of one that still waits there, for
    /// its neighbour's address or a verdict, when the next answer is begun.
    #[inline(always)]
    pub(super) fn served(&self, seq: u32, len: u32) -> Served {
        let answer = self.answer.get();
        if answer & UNDER_WAY == 0 || (answer as u32).wrapping_sub(seq) >= len {
            return Served::NONE;
        }
        let served = self.served.get();
        arch::read_before(self.answer.address());
        if self.answer.get() == answer { served } else { Served::NONE }
    }
}

/// A connection about which nothing is known. A global, because a program's stack has no room for it
/// beside all else; of words, because fields that change would make a map of it that can be written to.
#[unsafe(no_mangle)]
static BLANK: [u64; size_of::<Connection>() / 8] = [0; size_of::<Connection>() / 8];

const _: () = assert!(size_of::<Connection>().is_multiple_of(8), "a connection is whole words");

#[inline(always)]
fn blank() -> &'static Connection {
    // SAFETY: same size and alignment; all of a connection is integers and enums that have a 0. Nothing writes to it.
    unsafe { &*(&raw const BLANK).cast() }
}

impl Connection {
    /// Whether this is still the entry of the socket at `address`: it has a slot, or was not evicted meanwhile.
    #[inline(always)]
    pub(super) fn is_of(&self, address: u64) -> bool {
        self.stays.get() != 0 || connection_has_spilled(address) != 0
    }

    /// A hook is done with what is known of the socket at `address`. If that was evicted meanwhile, some of what was written may be
    /// another socket's by now, which begins anew.
    #[inline(always)]
    pub(super) fn settle(&self, address: u64) {
        if !self.is_of(address) {
            self.identity.set(Identity::NOBODY);
        }
    }

    /// The socket got its other end within the write call; that call's first byte has the number `seq`.
    #[inline(always)]
    pub(super) fn connected<M: Memory>(&self, socket: Socket<M>, identity: Identity, seq: u32) {
        self.identity.set(identity);
        self.addresses.set(AddrPair::of_socket(socket));
        let moved = seq.wrapping_sub(self.write_start.get());
        self.write.next.set(self.write.next.get().wrapping_add(moved));
        self.last_end.set(self.write.next.get());
        self.write_start.set(seq);
        self.last_write.set(seq);
    }

    /// Bytes were read from it: by the current thread, or else by the kernel while that was interrupted.
    ///
    /// A function with a stack of its own, which is free again before there is a line.
    #[cfg(feature = "fine")]
    #[inline(never)]
    pub(super) fn read(&self, is_by_thread: bool) {
        let identity = self.identity.get();
        self.fine.asked.read(now(), is_by_thread, identity.local_port(), identity.remote_port());
    }

    /// What tells the connection from others among the flows that are untraced.
    #[inline(always)]
    pub(super) fn flow_key(&self) -> FlowKey {
        let identity = self.identity.get();
        FlowKey::new(&self.addresses.get(), identity.remote_port(), identity.local_port(), self.netns.get())
    }

    /// A wanted task uses the connection.
    #[inline(always)]
    pub(super) fn mark_traced(&self) {
        if self.is_traced.get() != 0 {
            return;
        }
        self.is_traced.set(1);
        untraced::mark_socket_traced(self.address.get());
        self.flow_key().mark_traced();
        self.forget_gap();
    }

    /// An unwanted task has read from the connection up to `copied`: see [`FlowKey::mark_untraced`]. Tells up to
    /// where its segments are followed; nothing if not at all.
    #[inline(always)]
    pub(super) fn mark_untraced(
        &self,
        copied: u32,
        expected: u32,
        is_quiet: impl FnOnce() -> bool,
    ) -> Option<u32> {
        match self.flow_key().mark_untraced(copied, expected, is_quiet) {
            Extent::Later => {
                self.forget_gap();
                Some(copied)
            }
            Extent::Nothing => Some(copied),
            Extent::From(from) => {
                self.is_untraced.set(1);
                Some(from)
            }
            Extent::All => {
                self.is_untraced.set(1);
                None
            }
        }
    }

    /// What came while the connection was untraced was not followed.
    #[inline(always)]
    fn forget_gap(&self) {
        if self.is_untraced.get() != 0 {
            self.read_known.set(0);
            self.is_untraced.set(0);
        }
    }
}

/// The connection at the address of `socket`, whichever life of that address it belongs to.
#[inline(always)]
pub(super) fn find<M: Memory>(socket: Socket<M>) -> Option<&'static Connection> {
    at(number(socket.address()))
}

/// The connection of this socket, if it has one and is traced.
#[cfg(feature = "fine")]
#[inline(always)]
pub(super) fn traced<M: Memory>(socket: Socket<M>) -> Option<&'static Connection> {
    if untraced::is_socket_untraced(socket) {
        return None;
    }
    let connection = find(socket)?;
    // Another life of that address has other numbers.
    (connection.identity.get() == socket.identity()).then_some(connection)
}

/// The connection of the socket at `address`.
#[inline(always)]
pub(super) fn at(address: u64) -> Option<&'static Connection> {
    let connection = USED.peek(address)?;
    // SAFETY: entries are preallocated and never unmapped while a program runs; the socket's lock keeps
    // others away (see the module's head), and what changes are fields.
    Some(unsafe { &*connection })
}

/// The connection of the socket with this identity; an older life of its address is forgotten.
#[inline(always)]
pub(super) fn find_or_new<M: Memory>(
    socket: Socket<M>,
    identity: Identity,
) -> Result<&'static Connection, Counter> {
    let address = number(socket.address());
    if let Some(connection) = at(address)
        && connection.identity.get() == identity
    {
        return Ok(connection);
    }
    #[cfg(feature = "fine")]
    if let Some(connection) = at(address) {
        in_flight::give_up(connection);
    }
    begin(address);
    let connection = at(address).ok_or(Counter::SocketLost)?;
    connection.identity.set(identity);
    connection.addresses.set(AddrPair::of_socket(socket));
    connection.netns.set(socket.netns());
    Ok(connection)
}

/// The connection of the socket at `address` becomes one about which nothing is known, and is there if there is room.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn begin(address: u64) -> u32 {
    if let Some(connection) = at(address) {
        connection.transmission.give_up();
        // SAFETY: as in `at`, and all of a connection is fields.
        unsafe { core::ptr::copy_nonoverlapping(blank(), (&raw const *connection).cast_mut(), 1) };
    } else {
        USED.put(address, blank());
    }
    if let Some(connection) = at(address) {
        connection.address.set(address);
        connection.stays.set(u32::from(USED.has_slot(address)));
    }
    0
}

/// Whether the connection of the socket at `address`, which had no slot, has not been evicted meanwhile. Likewise.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn connection_has_spilled(address: u64) -> u32 {
    USED.has_spilled(address, const { hook_key("connection::evicted") }).into()
}

/// Forgets a socket that the kernel destroys.
#[inline(always)]
pub(super) fn remove<M: Memory>(socket: Socket<M>) {
    USED.forget(number(socket.address()));
}

/// How many connections have a packet in flight.
#[cfg(test)]
pub(crate) fn in_flight_packets() -> u64 {
    let all = USED.entries();
    // SAFETY: entries, which no program writes to now.
    all.into_iter().filter(|entry| unsafe { (**entry).transmission.is_in_flight() }).count() as u64
}

#[cfg(all(test, feature = "fine"))]
mod tests {
    use super::*;
    use crate::bpf::host::order::{self, Barrier, explore, race};

    #[test]
    fn what_was_done_goes_with_the_first_bytes_of_the_answer_alone() {
        // SAFETY: integers and enums that have a 0.
        let connection: Connection = unsafe { core::mem::zeroed() };
        let fine = &connection.fine;
        let served = Served::of(9, 5, 4, 1);
        fine.answer.set(WRITTEN | 1_000);
        fine.served.set(served);
        let send = |seq: u32, is_first: bool| {
            fine.sends(seq, 200, is_first);
            fine.served(seq, 200)
        };
        // What was written before it, and bytes that are sent again.
        assert_eq!([send(700, true), send(900, false)], [Served::NONE; 2]);
        assert_eq!(send(900, true), served);
        // A line of other bytes.
        assert_eq!(fine.served(1_100, 200), Served::NONE);
        assert_eq!([send(900, false), send(900, true), send(1_100, true)], [Served::NONE; 3]);
        // The next answer is begun while the first one waits on its way.
        fine.answer.set(WRITTEN | 1_000);
        fine.sends(900, 200, true);
        fine.answer.set(WRITTEN | 1_100);
        assert_eq!(fine.served(900, 200), Served::NONE);
        assert_eq!(send(1_100, true), served);
    }

    /// The next answer is begun and sent while the first one waits on its way.
    #[test]
    fn what_was_done_is_the_first_answers_or_unknown() {
        explore(&[(Barrier::Write, "another's"), (Barrier::ReadBefore, "another's")], || {
            // SAFETY: as above.
            let connection: Connection = unsafe { core::mem::zeroed() };
            let connection: &Connection = std::boxed::Box::leak(std::boxed::Box::new(connection));
            let fine = &connection.fine;
            let first = Served::of(9, 5, 4, 1);
            fine.answer.set(UNDER_WAY | 1_000);
            fine.served.set(first);
            // By the kernel itself: nothing is known of who will have answered.
            connection.read(false);
            order::share(fine.answer.address());
            order::share(fine.served.address());
            let write = || {
                fine.writes(1_100, 7);
                fine.sends(1_100, 200, true);
            };
            race(write, || {
                assert!([Served::NONE, first].contains(&fine.served(900, 200)), "another's");
            });
        });
    }
}

//! The truth about packets that go out: who wrote their bytes, and what became of them.

use std::vec::Vec;

use super::held;
use crate::lives::truth::Ends;

/// A sender of one packet at a time, as far as the kernel side knows: a socket's life of TCP, a thread of UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lives) enum Source {
    Socket(usize),
    Thread(u64),
}

/// A packet that its transport let go.
#[derive(Clone, Debug)]
pub(in crate::lives) struct Packet {
    pub(in crate::lives) protocol: u8,
    pub(in crate::lives) ends: Ends,
    pub(in crate::lives) source: Source,
    /// Of TCP: the position of its first byte.
    pub(in crate::lives) start: u64,
    pub(in crate::lives) len: u32,
    pub(in crate::lives) segs: u16,
    pub(in crate::lives) flags: u16,
    pub(in crate::lives) mark: u32,
    /// When TCP sent its first byte first, as the kernel noted it.
    pub(in crate::lives) first: u64,
    pub(in crate::lives) rtt: u32,
    pub(in crate::lives) dsacks: u16,
    /// The call that wrote its first byte.
    pub(in crate::lives) app: Option<usize>,
    /// For one that the kernel made: the tasks to which it may belong.
    pub(in crate::lives) users: Vec<u64>,
    /// Its skb, and the last copy of it that anything saw being made; 0 for none.
    pub(in crate::lives) skb: u64,
    pub(in crate::lives) copy: u64,
    /// The first of the segments that it was cut into, likewise.
    pub(in crate::lives) segment: u64,
    /// The skbs of it that have IP's stamp.
    pub(in crate::lives) stamped: Vec<u64>,
    /// Whether its skb is not freed yet.
    pub(in crate::lives) is_alive: bool,
    /// Whether it has been seen to wait, of a datagram: it is followed by its skb since.
    pub(in crate::lives) is_parked: bool,
    /// Whether nothing that ends it has been seen.
    pub(in crate::lives) flies: bool,
    /// Whether it has to have a line, with IP's stamp, with the time of its write call.
    pub(in crate::lives) is_due: bool,
    pub(in crate::lives) has_ip: bool,
    pub(in crate::lives) has_app: bool,
    pub(in crate::lives) lines: u32,
    /// Whether a tunnel has wrapped it up.
    pub(in crate::lives) is_wrapped: bool,
    /// Pieces of it that no driver has got yet, a bit for each, if it was cut up.
    pub(in crate::lives) pieces: u32,
    /// Whether a driver has got it, or a copy of it.
    pub(in crate::lives) is_out: bool,
    /// Whether an skb of it was dropped.
    pub(in crate::lives) is_dropped: bool,
}

impl Packet {
    /// One that nothing has happened to yet.
    pub(in crate::lives) const fn new(protocol: u8, ends: Ends, source: Source) -> Self {
        Self {
            protocol,
            ends,
            source,
            start: 0,
            len: 0,
            segs: 1,
            flags: 0,
            mark: 0,
            first: 0,
            rtt: 0,
            dsacks: 0,
            app: None,
            users: Vec::new(),
            skb: 0,
            copy: 0,
            segment: 0,
            stamped: Vec::new(),
            is_alive: true,
            is_parked: false,
            flies: true,
            is_due: false,
            has_ip: false,
            has_app: false,
            lines: 0,
            is_wrapped: false,
            pieces: 0,
            is_out: false,
            is_dropped: false,
        }
    }

    /// An skb of it is freed.
    pub(in crate::lives) fn is_free(&mut self, skb: u64) {
        const NONE: u64 = 1;
        if self.skb == skb {
            self.is_alive = false;
        }
        if self.segment == skb {
            self.segment = NONE;
        }
    }
}

/// Bytes that a write call has put into a stream.
#[derive(Clone, Copy, Debug)]
pub(in crate::lives) struct Write {
    pub(in crate::lives) socket: usize,
    pub(in crate::lives) start: u64,
    pub(in crate::lives) end: u64,
    pub(in crate::lives) call: usize,
}

/// A driver's work on what came to its queue: the calls by which it came there, and by which the driver got and was done with its first
/// segment. And whether that device has no queue.
#[derive(Clone, Copy, Debug)]
pub(in crate::lives) struct Driven {
    pub(in crate::lives) queued: usize,
    pub(in crate::lives) started: usize,
    pub(in crate::lives) finished: Option<usize>,
    pub(in crate::lives) is_unqueued: bool,
}

/// All that was true of what went out.
#[derive(Default)]
pub(in crate::lives) struct Out {
    pub(in crate::lives) packets: Vec<Packet>,
    pub(in crate::lives) writes: Vec<Write>,
    /// What each one sent last, as long as it may be in flight.
    newest: Vec<(Source, usize)>,
    /// Calls of the device's hook, and on which device.
    pub(in crate::lives) devices: Vec<(usize, u32)>,
    pub(in crate::lives) driven: Vec<Driven>,
    /// ACKs: of which socket's life, of all bytes before which position, and the call that saw it first.
    pub(in crate::lives) acks: Vec<(usize, u64, usize)>,
    /// Calls that saw an ACK while the peer took nothing: of which socket's life.
    pub(in crate::lives) closed: Vec<(usize, usize)>,
    /// Why sockets' bytes were held back, in the order of time.
    pub(in crate::lives) held: Vec<held::Change>,
    /// Packets that `SeenOut` should count.
    pub(in crate::lives) seen: u64,
    /// Whether tables may have had no room.
    pub(in crate::lives) is_limited: bool,
}

impl Out {
    /// The call that wrote this byte.
    pub(in crate::lives) fn writer(&self, socket: usize, at: u64) -> Option<usize> {
        let write = |write: &&Write| write.socket == socket && (write.start..write.end).contains(&at);
        self.writes.iter().find(write).map(|write| write.call)
    }

    /// A sender goes on: with this packet, or with none.
    pub(in crate::lives) fn goes_on(&mut self, source: Source, packet: Option<usize>) {
        self.newest.retain(|(other, _)| *other != source);
        self.newest.extend(packet.map(|packet| (source, packet)));
    }

    pub(in crate::lives) fn is_newest(&self, packet: usize) -> bool {
        self.newest.contains(&(self.packets[packet].source, packet))
    }
}

//! UDP, both ways.
//!
//! In: every socket that a datagram is for gets an skb of its own on its queue (the packet's, a clone for
//! each further multicast receiver, or one of the segments of what GRO merged), and that skb is what the
//! receive call consumes. So a datagram is followed by its skb's address from the queue on.
//!
//! Out: the way from the write call to the device is synchronous and several threads may go it on one socket
//! at the same time, so that a datagram is followed by its thread.

use aya_ebpf::bindings::BPF_NOEXIST;
use net_latency_common::{Counter, DATAGRAM_SIZE, Direction, FLAG_GRO, IPPROTO_UDP, PacketRecord};

use crate::{
    Outcome, count,
    emit::{addresses, cpu, emit},
    filter, foreign,
    ingress::take_arrival,
    maps::{DATAGRAMS, RECEIVING, SENDS},
    memory::{Memory, Number, number},
    now, passing,
    skb::Skb,
    socket::{Ends, Socket},
    task::Task,
};

/// The packet that `udp_rcv` works on, until its skb, or those made of it, are on their sockets' queues. That
/// is synchronous, with softirqs off on this CPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Receiving {
    skb: u64,
    /// `skb->head`: the same in clones.
    head: u64,
    drv: u64,
    ip: u64,
    transport: u64,
    /// Of what GRO merged, and 0 for a plain datagram: the ports, which segments made of it have too.
    merged_ports: u32,
    reserved: u32,
}

/// A datagram on the queue of a socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Datagram {
    drv: u64,
    ip: u64,
    transport: u64,
    /// Address of the socket.
    socket: u64,
    /// The UDP header.
    header: u64,
    ifindex: u32,
    segs: u16,
    flags: u16,
}

const _: () = assert!(size_of::<Datagram>() == DATAGRAM_SIZE, "the user side names the size");

/// How far a thread's datagram has come.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Progress {
    /// Nothing is on its way.
    Idle = 0,
    /// The thread called.
    Called = 1,
    /// UDP let the datagram go.
    Transport = 2,
}

/// The datagram that a thread is sending.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Send {
    /// Address of the socket.
    socket: u64,
    skb: u64,
    app: u64,
    transport: u64,
    ends: Ends,
    /// Source and destination port in network order.
    ports: u32,
    len: u32,
    segs: u32,
    netns: u32,
    progress: Progress,
    reserved: u32,
}

/// A thread that has sent nothing yet.
#[unsafe(no_mangle)]
static NO_SEND: Send = Send {
    socket: 0,
    skb: 0,
    app: 0,
    transport: 0,
    ends: Ends { family: 0, reserved: 0, addresses: [0; 4] },
    ports: 0,
    len: 0,
    segs: 0,
    netns: 0,
    progress: Progress::Idle,
    reserved: 0,
};

/// The two ports of a UDP header as it lies in memory, from network to host order.
#[inline(always)]
fn ports(word: u32) -> (u16, u16) {
    (u16::from_be(word as u16), u16::from_be((word >> 16) as u16))
}

/// UDP receives an skb (`udp_rcv`, `udpv6_rcv`).
#[inline(always)]
pub fn received<M: Memory>(skb: Skb<M>) -> Outcome {
    let transport = now();
    let (drv, ip) = take_arrival(skb, transport);
    let Some(slot) = RECEIVING.get_ptr_mut(0) else { return Ok(()) };
    // SAFETY: index 0 of a per-CPU array is valid, and softirqs are off.
    let slot = unsafe { &mut *slot };
    slot.skb = skb.address();
    slot.head = skb.head();
    slot.drv = drv;
    slot.ip = ip;
    slot.merged_ports = if skb.gro_segments() > 1 { skb.udp_header() as u32 } else { 0 };
    slot.transport = transport;
    Ok(())
}

/// A datagram gets to a socket's queue, unless that is full (`__udp_enqueue_schedule_skb`). Its UDP header is
/// pulled.
#[inline(always)]
pub fn enqueued<M: Memory>(socket: Socket<M>, skb: Skb<M>) -> Outcome {
    let header = skb.udp_header();
    if !is_wanted(socket, skb, header) {
        return reject(skb.address());
    }
    let Some(slot) = RECEIVING.get_ptr_mut(0) else { return Ok(()) };
    // SAFETY: as in `received`.
    let slot = unsafe { &*slot };
    let is_segment = slot.merged_ports != 0 && slot.merged_ports == header as u32;
    let is_its = slot.skb == skb.address() || slot.head == skb.head() || is_segment;
    let (drv, ip, transport) = if is_its { (slot.drv, slot.ip, slot.transport) } else { (0, 0, 0) };
    let merged = skb.gro_segments();
    let (segs, flags) = if merged > 1 { (merged, FLAG_GRO) } else { (1, 0) };
    let (ifindex, _) = skb.device();
    let datagram = Datagram { drv, ip, transport, socket: socket.address(), header, ifindex, segs, flags };
    if DATAGRAMS.insert(skb.address(), &datagram, u64::from(BPF_NOEXIST)).is_ok() {
        count::one(Counter::Stored);
        return Ok(());
    }
    DATAGRAMS.insert(skb.address(), &datagram, 0).map_err(|_| Counter::MapFull)?;
    // The address' last life ended unseen.
    count::one(Counter::Stored);
    count::one(Counter::Taken);
    Err(Counter::DroppedIn)
}

/// Whether a received datagram is wanted, as far as its headers and its device tell.
#[inline(always)]
fn is_wanted<M: Memory>(socket: Socket<M>, skb: Skb<M>, header: u64) -> bool {
    let (source, destination) = ports(header as u32);
    if !filter::ports(source, destination) || !filter::interface(skb) || !filter::netns_of(socket) {
        return false;
    }
    !filter::needs_ends() || {
        let family = skb.family();
        filter::ends(&Ends { family, reserved: 0, addresses: skb.addresses(family) })
    }
}

/// A datagram that nobody asked for; what an earlier life of its address left must not be taken for it.
#[inline(always)]
fn reject(skb: u64) -> Outcome {
    if DATAGRAMS.get_ptr(skb).is_some() {
        forget(skb);
        count::one(Counter::DroppedIn);
    }
    Err(Counter::RejectedIn)
}

/// A receive call is done with a datagram (`skb_consume_udp`), which it has taken, or only looked at.
#[inline(always)]
pub fn consumed<M: Memory>(socket: Socket<M>, skb: Skb<M>, len: Number) -> Outcome {
    // `udp_recvmsg` makes the length negative for MSG_PEEK; an empty datagram that was only looked at is
    // still on the queue.
    if len.signed() < 0 || len.signed() == 0 && skb.is_queued() {
        return Ok(());
    }
    let Some(entry) = DATAGRAMS.get_ptr(skb.address()) else { return Ok(()) };
    // SAFETY: written before the skb was on the queue; only who takes the skb from there is here.
    let datagram = unsafe { &*entry };
    let header = skb.udp_header();
    if datagram.socket != socket.address() || datagram.header != header {
        // Another life of that address.
        return Err(Counter::UnmatchedIn);
    }
    let task = Task::current();
    let outcome = if filter::task(&task) {
        let app = now();
        let (sport, dport) = ports(header as u32);
        let family = skb.family();
        let ends = Ends { family, reserved: 0, addresses: skb.addresses(family) };
        let netns = socket.netns();
        let stamps = [datagram.drv, datagram.ip, datagram.transport, app];
        let mark = skb.mark();
        emit(Direction::In, &stamps, mark, || {
            let (saddr, daddr) = addresses(&ends, Direction::In);
            PacketRecord {
                stamps,
                other: 0,
                saddr,
                daddr,
                comm: task.comm(),
                pid: task.pid(),
                tid: task.tid(),
                len: skb.len(),
                seq: 0,
                ifindex: datagram.ifindex,
                netns,
                mark,
                sport,
                dport,
                segs: datagram.segs,
                cpu: cpu(),
                flags: datagram.flags,
                direction: Direction::In as u8,
                protocol: IPPROTO_UDP,
                family,
                reserved: 0,
            }
        })
    } else {
        Err(Counter::FilteredIn)
    };
    forget(skb.address());
    outcome
}

/// An skb is dropped: if it was a datagram on a queue, nobody will take it.
#[inline(always)]
pub(crate) fn dropped(skb: u64) -> Outcome {
    if !filter::protocol(IPPROTO_UDP) || DATAGRAMS.get_ptr(skb).is_none() {
        return Ok(());
    }
    forget(skb);
    Err(Counter::DroppedIn)
}

#[inline(always)]
fn forget(skb: u64) {
    if DATAGRAMS.remove(skb).is_ok() {
        count::one(Counter::Taken);
    }
}

/// What the current thread is sending.
#[inline(always)]
fn current() -> Option<&'static mut Send> {
    let send = SENDS.get_ptr_mut(Task::current_ids())?;
    // SAFETY: entries are preallocated and never unmapped while a program runs. The entry is its thread's
    // alone; a softirq that interrupts it recognises no skb in it.
    Some(unsafe { &mut *send })
}

#[inline(always)]
fn current_or_new() -> Result<&'static mut Send, Counter> {
    if let Some(send) = current() {
        return Ok(send);
    }
    SENDS.insert(Task::current_ids(), &NO_SEND, 0).map_err(|_| Counter::StampLost)?;
    current().ok_or(Counter::StampLost)
}

/// The application calls `udp_sendmsg` or `udpv6_sendmsg`.
#[inline(always)]
pub fn written<M: Memory>(socket: Socket<M>) -> Outcome {
    if !filter::current() {
        return Ok(());
    }
    // A call that adds to a corked datagram leaves it the time of the one that began it.
    if socket.udp_pending() {
        return Ok(());
    }
    if filter::is_by_process() {
        foreign::want(number(socket.address()));
    }
    let send = current_or_new()?;
    send.socket = socket.address();
    send.skb = 0;
    send.app = now();
    send.progress = Progress::Called;
    Ok(())
}

/// UDP lets a datagram go: `ip_send_skb`, `ip6_send_skb`, which raw sockets and ICMP use too. Both headers are
/// written, and no netfilter hook has seen them yet.
#[inline(always)]
pub fn sent<M: Memory>(skb: Skb<M>, family: u32) -> Outcome {
    let socket = skb.socket();
    if socket.address() == 0 || socket.protocol() != u16::from(IPPROTO_UDP) {
        return Ok(());
    }
    let header = skb.udp_header();
    let (source, destination) = ports(header as u32);
    count::one(Counter::SeenOut);
    if !filter::current() {
        // A thread that is never asked for has left nothing.
        return if filter::current_may_change() { exclude() } else { Err(Counter::FilteredOut) };
    }
    if !filter::ports(source, destination) || !filter::netns_of(socket) {
        return exclude();
    }
    let addresses = skb.addresses(family);
    if !filter::ends(&Ends { family, reserved: 0, addresses }) {
        return exclude();
    }
    let send = current_or_new()?;
    let is_known = send.progress == Progress::Called && send.socket == socket.address();
    if send.progress == Progress::Transport {
        count::one(Counter::UnfinishedOut);
    }
    if !is_known {
        // Another thread began this datagram, or it was begun before tracing: whose it is is not known.
        send.app = 0;
        if !filter::unknown() {
            send.progress = Progress::Idle;
            return Err(Counter::FilteredOut);
        }
    }
    send.socket = socket.address();
    send.skb = skb.address();
    send.ends.family = family;
    send.ends.addresses = addresses;
    send.ports = header as u32;
    send.len = skb.udp_payload();
    let segs = skb.gro_segments();
    send.segs = if segs > 1 { u32::from(segs) } else { 1 };
    send.netns = socket.netns();
    send.progress = Progress::Transport;
    send.transport = now();
    if is_known { Ok(()) } else { Err(Counter::UnmatchedOut) }
}

/// The thread lets a datagram go that nobody asked for; one before it, that ended where no hook sees it, must not be
/// taken for it.
#[inline(always)]
fn exclude() -> Outcome {
    if let Some(send) = current() {
        if send.progress == Progress::Transport {
            count::one(Counter::UnfinishedOut);
        }
        send.progress = Progress::Idle;
    }
    Err(Counter::FilteredOut)
}

/// An skb that has a socket, which is not a TCP socket that is known, is handed to a device's queue. Of a
/// datagram that IP fragmented it is the first fragment, which has the datagram's skb.
#[inline(always)]
pub(crate) fn queued<M: Memory>(skb: Skb<M>) -> Outcome {
    if !filter::protocol(IPPROTO_UDP) {
        return Ok(());
    }
    let Some(send) = current() else { return Ok(()) };
    if send.skb != skb.address() || send.progress != Progress::Transport {
        return Ok(());
    }
    send.progress = Progress::Idle;
    let send = &*send;
    let drv = now();
    let ip = passing::of(skb.address()).map_or(0, |passing| passing.take_out(send.transport, drv).1);
    let task = if send.app == 0 { Task::UNKNOWN } else { Task::current_wanted() };
    let (ifindex, _) = skb.device();
    let mark = skb.mark();
    if !filter::interface(skb) {
        return Err(Counter::FilteredOut);
    }
    let stamps = [drv, ip, send.transport, send.app];
    emit(Direction::Out, &stamps, mark, || {
        // The ends come from the packet's header: source, then destination, as of a received one.
        let (saddr, daddr) = addresses(&send.ends, Direction::In);
        let (sport, dport) = ports(send.ports);
        PacketRecord {
            stamps,
            other: 0,
            saddr,
            daddr,
            comm: task.comm(),
            pid: task.pid(),
            tid: task.tid(),
            len: send.len,
            seq: 0,
            ifindex,
            netns: send.netns,
            mark,
            sport,
            dport,
            segs: send.segs as u16,
            cpu: cpu(),
            flags: 0,
            direction: Direction::Out as u8,
            protocol: IPPROTO_UDP,
            family: send.ends.family,
            reserved: 0,
        }
    })
}

//! Out: why TCP keeps bytes that the application has written.
//!
//! `tcp_write_xmit` sends until one of its tests stops it, and keeps no record of which. It ends by `tcp_chrono_stop` unless the peer's
//! window stopped it, with nothing changed since, so that the same tests say there why it stopped. What they found is kept until it tries
//! again. For the peer's window the kernel keeps the reason itself (`chrono_type`), until it ends for another reason.
//!
//! A segment may be held for one reason after another: for an ACK, and then, as all that waited may go at once, for the device's queue. The
//! one that is told took half of its wait or more.
//!
//! Considered: fexit on `tcp_write_xmit`, whose kprobe counterpart has no arguments; to test when bytes are sent at last, which an ACK
//! has made possible by then; the last reason alone, which is often that of the shorter part.

use net_latency_common::{FLAG_CONTROL, FLAG_RETRANS, Held};

use super::connection::{self, Connection};
use crate::{
    bpf::now,
    emit::counters::HookResult,
    kernel::{
        memory::{Memory, Number, number},
        offsets::{At as _, offset},
        skb::Skb,
        socket::{CHRONO_RWND_LIMITED, CHRONO_SNDBUF_LIMITED, Socket, TcpSocket},
    },
};

/// `TCP_NAGLE_OFF`, `TCP_NAGLE_CORK`, `TCP_NAGLE_PUSH`.
const NAGLE_OFF: u8 = 1;
const NAGLE_CORK: u8 = 2;
const NAGLE_PUSH: u8 = 4;

/// Whether this kernel has all fields that the tests take.
#[inline(always)]
fn is_known() -> bool {
    offset!(sock_sk_write_queue).value() != 0
}

/// `tcp_chrono_stop(sk, type)`. With `TCP_CHRONO_RWND_LIMITED`, TCP has sent what it could (`tcp_write_xmit`); with
/// `TCP_CHRONO_SNDBUF_LIMITED`, a writer that waited for room in the send buffer has it (`tcp_check_space`).
#[inline(always)]
pub fn stopped<M: Memory>(socket: Socket<M>, chrono: Number) -> HookResult {
    // The trampolines of Linux 5.10 leave the upper half of an enum's register as it was.
    let chrono = chrono.signed() as u32;
    let had_no_room = chrono == CHRONO_SNDBUF_LIMITED;
    if !is_known() || !had_no_room && chrono != CHRONO_RWND_LIMITED {
        return Ok(());
    }
    let Some(tcp) = socket.known_tcp() else { return Ok(()) };
    // The kernel takes that back behind this.
    let was_limited_by_peer = !had_no_room && tcp.is_limited_by_peer();
    // Nearly always all is sent and was so before. The queue is looked at again below: handing on what is found here has LLVM give the
    // verifier a register that not every way has written.
    if !had_no_room && !was_limited_by_peer && socket.is_all_sent() && !may_have_been_held(socket) {
        return Ok(());
    }
    let Some(connection) = connection::traced(socket) else { return Ok(()) };
    let holding = &connection.fine.holding;
    let reason = match socket.first_unsent() {
        // What keeps TCP from sending has filled the buffer.
        Some(_) if had_no_room => return Ok(()),
        Some(first) => why(socket, tcp, first).map_or(0, |held| held as u32),
        None => 0,
    };
    if reason == holding.reason.get() && holding.is_known() && !had_no_room && !was_limited_by_peer {
        return Ok(());
    }
    let now = now();
    // Until now it was what the kernel says itself, and not what its tests had said before.
    let before = match (had_no_room, was_limited_by_peer) {
        (true, _) => Held::SendBuffer as u32,
        (_, true) => Held::ReceiveWindow as u32,
        _ => holding.reason.get(),
    };
    holding.end(before, now);
    holding.reason.set(reason);
    holding.since.set(now);
    connection.settle(number(socket.address()));
    Ok(())
}

/// Whether something held the socket's bytes when its tests stopped TCP last, or those of one at its address before, or that was not seen.
#[inline(always)]
fn may_have_been_held<M: Memory>(socket: Socket<M>) -> bool {
    connection::find(socket).is_some_and(|connection| {
        let holding = &connection.fine.holding;
        holding.reason.get() != 0 || !holding.is_known()
    })
}

/// The test of `tcp_write_xmit` that stopped it before this skb, in its order.
#[inline(always)]
fn why<M: Memory>(socket: Socket<M>, tcp: TcpSocket<M>, first: Skb<M>) -> Option<Held> {
    if socket.is_paced() && tcp.is_ahead_of_its_rate() {
        return Some(Held::Pacing);
    }
    let (on_their_way, most) = tcp.congestion();
    if on_their_way >= most {
        return Some(Held::CongestionWindow);
    }
    let (len, mss) = (first.len(), tcp.mss());
    if len < mss && socket.is_last(first) {
        // `tcp_nagle_test`.
        let nagle = tcp.nagle();
        let must_go = nagle & NAGLE_PUSH != 0 || first.tcp_cb_has_fin();
        if nagle & NAGLE_CORK != 0 && !must_go {
            return Some(Held::Cork);
        }
        if nagle & NAGLE_OFF == 0 && !must_go && tcp.has_small_in_flight() {
            return Some(Held::Nagle);
        }
    } else if len > mss && most.wrapping_sub(on_their_way).wrapping_mul(mss) <= len {
        // `tcp_tso_should_defer`: a part of it could go, and waits for the rest.
        return Some(Held::CongestionWindow);
    }
    socket.is_throttled().then_some(Held::SmallQueue)
}

/// Why TCP had held back bytes that it sends `now` for the first time, written `app`; 0 if it didn't, or the reason is unknown.
#[inline(always)]
pub(super) fn of_sent<M: Memory>(
    connection: &Connection,
    tcp: TcpSocket<M>,
    app: u64,
    now: u64,
    flags: u16,
) -> u32 {
    if !is_known() || app == 0 || flags & (FLAG_RETRANS | FLAG_CONTROL) != 0 {
        return 0;
    }
    let holding = &connection.fine.holding;
    let half = now.wrapping_sub(app) / 2;
    let reason = if tcp.is_limited_by_peer() { Held::ReceiveWindow as u32 } else { holding.reason.get() };
    if now.wrapping_sub(later(holding.start(reason, now), app)) >= half {
        return reason;
    }
    let until = holding.before_until.get();
    let from = later(holding.before_since.get(), app);
    if from < until && until - from >= half { holding.before.get() } else { 0 }
}

#[inline(always)]
fn later(one: u64, other: u64) -> u64 {
    if one > other { one } else { other }
}

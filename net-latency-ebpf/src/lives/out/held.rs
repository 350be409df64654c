//! Why TCP stops to send: the tests of `tcp_write_xmit`, what they look at, and the clocks that the kernel keeps itself
//! (`tcp_chrono_start`). From net/ipv4/tcp_output.c and tcp_input.c of Linux 6.1. And whether a line says that.

use core::cmp::Ordering;
use std::{format, string::String, vec::Vec};

use net_latency_common::{FLAG_CONTROL, FLAG_RETRANS, Held, PacketRecord, STAMP_APP, STAMP_TRANSPORT};

use super::{
    super::{
        choice::Choice,
        readers::is_fine,
        truth::Hook,
        world::{World, hook, note, sock},
    },
    truth::{Packet, Source, Write},
};
use crate::{bpf::host::Machine, kernel::memory::Number};

/// Bytes of a full segment.
pub(super) const MSS: u32 = 10;

/// `enum tcp_chrono`.
const BUSY: u8 = 1;
const RWND_LIMITED: u8 = 2;
const SNDBUF_LIMITED: u8 = 3;

/// `TCP_NAGLE_OFF`, `TCP_NAGLE_CORK`, `TCP_NAGLE_PUSH`.
const NAGLE_OFF: u8 = 1;
const NAGLE_CORK: u8 = 2;
const NAGLE_PUSH: u8 = 4;

/// What stops TCP, in the order of its tests. The last one is for all that has no name (`tcp_mtu_probe`, no memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    Pacing,
    CongestionWindow,
    ReceiveWindow,
    Cork,
    Nagle,
    Defers,
    SmallQueue,
    Other,
}

/// The first skb that was not sent.
#[derive(Clone, Copy)]
pub(super) struct First {
    pub(super) len: u32,
    /// Whether there is none behind it, and it has no FIN: there Nagle's algorithm applies.
    pub(super) may_grow: bool,
    /// Whether something has no ACK yet.
    pub(super) has_unacked: bool,
}

/// A socket's clock (`tp->chrono_type`), and since when it is that one's.
#[derive(Default)]
pub(super) struct Clock {
    kind: u8,
    since: u64,
}

/// From then on a socket's life was held back for that reason.
#[derive(Clone, Copy, Debug)]
pub(in crate::lives) struct Change {
    life: usize,
    at: u64,
    reason: Option<Held>,
    /// Whether the kernel's clock says so, and no test whose hook is seen: an earlier reason may be taken for that.
    is_by_clock: bool,
    /// Whether the connection had been seen to be written to, or to send, by then. Of another one nothing is kept.
    is_seen: bool,
}

impl Test {
    /// That of the window is hidden while a call waits for room: of two clocks that one counts for more.
    fn draw(choice: &mut Choice, first: First, clock: &Clock) -> Self {
        let mut all = Vec::from([Self::Pacing, Self::CongestionWindow, Self::SmallQueue, Self::Other]);
        if clock.kind != SNDBUF_LIMITED {
            all.push(Self::ReceiveWindow);
        }
        if first.len > MSS {
            all.push(Self::Defers);
        }
        if first.len < MSS && first.may_grow {
            all.push(Self::Cork);
            if first.has_unacked {
                all.push(Self::Nagle);
            }
        }
        choice.of(&all)
    }

    fn reason(self) -> Option<Held> {
        match self {
            Self::Pacing => Some(Held::Pacing),
            Self::CongestionWindow | Self::Defers => Some(Held::CongestionWindow),
            Self::ReceiveWindow => Some(Held::ReceiveWindow),
            Self::Cork => Some(Held::Cork),
            Self::Nagle => Some(Held::Nagle),
            Self::SmallQueue => Some(Held::SmallQueue),
            Self::Other => None,
        }
    }

    /// Whether this one says no: those before the one that stops TCP don't, and what those behind it would say is drawn.
    fn says_no(self, stops: Self, choice: &mut Choice) -> bool {
        match self.cmp(&stops) {
            Ordering::Less => false,
            Ordering::Equal => true,
            Ordering::Greater => choice.one_in(2),
        }
    }
}

/// `tcp_write_xmit` is at its end, and this is the first skb that it has not sent.
pub(super) fn stops(
    world: &mut World,
    about: usize,
    [sk, life]: [u64; 2],
    clock: &mut Clock,
    first: Option<First>,
) {
    let stops = first.map(|first| {
        let stops = Test::draw(&mut world.choice, first, clock);
        describe(world, sk, first, stops);
        stops
    });
    let reason = stops.and_then(Test::reason);
    note!(world, "  {stops:?} stops socket {life}");
    if reason == Some(Held::ReceiveWindow) {
        // `tcp_chrono_start`, which no hook sees.
        set(world, sk, clock, RWND_LIMITED);
        return change(world, life, reason, true);
    }
    stop(world, about, sk, RWND_LIMITED, clock);
    change(world, life, reason, false);
    // `tcp_cwnd_validate`: a call waits for room.
    if first.is_none() && world.choice.one_in(2) {
        set(world, sk, clock, SNDBUF_LIMITED);
    }
}

/// `tcp_check_space`: a call that waited for room has it.
pub(super) fn has_room(
    world: &mut World,
    about: usize,
    [sk, life]: [u64; 2],
    clock: &mut Clock,
    is_all_sent: bool,
) {
    if clock.kind != SNDBUF_LIMITED {
        return;
    }
    let since = clock.since;
    stop(world, about, sk, SNDBUF_LIMITED, clock);
    if is_all_sent {
        let at =
            world.truth.out.held.iter().rfind(|change| change.life as u64 == life).map_or(0, |last| last.at);
        let at = at.max(since);
        push(world, life, at, Some(Held::SendBuffer), true);
        change(world, life, None, false);
    }
}

/// `tcp_chrono_stop`.
fn stop(world: &mut World, about: usize, sk: u64, kind: u8, clock: &mut Clock) {
    // The upper half of the register is as it was.
    let argument = world.choice.next() << 32 | u64::from(kind);
    hook!(world, Hook::Other, about, tcp::held::stopped(sock(sk), Number::new(argument as *const u8)));
    if clock.kind == kind {
        set(world, sk, clock, BUSY);
    }
}

fn set(world: &World, sk: u64, clock: &mut Clock, kind: u8) {
    *clock = Clock { kind, since: Machine::with(|machine| machine.clock) };
    let offsets = world.offsets;
    let others = !(3 << offsets.tcp_sock_chrono_type_shift);
    let bits = world.get::<u8>(sk, offsets.tcp_sock_chrono_type) & others;
    world.put(sk, offsets.tcp_sock_chrono_type, bits | kind << offsets.tcp_sock_chrono_type_shift);
}

fn change(world: &mut World, life: u64, reason: Option<Held>, is_by_clock: bool) {
    push(world, life, Machine::with(|machine| machine.clock), reason, is_by_clock);
}

fn push(world: &mut World, life: u64, at: u64, reason: Option<Held>, is_by_clock: bool) {
    let truth = &mut world.truth;
    let life = life as usize;
    let is_of_it = |write: &Write| write.socket == life && !truth.calls[write.call].is_skipped;
    let is_its = |packet: &Packet| packet.source == Source::Socket(life) && packet.len != 0;
    let is_seen = truth.out.writes.iter().any(is_of_it) || truth.out.packets.iter().any(is_its);
    truth.out.held.push(Change { life, at, reason, is_by_clock, is_seen });
}

/// What the tests look at, so that this one stops TCP before this skb.
fn describe(world: &mut World, sk: u64, first: First, stops: Test) {
    let offsets = world.offsets;
    let choice = &mut world.choice;
    // `tcp_pacing_check`.
    let (status, ahead) = if Test::Pacing.says_no(stops, choice) {
        (1, 1)
    } else {
        choice.of(&[(1_u32, 0_i64), (1, -1), (0, 1), (2, 1)])
    };
    let clock = 1_u64 << 40;
    // `tcp_packets_in_flight`.
    let out = if first.has_unacked { 1 + choice.below(3) } else { 0 };
    let lost = choice.below(out + 1);
    let (arrived, again) = (choice.below(out - lost + 1), choice.below(lost + 1));
    let on_their_way = out + again - arrived - lost;
    // `tcp_cwnd_test`, `tcp_tso_should_defer`.
    let full = first.len / MSS;
    let window = if Test::CongestionWindow.says_no(stops, choice) {
        on_their_way.saturating_sub(choice.below(2))
    } else if first.len > MSS && !Test::Defers.says_no(stops, choice) {
        on_their_way + full + 1 + choice.below(2)
    } else {
        on_their_way + 1 + choice.below(full.max(1))
    };
    let is_throttled = Test::SmallQueue.says_no(stops, choice);
    let flags = choice.next() & 0x1e | u64::from(is_throttled);
    world.put(sk, offsets.sock_sk_pacing_status, status);
    world.put(sk, offsets.tcp_sock_tcp_clock_cache, clock);
    world.put(sk, offsets.tcp_sock_tcp_wstamp_ns, clock.saturating_add_signed(ahead));
    world.put(sk, offsets.tcp_sock_packets_out, out);
    world.put(sk, offsets.tcp_sock_retrans_out, again);
    world.put(sk, offsets.tcp_sock_sacked_out, arrived);
    world.put(sk, offsets.tcp_sock_lost_out, lost);
    world.put(sk, offsets.tcp_sock_snd_cwnd, window);
    world.put(sk, offsets.tcp_sock_mss_cache, MSS);
    world.put(sk, offsets.sock_sk_tsq_flags, flags);
    describe_nagle(world, sk, first, stops);
}

/// `tcp_nagle_test`, which asks only of the last skb, if it is short.
fn describe_nagle(world: &mut World, sk: u64, first: First, stops: Test) {
    let offsets = world.offsets;
    let [una, nxt] = [offsets.tcp_sock_snd_una, offsets.tcp_sock_snd_nxt].map(|at| world.get::<u32>(sk, at));
    let choice = &mut world.choice;
    // `TCP_NODELAY` makes what waits go, though it is corked.
    let is_asked = first.len < MSS && first.may_grow;
    let is_pushed = is_asked && stops > Test::Nagle && choice.one_in(4);
    let mut says_no =
        |test: Test| if is_asked && !is_pushed { test.says_no(stops, choice) } else { choice.one_in(2) };
    let (corks, holds) = (says_no(Test::Cork), says_no(Test::Nagle));
    let (off, is_small) =
        if holds { (false, true) } else { choice.of(&[(true, true), (true, false), (false, false)]) };
    let small = if is_small {
        choice.of(&[una.wrapping_add(1), nxt])
    } else {
        choice.of(&[una, nxt.wrapping_add(1)])
    };
    let flags = [(corks, NAGLE_CORK), (off, NAGLE_OFF), (is_pushed, NAGLE_PUSH)];
    let bits: u8 = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum();
    let noise = choice.next() as u8 & !(0xf << offsets.tcp_sock_nonagle_shift);
    world.put(sk, offsets.tcp_sock_snd_sml, small);
    world.put(sk, offsets.tcp_sock_nonagle, bits << offsets.tcp_sock_nonagle_shift | noise);
}

/// For that time a socket's life was held back for that reason.
#[derive(Clone, Copy, Debug)]
struct Run {
    reason: Option<Held>,
    from: u64,
    to: u64,
    is_by_clock: bool,
    is_seen: bool,
}

impl Run {
    /// For how long of the time from `app` on.
    fn since(&self, app: u64) -> u64 {
        self.to.saturating_sub(self.from.max(app))
    }
}

/// What held a socket's life back until then.
fn runs(changes: &[Change], life: usize, until: u64) -> Vec<Run> {
    let mut runs = Vec::from([Run { reason: None, from: 0, to: until, is_by_clock: false, is_seen: true }]);
    let its = |change: &&Change| change.life == life && change.at < until;
    for Change { at, reason, is_by_clock, is_seen, .. } in changes.iter().filter(its).copied() {
        let is_other = |last: &&mut Run| last.reason != reason || is_seen && !last.is_seen;
        if let Some(last) = runs.last_mut().filter(is_other) {
            last.to = at;
            runs.push(Run { reason, from: at, to: until, is_by_clock, is_seen });
        }
    }
    runs
}

/// For how long of the time from `app` on it was that reason at a stretch, at most. A short time of something else counts; and when the kernel's clock
/// began, no hook has seen: what was there before counts too.
fn longest(runs: &[Run], reason: Held, app: u64) -> u64 {
    let mut longest = 0;
    let mut start = None;
    for (number, run) in runs.iter().enumerate().filter(|(_, run)| run.reason == Some(reason)) {
        let from = if run.is_by_clock { runs[number - 1].from } else { run.from };
        let begins = match start {
            Some((begins, ends)) if from.saturating_sub(ends) < run.to - from => begins,
            _ => from,
        };
        start = Some((begins, run.to));
        longest = longest.max(run.to.saturating_sub(app.max(begins)));
    }
    longest
}

/// Whether what a line says of why TCP held its bytes back is true: for half of the time or more.
pub(in crate::lives) fn check(world: &World, line: &PacketRecord, life: usize) -> Result<(), String> {
    let [app, transport] = [line.stamps[STAMP_APP], line.stamps[STAMP_TRANSPORT]];
    let said = Held::of(line.held.into());
    let is_asked = is_fine() && Machine::with(|machine| machine.offsets.sock_sk_write_queue != 0);
    if !is_asked || app == 0 || line.flags & (FLAG_CONTROL | FLAG_RETRANS) != 0 {
        return if line.held == 0 { Ok(()) } else { Err(format!("held by {said:?}, which can't be known")) };
    }
    let runs = runs(&world.truth.out.held, life, transport);
    let half = (transport - app) / 2;
    let is_due = |run: &&Run| run.is_seen && run.since(app) >= half;
    let last = runs.last().filter(is_due);
    let mut named = runs.iter().filter(|run| run.reason.is_some());
    let only = named.next().filter(|run| is_due(run) && named.next().is_none());
    let due = last.or(only).and_then(|run| run.reason);
    let is_missing = due.is_some() && due != said && !world.truth.out.is_limited;
    let all =
        |reason| runs.iter().filter(|run| run.reason == Some(reason)).map(|run| run.since(app)).sum::<u64>();
    if is_missing || said.is_some_and(|reason| longest(&runs, reason, app).max(all(reason)) < half) {
        return Err(format!("held by {said:?} from {app} to {transport}, and not by {due:?}: {runs:?}"));
    }
    Ok(())
}

//! Behind a device's queue: the queue, the driver, GSO, tunnels, the loopback; with `--stages fine` also when each had a packet, and its ACK.
//! From net/core/dev.c (`dev_hard_start_xmit`, `validate_xmit_skb`) and net/ipv4/tcp_input.c of Linux 6.1.

use std::{format, string::String};

use net_latency_common::{
    FLAG_CONTROL, FLAG_DROPPED, FLAG_RETRANS, FLAG_RTO, FLAG_ZERO_WINDOW, IPPROTO_TCP, PART_DRIVER,
    PART_FINISHED, PART_NET, PART_QDISC, PARTS, PacketRecord, STAMP_APP, STAMP_DRV, STAMP_TRANSPORT, Unknown,
    part,
};

use super::{
    super::{
        readers::is_fine,
        truth::{Call, Hook},
        world::{Skb, World, hook, skb as hooked, sock},
    },
    Out, Then, renumber, seq,
    truth::{Driven, Packet, Source},
};

impl Out {
    /// `__dev_queue_xmit`.
    pub(super) fn reach_queue(&mut self, world: &mut World, skb: Skb, then: Then) {
        let offsets = world.offsets;
        let device: u64 = world.get(skb.address, offsets.sk_buff_dev);
        if then == Then::Tunnelled {
            world.put(skb.address, offsets.sk_buff_dev, self.tunnel.device);
        }
        let on: u64 = world.get(skb.address, offsets.sk_buff_dev);
        let ifindex: u32 = world.get(on, offsets.net_device_ifindex);
        let sk = self.owner(world, skb);
        let is_followed = self.is_followed(world, skb) && sk != 0;
        let packet = &mut world.truth.out.packets[skb.packet];
        if is_followed {
            packet.flies = false;
            packet.is_due = !world.truth.out.is_limited;
            // A segment's is not known if another packet was cut up behind IP (`CUT_AT`).
            packet.has_ip = packet.stamped.contains(&skb.address) && skb.address != packet.segment;
        }
        let call = hook!(world, Hook::Queued, skb.packet, tcp::transmit::queued(hooked(skb)));
        world.truth.out.devices.push((call, ifindex));
        match then {
            Then::Kept => self.kept.push((skb, call)),
            Then::Dropped => self.drop(world, skb),
            Then::Freed => {
                leave(world, skb);
                self.drive(world, skb, call);
            }
            Then::Tunnelled => {
                leave(world, skb);
                begin_driver(world, skb, Some(call));
                world.put(skb.address, offsets.sk_buff_dev, device);
                if world.choice.one_in(2) {
                    // The tunnel's own header stands where TCP's seems to be (`skb_reset_transport_header`).
                    let transport: u16 = world.get(skb.address, offsets.sk_buff_transport_header);
                    world.put(skb.address, offsets.sk_buff_transport_header, transport - 20);
                    world.truth.out.packets[skb.packet].is_wrapped = true;
                }
                hook!(world, Hook::Other, skb.packet, ip::sent(hooked(skb)));
                hook!(world, Hook::Other, skb.packet, tcp::transmit::queued(hooked(skb)));
                self.drive(world, skb, call);
                end_driver(world, skb, None);
            }
            Then::Loops => {
                leave(world, skb);
                begin_driver(world, skb, Some(call));
                // `skb_orphan`.
                world.put(skb.address, offsets.sk_buff_sk, 0_u64);
                if sk != 0 {
                    world.free_socket(sk);
                }
                hook!(world, Hook::Other, skb.packet, ip::arrived(hooked(skb)));
                self.free(world, skb);
                end_driver(world, skb, Some(call));
            }
        }
    }

    /// `dev_hard_start_xmit`, of what GSO makes of an skb if the device can't. `queued` is the call at the queue.
    pub(super) fn drive(&self, world: &mut World, skb: Skb, queued: usize) {
        if !is_fine() {
            return self.free(world, skb);
        }
        let segs = world.segs(skb);
        if segs < 2 || world.choice.one_in(2) {
            begin_driver(world, skb, Some(queued));
            self.free(world, skb);
            return end_driver(world, skb, Some(queued));
        }
        let packet = &world.truth.out.packets[skb.packet];
        let (each, is_tcp) = (packet.len.div_ceil(segs.into()), packet.protocol == IPPROTO_TCP);
        hook!(world, Hook::Other, skb.packet, tcp::transmit::segmented(hooked(skb)));
        for number in 0..u32::from(segs) {
            let piece = self.piece(world, skb);
            world.set_segs(piece, 0);
            if is_tcp {
                renumber(world, piece, number * each);
            }
            // A datagram's segments are not known any more.
            let of = Some(queued).filter(|_| number == 0 && is_tcp);
            begin_driver(world, piece, of);
            self.free(world, piece);
            end_driver(world, piece, of);
        }
        self.free(world, skb);
    }

    /// How far an ACK can go that covers what a driver has got, of the bytes from `from` to `until`.
    pub(super) fn acknowledgeable(&self, world: &World, life: usize, mut from: u64, until: u64) -> u64 {
        let packets = &world.truth.out.packets;
        while let Some(packet) = packets.iter().find(|packet| {
            let end = packet.start + u64::from(packet.len);
            packet.source == Source::Socket(life) && packet.is_out && (packet.start..end).contains(&from)
        }) {
            from = packet.start + u64::from(packet.len);
        }
        until.min(from)
    }

    /// `tcp_ack`, of an ACK of all bytes before this position. Before, it may have waited for a task that has the socket.
    pub(super) fn acknowledge(&self, world: &mut World, s: usize, until: u64) {
        if !is_fine() {
            return;
        }
        let (sk, life, ack) = self.acknowledged(s, until);
        let skb = world.empty_skb(0);
        world.put(skb.address, world.offsets.tcp_skb_cb_ack_seq, ack);
        if world.choice.one_in(4) {
            world.put(sk, world.offsets.sock_sk_lock_owned, 1_u32);
            let call = hook!(world, Hook::Other, s, tcp::in_flight::backlogged(sock(sk), hooked(skb)));
            world.truth.out.acks.push((life, until, call));
        }
        let call = hook!(world, Hook::Other, s, tcp::in_flight::acked(sock(sk), hooked(skb)));
        if world.get::<u32>(sk, world.offsets.tcp_sock_snd_wnd) == 0 {
            world.truth.out.closed.push((life, call));
        }
        world.truth.out.acks.push((life, until, call));
        world.put(sk, world.offsets.sock_sk_lock_owned, 0_u32);
        world.free(skb);
    }
}

/// A device gets an skb, which may be a piece of its packet, or a copy of one.
pub(super) fn leave(world: &mut World, skb: Skb) {
    let seq = seq(world, skb);
    let packet = &mut world.truth.out.packets[skb.packet];
    if packet.protocol == IPPROTO_TCP {
        let begins = packet.ends.first.wrapping_add(packet.start as u32);
        let each = packet.len.div_ceil(packet.segs.into()).max(1);
        let piece = 1_u32.checked_shl(seq.wrapping_sub(begins) / each).unwrap_or(0);
        packet.pieces &= !piece;
        packet.is_out |= packet.pieces == 0;
    }
}

/// A driver gets an skb, which stands for the skb that was queued by that call.
fn begin_driver(world: &mut World, skb: Skb, queued: Option<usize>) {
    if is_fine() {
        let call = hook!(world, Hook::Other, skb.packet, tcp::transmit::driven(hooked(skb)));
        let device: u64 = world.get(skb.address, world.offsets.sk_buff_dev);
        let is_unqueued = world.unqueued.contains(&device);
        let out = &mut world.truth.out;
        if let Some(queued) = queued {
            // Of a tunnel's skb and the one below it, the latter.
            out.driven.retain(|other| other.queued != queued);
            out.driven.push(Driven { queued, started: call, finished: None, is_unqueued });
        }
    }
}

/// It is done with it, which may be free.
fn end_driver(world: &mut World, skb: Skb, queued: Option<usize>) {
    if is_fine() {
        let call = hook!(world, Hook::Other, skb.packet, tcp::transmit::left(hooked(skb)));
        let is_its = |driven: &&mut Driven| Some(driven.queued) == queued;
        if let Some(driven) = world.truth.out.driven.iter_mut().find(is_its) {
            driven.finished = Some(call);
        }
    }
}

/// Whether what a line says of the time behind the device's queue is true.
pub(in crate::lives) fn check_sent(
    world: &World,
    line: &PacketRecord,
    parts: &[u64; PARTS],
) -> Result<(), String> {
    let truth = &world.truth;
    let number = truth.call_at(line.stamps[STAMP_TRANSPORT]).ok_or("sent at no time")?.about;
    let packet = &truth.out.packets[number];
    let [qdisc, driver, net] = [PART_QDISC, PART_DRIVER, PART_NET].map(|index| part(parts[index]).ok());
    let driven = truth.out.driven.iter().find(|driven| {
        let queued = &truth.calls[driven.queued];
        queued.from < line.stamps[STAMP_DRV] && line.stamps[STAMP_DRV] <= queued.to
    });
    let (begun, left) = (driven.map(|driven| driven.started), driven.and_then(|driven| driven.finished));
    let about = |call: Option<usize>| call.map(|call| truth.calls[call]);
    let is_at = |call: Option<Call>, at: u64| call.is_some_and(|call| call.from < at && at <= call.to);
    // It looks at the clock once.
    let started = about(begun).map(|call| call.to);
    let of_started =
        |what: &str| started.ok_or_else(|| format!("{what} of packet {number}, which no driver had"));
    if let Some(qdisc) = qdisc {
        let expected = if driven.is_some_and(|driven| driven.is_unqueued) {
            0
        } else {
            of_started("qdisc")? - line.stamps[STAMP_DRV]
        };
        if qdisc != expected {
            return Err(format!("packet {number} was queued for {expected}, not {qdisc}"));
        }
    }
    if let Some(driver) = driver
        && !is_at(about(left), of_started("driver")? + driver)
    {
        return Err(format!("packet {number} was with its driver until {:?}, not for {driver}", about(left)));
    }
    let end = packet.start + u64::from(packet.len);
    let sent = truth.calls.iter().position(|call| call.hook == Hook::Sent && call.about == number);
    let covers = |(of, until, call): &&(usize, u64, usize)| {
        packet.source == Source::Socket(*of) && *until >= end && Some(*call) > sent
    };
    let acked = truth.out.acks.iter().find(covers).map(|(.., call)| *call);
    let is_sent_again = || {
        let until = acked.unwrap_or(truth.calls.len());
        truth.calls[sent.unwrap_or(0)..until].iter().filter(|call| call.hook == Hook::Sent).any(|call| {
            let other = &truth.out.packets[call.about];
            other.source == packet.source
                && other.flags & FLAG_RETRANS != 0
                && other.start < end
                && packet.start < other.start + u64::from(other.len)
        })
    };
    let is_limited = truth.out.is_limited;
    let is_new = packet.protocol == IPPROTO_TCP && packet.flags & (FLAG_RETRANS | FLAG_CONTROL) == 0;
    let may_have_ack = is_new && !is_sent_again();
    // If an skb of TCP's is cut up for its driver, the first segment is known by its number, unless a tunnel has wrapped it up.
    let is_told = packet.segs == 1 || is_new && !packet.is_wrapped;
    let is_known = is_told && (may_have_ack || !is_new) && !is_limited;
    let was_before_line =
        |call: Option<usize>| about(call).is_some_and(|call| call.from < parts[PART_FINISHED]);
    if is_known && was_before_line(left) && (qdisc.is_none() || driver.is_none()) {
        return Err(format!("packet {number} was with its driver, and not all of that is known"));
    }
    check_flags(world, line, packet, parts, is_new && !is_limited)?;
    match net {
        Some(_) if !may_have_ack => Err(format!("whose ACK that is of packet {number} is not known")),
        Some(net) if !is_at(about(acked), of_started("net")? + net) => Err(format!(
            "packet {number} was acknowledged at {:?}, not {net} after {started:?}",
            about(acked)
        )),
        None if is_known && may_have_ack && begun.is_some() && acked > begun && was_before_line(acked) => {
            Err(format!("packet {number} has no time of its ACK: {:?}", about(acked)))
        }
        _ => Ok(()),
    }
}

/// Whether the flags of what came behind the device's queue are true; and there, if they have to be.
fn check_flags(
    world: &World,
    line: &PacketRecord,
    packet: &Packet,
    parts: &[u64; PARTS],
    has_to_wait: bool,
) -> Result<(), String> {
    let truth = &world.truth;
    let [transport, app] = [line.stamps[STAMP_TRANSPORT], line.stamps[STAMP_APP]];
    let has = |flag| line.flags & flag != 0;
    let first = if app == 0 { transport } else { app };
    let is_closed = truth.out.closed.iter().any(|(life, call)| {
        let since = truth.calls[*call].from;
        packet.source == Source::Socket(*life) && first <= since && since < parts[PART_FINISHED]
    });
    let waited = has_to_wait && part(parts[PART_QDISC]) != Err(Unknown::NoRoom);
    let is_false = |flag, is_so| has(flag) != is_so && (has(flag) || waited);
    if is_false(FLAG_ZERO_WINDOW, is_closed) {
        return Err(format!("the window was closed: {is_closed}"));
    }
    if has(FLAG_DROPPED) && !packet.is_dropped {
        return Err("it was not dropped".into());
    }
    let end = packet.start + u64::from(packet.len);
    let is_later = |call: &&Call| {
        let is_sent = call.hook == Hook::Sent && call.to > line.stamps[STAMP_DRV];
        is_sent && call.to < parts[PART_FINISHED]
    };
    let by_timer = truth.calls.iter().filter(is_later).any(|call| {
        let other = &truth.out.packets[call.about];
        let is_its = other.source == packet.source && other.flags & FLAG_RTO != 0;
        is_its && other.start < end && packet.start < other.start + u64::from(other.len)
    });
    if packet.flags & FLAG_RETRANS == 0 && is_false(FLAG_RTO, by_timer) {
        return Err(format!("sent again by the timer: {by_timer}"));
    }
    Ok(())
}

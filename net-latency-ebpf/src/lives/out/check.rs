//! Whether lines agree with the truth about packets that went out, and every packet is counted once.

use std::{format, string::String};

use net_latency_common::{
    COMM_LEN, Counter, Counters, FLAG_CONTROL, FLAG_DROPPED, FLAG_RETRANS, FLAG_RTO, FLAG_WRITE_EVICTED,
    FLAG_ZERO_WINDOW, IPPROTO_TCP, PacketRecord, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT,
};

use super::{
    super::{readers::is_fine, truth::Hook, world::World},
    held,
    truth::{Packet, Source},
};

fn name(world: &World, address: u64) -> [u8; COMM_LEN] {
    world.get(address, world.offsets.task_struct_comm)
}

/// Whether all that a line of an outgoing packet says is true.
pub(in crate::lives) fn check(world: &mut World, line: &PacketRecord) -> Result<(), String> {
    let truth = &world.truth;
    let [drv, ip] = [line.stamps[STAMP_DRV], line.stamps[STAMP_IP]];
    let [transport, app] = [line.stamps[STAMP_TRANSPORT], line.stamps[STAMP_APP]];
    let number = match truth.call_at(transport) {
        Some(call) if call.hook == Hook::Sent => call.about,
        other => return Err(format!("sent {transport} is of {other:?}")),
    };
    let packet = &truth.out.packets[number];
    if packet.lines != 0 {
        return Err(format!("packet {number} has two lines"));
    }
    truth.expect("drv", drv, Hook::Queued, number)?;
    if ip != 0 {
        truth.expect("ip", ip, Hook::IpOut, number)?;
    } else if packet.has_ip {
        return Err(format!("packet {number} has no time at IP"));
    }
    let ends = &packet.ends;
    let shown = (line.saddr, line.daddr, line.sport, line.dport, line.family, line.netns, line.protocol);
    let of_ends = (ends.local, ends.remote, ends.local_port, ends.remote_port, ends.family, ends.netns);
    let (local, remote, local_port, remote_port, family, netns) = of_ends;
    if shown != (local, remote, local_port, remote_port, family, netns, packet.protocol) {
        return Err(format!("of other ends than packet {number}: {ends:?}"));
    }
    let on = |(call, _): &&(usize, u32)| {
        let call = &truth.calls[*call];
        call.from < drv && drv <= call.to
    };
    let ifindex = truth.out.devices.iter().find(on).map_or(0, |(_, ifindex)| *ifindex);
    let seq = if packet.protocol == IPPROTO_TCP { ends.first.wrapping_add(packet.start as u32) } else { 0 };
    if line.flags & FLAG_WRITE_EVICTED != 0 && !truth.out.is_limited {
        return Err(format!("no call of packet {number} was evicted"));
    }
    // What came behind the queue: `check_sent`.
    let by_timer = if packet.flags & FLAG_RETRANS == 0 { FLAG_RTO } else { 0 };
    let later = if is_fine() { by_timer | FLAG_DROPPED | FLAG_ZERO_WINDOW } else { 0 };
    let flags = line.flags & !FLAG_WRITE_EVICTED & !later;
    let shown = (line.seq, line.len, line.segs, flags, line.mark, line.ifindex);
    let of_packet = (seq, packet.len, packet.segs, packet.flags, packet.mark, ifindex);
    if shown != of_packet {
        return Err(format!(
            "seq, len, segs, flags, mark, ifindex are {shown:?}, of packet {number} {of_packet:?}"
        ));
    }
    // Whether a connection has sent something again is forgotten with it.
    let dsacks = if truth.out.is_limited && line.dsacks == 0 { 0 } else { packet.dsacks };
    if (line.rtt_or_holder, line.dsacks) != (packet.rtt, dsacks) {
        return Err(format!(
            "round trip and DSACKs are not {} and {} of packet {number}",
            packet.rtt, packet.dsacks
        ));
    }
    if line.other != 0 && (line.other != packet.first || packet.flags & FLAG_RETRANS == 0) {
        return Err(format!("packet {number} was first sent {}, not {}", packet.first, line.other));
    }
    if let Source::Socket(life) = packet.source {
        held::check(world, line, life)?;
    } else if line.held != 0 {
        return Err(format!("datagram {number} was held by TCP"));
    }
    check_author(world, line, number, app)?;
    world.truth.out.packets[number].lines = 1;
    Ok(())
}

/// Whether every packet that has to have a line has one, and each is counted in one place.
pub(in crate::lives) fn check_all(world: &World, counted: &Counters, in_flight: u64) -> Result<(), String> {
    let out = &world.truth.out;
    // Some may wait for their drivers and ACKs.
    let is_due = |packet: &Packet| packet.is_due && packet.lines == 0 && !is_fine();
    if let Some(number) = out.packets.iter().position(is_due) {
        return Err(format!("packet {number} has no line: {:?}", out.packets[number]));
    }
    let get = |counter| counted.get(counter);
    if get(Counter::SeenOut) != out.seen {
        return Err(format!("{} packets were sent, and {} are counted", out.seen, get(Counter::SeenOut)));
    }
    let lines = out.packets.iter().map(|packet| u64::from(packet.lines)).sum::<u64>();
    let ended = lines
        + get(Counter::FilteredOut)
        + get(Counter::UnfinishedOut)
        + get(Counter::OvertakenOut)
        + in_flight;
    let is_whole = if out.is_limited { ended <= out.seen } else { ended == out.seen };
    if !is_whole {
        return Err(format!(
            "{} packets were sent, and {ended} are somewhere, {in_flight} of them in flight: {counted:?}",
            out.seen
        ));
    }
    Ok(())
}

/// Checks the writer and the time of the write in a line.
fn check_author(world: &World, line: &PacketRecord, number: usize, app: u64) -> Result<(), String> {
    let packet = &world.truth.out.packets[number];
    let ids = u64::from(line.pid) << 32 | u64::from(line.tid);
    if packet.flags & FLAG_CONTROL != 0 {
        if app != line.stamps[STAMP_TRANSPORT] {
            return Err(format!("packet {number}, which the kernel made, was written {app}"));
        }
        if ids != 0 && !packet.users.contains(&ids) {
            return Err(format!("packet {number} is of {ids:#x}, and not of {:x?}", packet.users));
        }
    } else if app == 0 {
        if packet.has_app {
            return Err(format!("packet {number} has no time of its call"));
        }
        if line.tid != 0 {
            return Err(format!("packet {number} was written by a thread, at no time"));
        }
        if line.pid != 0 {
            let call =
                packet.app.ok_or_else(|| format!("packet {number} was written by no call that was seen"))?;
            let process = world.truth.calls[call].ids >> 32;
            if u64::from(line.pid) != process {
                return Err(format!("packet {number} is of process {}, not {process}", line.pid));
            }
        }
    } else {
        let call =
            packet.app.ok_or_else(|| format!("packet {number} was written by no call that was seen"))?;
        let call = &world.truth.calls[call];
        if !(call.from < app && app <= call.to) {
            return Err(format!(
                "packet {number} was written {app} by {:?}, not by {call:?}",
                world.truth.call_at(app)
            ));
        }
        if ids != call.ids {
            return Err(format!("packet {number} is of {ids:#x}, not {:#x}", call.ids));
        }
    }
    // It may be that the wanted task can't be named any more.
    let its = packet.app.map(|call| world.truth.calls[call].ids).into_iter().chain(packet.users.clone());
    let named = (line.pid != 0).then(|| u64::from(line.pid) << 32);
    let is_wanted = |ids: u64| {
        let place = world.tasks.iter().position(|task| task.ids >> 32 == ids >> 32);
        place.is_some_and(|place| world.wanted[place])
    };
    if world.truth.is_filtered && !named.map_or_else(|| its.into_iter().any(is_wanted), is_wanted) {
        return Err(format!("packet {number} is of no wanted task"));
    }
    expect_named(world, line).map_err(|fault| format!("packet {number} has {fault}"))
}

/// Whether a line has the names of its process and thread, and none where it has no process.
pub(in crate::lives) fn expect_named(world: &World, line: &PacketRecord) -> Result<(), &'static str> {
    if line.pid == 0 {
        let is_nameless = line.tid == 0 && line.comm[0] == 0 && line.process[0] == 0;
        return if is_nameless { Ok(()) } else { Err("no process, but a name") };
    }
    let tasks = world.tasks.iter().filter(|task| task.ids >> 32 == u64::from(line.pid));
    let mut is_named = false;
    for task in tasks {
        let thread: u64 = task.ids & u64::from(u32::MAX);
        let leads = thread == task.ids >> 32;
        if leads && line.process != name(world, task.address) {
            return Err("another process's name");
        }
        let may_be = line.tid == 0 || u64::from(line.tid) == thread;
        is_named |= may_be && line.comm == name(world, task.address);
    }
    if is_named { Ok(()) } else { Err("another thread's name") }
}

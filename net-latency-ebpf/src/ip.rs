//! Where TCP's and UDP's packets go the same way: driver and IP, both ways. Only a packet's skb is known there: each hook
//! stamps its address ([`crate::skb_stamps`]). Every hook by which an skb enters the stack starts that address anew; a packet
//! that enters again after it was forwarded is recognised by its content.

use net_latency_common::Counter;

use crate::{
    bpf::{
        LruHashMap,
        entry::{Field, Global},
        map, now,
    },
    emit::counters::HookResult,
    flow::{filter, untraced},
    kernel::{
        memory::{Memory, number},
        skb::Skb,
    },
    skb_stamps::{self, SkbStage},
};

/// A packet that this machine sent on, and that may enter its stack again (another namespace's, on the way to a container). Whether an
/// skb that comes under this address is that packet, only its content can tell: drivers free skbs where no hook sees it. So this stays
/// when the address starts anew.
#[repr(C)]
pub struct Forwarded {
    /// When it entered the stack for the first time.
    drv: Field<u64>,
    /// The part of its content that neither forwarding nor address translation changes: see `TcpHeader`. 0 for none.
    content: Field<u64>,
    /// Its hop limit before it was sent on last. Sets a packet that was routed apart from a copy that TCP sends again.
    hops: Field<u64>,
    /// When an skb entered the stack under this address since, for the first time; 0 if none has, and [`SEVERAL`] if more than one has.
    again: Field<u64>,
}

/// In place of a time: more than one skb has entered under the address, so that none is known to be the one that was sent on.
const SEVERAL: u64 = u64::MAX;

/// Packets that this machine sent on, by the address of their skb. Evicts: a container's packet counts from its last entry.
#[map]
static FORWARDED: LruHashMap<u64, Forwarded> = LruHashMap::with_max_entries(4096, 0);

/// Whether this machine has sent a packet on: else there is none to look for.
#[unsafe(no_mangle)]
// SAFETY: an integer.
static HAS_FORWARDED: Global<u64> = unsafe { Global::zeroed() };

/// The note about a packet that was sent on with the skb at this address.
#[inline(always)]
fn forwarded_entry(skb: u64) -> Option<&'static Forwarded> {
    if HAS_FORWARDED.get() == 0 {
        return None;
    }
    let entry = FORWARDED.get_ptr(skb)?;
    // SAFETY: entries are preallocated and never unmapped while a program runs. An skb is in one CPU's hands at a time, and
    // what changes are fields.
    Some(unsafe { &*entry })
}

/// An skb enters the stack from its driver: its address starts a new life.
#[inline(always)]
pub fn arrived<M: Memory>(skb: Skb<M>) -> HookResult {
    let at = now();
    skb_stamps::stamp_at(skb.address(), SkbStage::Arrived, at);
    if let Some(before) = forwarded_entry(skb.address()) {
        before.again.set(if before.again.get() == 0 { at } else { SEVERAL });
    }
    Ok(())
}

/// IP receives an skb.
#[inline(always)]
pub fn received<M: Memory>(skb: Skb<M>) -> HookResult {
    skb_stamps::received(skb);
    Ok(())
}

/// This machine forwards an skb (`ip_forward`, `ip6_forward`), which it may soon receive again.
#[inline(always)]
pub fn forwarded<M: Memory>(skb: Skb<M>, family: u32) -> HookResult {
    // They end here: what comes again is stamped again.
    let drv = skb_stamps::take_forwarded(number(skb.address()), skb.shared_head());
    let (content, hops) = skb.content_and_hops(family);
    if let Some(before) = forwarded_entry(skb.address())
        && before.content.get() == content
        && before.hops.get() == hops + 1
        && before.again.get() == drv
        && drv != 0
    {
        before.hops.set(hops);
        before.again.set(0);
        return Ok(());
    }
    note(skb.address(), drv, content, hops)
}

/// An skb that has entered the stack is at a device's queue. If IP has not forwarded it, a bridge, a flowtable, IPVS or a redirect sends it on.
#[inline(always)]
pub fn sent_on<M: Memory>(skb: Skb<M>) -> HookResult {
    if skb.has_entered() { entered_is_sent_on(skb) } else { Ok(()) }
}

/// [`sent_on`] of an skb that has entered the stack. Most have not: a function of its own, so that they need no registers for it.
#[inline(never)]
fn entered_is_sent_on<M: Memory>(skb: Skb<M>) -> HookResult {
    // The address of a clone has the stamps of whatever was there before. One that IP went on with has its own by its buffer, and they are
    // later.
    if skb.shares_headers() {
        return Ok(());
    }
    let Some(family) = skb.ip_family() else { return Ok(()) };
    let drv = skb_stamps::take_forwarded(number(skb.address()), skb.shared_head());
    if drv == 0 {
        // `ip_forward` has noted it.
        return Ok(());
    }
    let (content, hops) = skb.content_and_hops(family);
    // A bridge leaves the hop limit alone, so that what was sent on twice looks like a copy that TCP has sent again: it counts from its
    // entry before the last.
    note(skb.address(), drv, content, hops + 1)
}

/// A packet leaves the stack that entered it at `drv`, 0 if that is not known.
#[inline(always)]
fn note(skb: u64, drv: u64, content: u64, hops: u64) -> HookResult {
    let content = if drv == 0 { 0 } else { content };
    if let Some(before) = forwarded_entry(skb) {
        before.drv.set(drv);
        before.content.set(content);
        before.hops.set(hops);
        before.again.set(0);
        return Ok(());
    }
    if content == 0 {
        return Ok(());
    }
    // All write the same.
    HAS_FORWARDED.set(1);
    let [drv, content, hops, again] = [drv, content, hops, 0].map(Field::new);
    FORWARDED.insert(skb, &Forwarded { drv, content, hops, again }, 0).map_err(|_| Counter::StampLost)
}

/// When the packet with this content, which has entered the stack at `last`, did so for the first time, if it was sent on since.
#[inline(always)]
pub(crate) fn first_entry<M: Memory>(skb: Skb<M>, family: u32, content: u64, last: u64) -> Option<u64> {
    if content == 0 || last == 0 {
        return None;
    }
    let forwarded = forwarded_entry(skb.address())?;
    if forwarded.content.get() != content || forwarded.again.get() != last {
        return None;
    }
    let (_, hops) = skb.protocol_and_hops(family);
    forwarded.content.set(0);
    (forwarded.hops.get() == hops + 1).then_some(forwarded.drv.get())
}

/// An skb is dropped, which does not enter again.
#[inline(always)]
pub(crate) fn dropped(skb: u64) {
    if let Some(forwarded) = forwarded_entry(skb) {
        forwarded.content.set(0);
    }
}

/// An skb gets another buffer: a larger one of its own (`pskb_expand_head`), or another skb's (`skb_morph`: of fragments, the one that came
/// last becomes the whole packet).
#[inline(always)]
pub fn rebuffered<M: Memory>(skb: Skb<M>) -> HookResult {
    skb_stamps::rebuffered(number(skb.address()), skb.shared_head());
    Ok(())
}

/// IP output (`ip_output`, `ip6_output`). A tunnel's second pass with the same skb comes when the line is complete: that was at
/// the tunnel's device.
#[inline(always)]
pub fn sent<M: Memory>(skb: Skb<M>) -> HookResult {
    if filter::is_by_process() && untraced::is_socket_untraced(skb.socket()) {
        return Ok(());
    }
    skb_stamps::stamp(skb.address(), SkbStage::IpOut);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::host::Machine;

    /// Else a packet with the same content, at the same address, would have entered when this one did.
    #[test]
    fn what_is_dropped_was_not_sent_on() {
        const SKB: u64 = 0xffff_8881_0234_0000;
        Machine::reset();
        note(SKB, 5, 9, 64).expect("there is room");
        let content = || forwarded_entry(SKB).map(|forwarded| forwarded.content.get());
        assert_eq!(content(), Some(9));
        dropped(SKB);
        assert_eq!(content(), Some(0));
    }
}

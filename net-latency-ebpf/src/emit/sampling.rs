//! More packets than the reader takes: the last quarter of the ring buffer is for a sample of them, the smaller the
//! fuller it is. So what is shown stays a fair picture of the traffic, instead of all packets of one moment and none of the next.

use net_latency_common::Counter;

use crate::{
    bpf::entry::Global,
    bpf::{FORCE_WAKEUP, NO_WAKEUP, random},
    flow::settings::setting,
};

/// Whether more packets come than the reader takes, so that it gets a sample.
#[unsafe(no_mangle)]
// SAFETY: an integer.
static SHEDDING: Global<u64> = unsafe { Global::zeroed() };

/// How often the sample is halved on the way through the last quarter.
const STEPS: u64 = 16;

/// Whether a packet gets its place in the ring buffer, and with which flags its record is submitted. One packet in 16
/// looks how full the buffer is, chosen by the low bits of `stamp`, and each packet while a sample is taken. `waiting` tells
/// how many bytes wait for the reader.
///
/// A wakeup costs thousands of instructions, so the reader comes by a timer of its own, and is woken only when the buffer
/// fills faster than that.
#[inline(always)]
pub(super) fn admit(stamp: u64, waiting: impl FnOnce() -> u64) -> Result<u64, Counter> {
    let looks = stamp >> 2 & 15 == 0;
    let is_shedding = SHEDDING.get() != 0;
    if !looks && !is_shedding {
        return Ok(NO_WAKEUP);
    }
    let quarter = u64::from(setting!(wakeup_bytes));
    let waiting = waiting();
    let sheds = waiting >= 3 * quarter;
    if sheds != is_shedding {
        // Whoever writes last has looked last, or nearly so.
        SHEDDING.set(u64::from(sheds));
    }
    if sheds {
        // Checked, since the program has no room for a panic.
        let halvings = 1 + ((waiting - 3 * quarter) * STEPS).checked_div(quarter).unwrap_or(0);
        let chance = random();
        if chance >> (u32::BITS - halvings.min(STEPS) as u32) != 0 {
            return Err(Counter::Shed);
        }
    }
    Ok(if looks && waiting >= quarter { FORCE_WAKEUP } else { NO_WAKEUP })
}

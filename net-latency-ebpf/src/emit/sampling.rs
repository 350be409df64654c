//! More packets than the reader takes: the last quarter of the ring buffer is for a sample of them, the smaller the fuller it is. So the
//! output stays a fair picture of the traffic, instead of all packets of one moment and none of the next.

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
        // The last to write has looked last, or nearly so.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::host::Machine;

    const QUARTER: u32 = 1_600;
    /// A packet that looks how full the buffer is, and one that doesn't.
    const LOOKS: u64 = 3;
    const PASSES: u64 = 4;

    fn begin() {
        Machine::reset();
        Machine::with(|machine| machine.settings.wakeup_bytes = QUARTER);
    }

    #[test]
    fn who_reads_is_woken_by_one_that_looks() {
        begin();
        let quarter = u64::from(QUARTER);
        for (stamp, waiting, how) in [
            (LOOKS, quarter - 1, NO_WAKEUP),
            (LOOKS, quarter, FORCE_WAKEUP),
            (LOOKS | 64, quarter, FORCE_WAKEUP),
            (PASSES, quarter, NO_WAKEUP),
            (PASSES | 64, quarter, NO_WAKEUP),
        ] {
            assert_eq!(admit(stamp, || waiting), Ok(how), "{stamp} {waiting}");
        }
        assert_eq!(admit(PASSES, || unreachable!("it doesn't look")), Ok(NO_WAKEUP));
    }

    /// How many of 4096 get a place.
    fn admitted(waiting: u64) -> usize {
        (0..4096).filter(|_| admit(PASSES, || waiting).is_ok()).count()
    }

    #[test]
    fn the_fuller_the_buffer_the_smaller_the_sample() {
        begin();
        let full = 3 * u64::from(QUARTER);
        // Before the first look.
        assert_eq!(admitted(full), 4096);
        let _ = admit(LOOKS, || full);
        // Halved once, and once more for each sixteenth of the last quarter.
        for halvings in 1..5_u32 {
            let expected = 4096 >> halvings;
            let step = u64::from(QUARTER) / STEPS;
            for waiting in [full + u64::from(halvings - 1) * step, full + u64::from(halvings) * step - 1] {
                let count = admitted(waiting);
                assert!(count.abs_diff(expected) < expected / 4, "{count} of 4096, {halvings} halvings");
            }
        }
        // At the end one in 65536, and no fewer.
        assert!(admitted(full + u64::from(QUARTER) - 1) < 3);
        assert!(admitted(full + 2 * u64::from(QUARTER)) < 3);
        // There is room again: all see that by the first that looks, as each does now.
        assert_eq!(admitted(full - 1), 4096);
        assert_eq!(admit(PASSES, || unreachable!("it doesn't look")), Ok(NO_WAKEUP));
    }
}

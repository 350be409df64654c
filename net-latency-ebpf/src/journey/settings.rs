//! The read-only global of the journey's programs.

use net_latency_common::journey::{JourneySettings, SLOTS};

use crate::kernel::globals::constant;

/// What the user side has found out and was requested.
#[unsafe(no_mangle)]
pub(super) static JOURNEY_SETTINGS: JourneySettings = JourneySettings {
    per_cpu_offset: 0,
    preempt_count: 0,
    task_softirq: 0,
    dataref: 0,
    sk_mark: 0,
    skb_napi_id: 0,
    napi_id: 0,
    has_reasons: 0,
    begin_out: 0,
    begin_in: 0,
    positions: [0; SLOTS],
};

/// The setting named by a field of [`JourneySettings`].
macro_rules! given {
    ($field:ident) => {
        $crate::kernel::globals::constant(&$crate::journey::settings::JOURNEY_SETTINGS.$field)
    };
}
pub(super) use given;

/// Which argument of the function in a slot is the skb.
#[inline(always)]
#[must_use]
pub fn position(slot: usize) -> u8 {
    constant(&JOURNEY_SETTINGS.positions[slot])
}

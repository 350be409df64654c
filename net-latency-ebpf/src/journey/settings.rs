//! The read-only global of the journey's programs.

use net_latency_common::journey::JourneySettings;

use crate::kernel::globals::constant;

/// What the user side has found out and was requested.
#[unsafe(no_mangle)]
pub(super) static JOURNEY_SETTINGS: JourneySettings = JourneySettings::NONE;

/// The setting that this picks.
#[inline(always)]
pub(super) fn written<T: Copy + 'static>(pick: impl Fn(&JourneySettings) -> &T) -> T {
    #[cfg(test)]
    return crate::bpf::host::Machine::with(|machine| *pick(&machine.journeys));
    #[cfg(not(test))]
    constant(pick(&JOURNEY_SETTINGS))
}

/// The setting named by a field of [`JourneySettings`].
macro_rules! given {
    ($field:ident) => {
        $crate::journey::settings::written(|settings| &settings.$field)
    };
}
pub(super) use given;

/// Which argument of the function in a slot is the skb.
#[inline(always)]
#[must_use]
pub fn position(slot: usize) -> u8 {
    constant(&JOURNEY_SETTINGS.positions[slot])
}

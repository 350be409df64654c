//! What to trace and show: a read-only global as [`crate::kernel::offsets`].

use net_latency_common::Settings;

/// What to trace and show.
#[unsafe(no_mangle)]
pub static SETTINGS: Settings = ZERO_SETTINGS;

// SAFETY: all fields are integers.
const ZERO_SETTINGS: Settings = unsafe { core::mem::zeroed() };

/// The setting named by a `Settings` field.
macro_rules! setting {
    ($field:ident) => {
        $crate::kernel::offsets::constant(&$crate::flow::settings::SETTINGS.$field)
    };
}
pub(crate) use setting;

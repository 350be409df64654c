//! What the user asked to see. Each test is no code at all while its filter is off.

use crate::{
    config::setting,
    maps::{PIDS, PORTS},
};

/// Whether packets of process `pid` (0: unknown) are wanted.
#[inline(always)]
pub(crate) fn pid(pid: u32) -> bool {
    setting!(filter_pid) == 0 || PIDS.get_ptr(pid).is_some()
}

/// Whether packets between these ports (host order) are wanted.
#[inline(always)]
pub(crate) fn ports(one: u16, other: u16) -> bool {
    setting!(filter_port) == 0
        || PORTS.get_ptr(u32::from(one)).is_some()
        || PORTS.get_ptr(u32::from(other)).is_some()
}

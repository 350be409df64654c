//! The content of one printout, whatever its format.

use net_latency_common::GroupBy;

use super::{group::Identity, model::Group};
use crate::clock::Zone;

/// The packets of an interval, or of the whole run.
#[derive(Clone, Debug)]
pub(super) struct Page {
    /// Beginning and end, in ns since 1970, UTC.
    pub(super) from_ns: i64,
    pub(super) to_ns: i64,
    /// Whose time is shown.
    pub(super) zone: Zone,
    /// Whether text has histograms below the tables.
    pub(super) histogram: bool,
    /// It is not only an interval.
    pub(super) is_whole: bool,
    /// Packets that are in no group, since their group's bucket found no room.
    pub(super) uncounted: u64,
    /// What the groups are.
    pub(super) by: GroupBy,
    /// Those that are shown.
    pub(super) groups: Vec<(Group, Identity)>,
}

//! What tests do in the place of the user side.

use std::vec::Vec;

use net_latency_common::journey::{JourneyRow, JourneyStart, TALLY_ARMED};

use super::{row, tally};
use crate::bpf::host::of_type;

/// Journeys may begin.
pub(crate) fn arm() {
    tally::count(TALLY_ARMED);
}

/// All that have begun end.
pub(crate) fn end(starts: &[JourneyStart]) {
    starts.iter().for_each(|start| tally::end(start.id));
}

/// Takes those that have begun, and all rows.
///
/// # Panics
/// If there is something else.
pub(crate) fn take() -> (Vec<JourneyStart>, Vec<JourneyRow>) {
    let all = row::take();
    let (starts, rows): (Vec<JourneyStart>, Vec<JourneyRow>) = (of_type(&all), of_type(&all));
    assert_eq!(starts.len() + rows.len(), all.len(), "starts and rows");
    (starts, rows)
}

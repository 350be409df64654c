//! What tests do in the place of the user side.

use std::vec::Vec;

use net_latency_common::journey::{JourneyRow, JourneyStart};

use super::{row, tally};

/// Journeys may begin.
pub(crate) fn arm() {
    tally::arm();
}

/// Takes those that have begun, and all rows.
///
/// # Panics
/// If there is something else.
pub(crate) fn take() -> (Vec<JourneyStart>, Vec<JourneyRow>) {
    let all = row::take();
    let of_size = |size: usize| all.iter().filter(move |words| words.len() * 8 == size);
    // SAFETY: words of that size, which a program has written as one.
    let starts: Vec<_> = of_size(size_of::<JourneyStart>())
        .map(|words| unsafe { words.as_ptr().cast::<JourneyStart>().read() })
        .collect();
    // SAFETY: as above.
    let rows: Vec<_> = of_size(size_of::<JourneyRow>())
        .map(|words| unsafe { words.as_ptr().cast::<JourneyRow>().read() })
        .collect();
    assert_eq!(starts.len() + rows.len(), all.len(), "starts and rows");
    (starts, rows)
}

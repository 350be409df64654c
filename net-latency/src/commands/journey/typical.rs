//! Packets whose time is nearest to the median of packets like them.

use std::collections::HashMap;

use net_latency_common::Direction;

use super::model::{Context, Journey, Outcome};
use crate::packet::event::Protocol;

/// Packets that are compared.
pub(super) const MOST: usize = 100;

/// Packets that are compared, until there are enough.
#[derive(Debug, Default)]
pub(super) struct Sample {
    journeys: Vec<Journey>,
}

/// What makes packets alike: whether they are received, by which protocol, and which process wrote or read them.
type Kind = (bool, Protocol, u32);

/// Those that are nearest to the median, the nearest first.
#[derive(Debug)]
pub(super) struct Typical {
    /// Of N alike.
    pub(super) of: u64,
    /// Their median time, in ns.
    pub(super) p50_ns: u64,
    pub(super) journeys: Vec<Journey>,
}

impl Sample {
    /// Adds a packet that has ended. Whether those are enough.
    pub(super) fn add(&mut self, journey: Journey) -> bool {
        if self.journeys.len() < MOST {
            self.journeys.push(journey);
        }
        self.journeys.len() >= MOST
    }

    /// N of the kind of which there are most; none if no packet came to its end.
    pub(super) fn choose(self, count: u64) -> Option<Typical> {
        let mut kinds = HashMap::<Kind, Vec<Journey>>::new();
        for journey in self.journeys {
            if let Some(kind) = kind(&journey) {
                kinds.entry(kind).or_default().push(journey);
            }
        }
        let most =
            kinds.into_iter().max_by_key(|((is_in, _, pid), alike)| (alike.len(), *is_in, u32::MAX - pid));
        let (_, mut journeys) = most?;
        let of = journeys.len() as u64;
        let mut times: Vec<_> = journeys.iter().map(Journey::total).collect();
        times.sort_unstable();
        let p50_ns = times[(times.len() - 1) / 2];
        journeys.sort_by_key(|journey| journey.total().abs_diff(p50_ns));
        journeys.truncate(usize::try_from(count).unwrap_or(usize::MAX));
        Some(Typical { of, p50_ns, journeys })
    }
}

/// None of one that was dropped, or whose end is not known.
fn kind(journey: &Journey) -> Option<Kind> {
    let pid = match (journey.direction, &journey.outcome) {
        (Direction::In, Outcome::Read { pid, .. }) => *pid,
        (Direction::Out, Outcome::Read { .. } | Outcome::Freed) => {
            journey.rows.iter().find_map(|row| match row.context {
                Context::Process { pid, .. } => Some(pid),
                _ => None,
            })?
        }
        _ => return None,
    };
    Some((journey.direction == Direction::In, journey.protocol, pid))
}

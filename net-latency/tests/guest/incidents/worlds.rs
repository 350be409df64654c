//! Systems drawn at random: one fault or none, anywhere, of any strength, and others that use the processors too.

use anyhow::{Context as _, Result};

use super::{Fault, Incident, SERVICES, Where};
use crate::peers::traffic::Random;

/// Of five worlds one is healthy, and of those with a fault one in five has it in all services.
const ONE_IN: usize = 5;
/// How long a fault lasts, ms.
const STRENGTHS: [u64; 7] = [3, 5, 10, 20, 50, 100, 200];
/// For how much of the time others use the processors, percent.
const LOADS: [u64; 6] = [0, 10, 25, 40, 60, 85];
/// About how long a run lasts, ms, and what a request takes without a fault.
const RUN_MS: u64 = 12_000;
const USUAL_MS: u64 = 20;

/// N; the same seed draws the same ones.
pub(super) fn drawn(count: &str, seed: &str) -> Result<Vec<Incident>> {
    let (count, seed): (usize, u64) = (count.parse().context("a count")?, seed.parse().context("a seed")?);
    let mut random = Random::new(seed);
    Ok((0..count).map(|_| draw(&mut random)).collect())
}

/// One with that fault for N ms in the first service, and that load.
pub(super) fn of(fault: &str, ms: &str, load: &str) -> Result<Incident> {
    let is_it = |of: &Fault| format!("{of:?}") == fault;
    let fault = Fault::ALL.into_iter().find(is_it).context("no such fault")?;
    let (ms, load) = (ms.parse()?, load.parse()?);
    Ok(Incident { fault, place: fault.places()[0], ms, hit: 0..1, rounds: rounds(ms), load })
}

fn draw(random: &mut Random) -> Incident {
    let faults: Vec<_> = Fault::ALL.into_iter().filter(|fault| fault.expected().is_some()).collect();
    let is_healthy = random.below(ONE_IN) == 0;
    let fault = if is_healthy { Fault::Nothing } else { faults[random.below(faults.len())] };
    let places: &[Where] = fault.places();
    let place = places[random.below(places.len())];
    let ms = STRENGTHS[random.below(STRENGTHS.len())];
    let first = random.below(SERVICES);
    let hit = if random.below(ONE_IN) == 0 { 0..SERVICES } else { first..first + 1 };
    let load = LOADS[random.below(LOADS.len())];
    let ms = if fault.has_strength() { ms } else { 0 };
    Incident { fault, place, ms, hit, rounds: rounds(ms), load }
}

fn rounds(ms: u64) -> u32 {
    u32::try_from(RUN_MS / (ms + USUAL_MS)).unwrap_or(u32::MAX).clamp(40, 300)
}

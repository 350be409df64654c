//! Systems drawn at random: one fault or none, anywhere, of any strength, and others that use the processors too.

use anyhow::{Context as _, Result};

use super::{
    Fault, Incident, MOST_SERVICES,
    system::{Asks, Connections, Manner, Shape, Where},
};
use crate::peers::traffic::Random;

/// Of five worlds one is healthy, and of those with a fault one in five has it in all services.
const ONE_IN: usize = 5;
/// How long a fault lasts, ms.
const STRENGTHS: [u64; 7] = [3, 5, 10, 20, 50, 100, 200];
/// Less work for an answer is none on busy processors.
const LEAST_WORK: u64 = 50;
const MOST_GATEWAYS: usize = 3;
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
    let (place, shape) = (fault.places()[0], fault.shape());
    Ok(Incident { fault, place, ms, hit: 0..1, rounds: rounds(fault, ms, shape), load, shape })
}

fn draw(random: &mut Random) -> Incident {
    let faults: Vec<_> = Fault::ALL.into_iter().filter(|fault| fault.expected().is_some()).collect();
    let is_healthy = random.below(ONE_IN) == 0;
    let fault = if is_healthy { Fault::Nothing } else { any(random, &faults) };
    let place = any(random, &[fault.places(), &[Where::Nat]].concat());
    let ms = any(random, &STRENGTHS);
    let ms = if fault == Fault::Spins { ms.max(LEAST_WORK) } else { ms };
    let shape = draw_shape(random, fault);
    let first = random.below(shape.services);
    let hit = if random.below(ONE_IN) == 0 { 0..shape.services } else { first..first + 1 };
    let load = any(random, &LOADS);
    let ms = if fault.has_strength() { ms } else { 0 };
    Incident { fault, place, ms, hit, rounds: rounds(fault, ms, shape), load, shape }
}

fn draw_shape(random: &mut Random, fault: Fault) -> Shape {
    let manner = any(random, fault.manners());
    // One thread with one connection has no other.
    let many: Vec<_> = fault.connections().iter().copied().filter(|of| *of != Connections::Several).collect();
    let connections = any(random, if manner == Manner::Alone { &many } else { fault.connections() });
    let (services, gateways) = (1 + random.below(MOST_SERVICES), 1 + random.below(MOST_GATEWAYS));
    let asks = any(random, &Asks::ALL);
    Shape { services, gateways, manner, connections, asks }
}

fn any<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len())]
}

fn rounds(fault: Fault, ms: u64, shape: Shape) -> u32 {
    // One in six requests waits for a second in vain, or some.
    let lost_ms = if matches!(fault, Fault::Forgets | Fault::Overflows) { 200 } else { 0 };
    let usual_ms = USUAL_MS * shape.gateways as u64;
    u32::try_from(RUN_MS / (ms + lost_ms + usual_ms)).unwrap_or(u32::MAX).clamp(40, 300)
}

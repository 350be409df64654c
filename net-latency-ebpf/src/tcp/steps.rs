//! Walks along what waits: step by step, many steps to a batch, and batches to a run.
//!
//! A step is a global function, which the verifier checks once by itself instead of once per turn of the loop around it
//! (Linux 5.6). So is a batch, since the verifier follows each turn: it takes the longer the more turns there are in one
//! function, and goes through them for each way that leads there. Such functions take numbers only; hence all they need is in
//! the connection.

/// Steps in a batch. Histories of tests have few segments.
pub(crate) const BATCH: u32 = if cfg!(test) { 4 } else { 16 };

/// Batches of a run, where nothing says otherwise.
pub(super) const RUN: u32 = 512 / BATCH;

/// What a step found: the last one, or one with more behind it, or none.
pub(super) const DONE: u32 = 0;
pub(super) const MORE: u32 = 1;
pub(super) const MISSED: u32 = 2;

/// Takes steps, or batches of them, until there is no more, and `times` at most. Returns what the last one found.
#[inline(always)]
pub(super) fn repeat(times: u32, step: impl Fn() -> u32) -> u32 {
    let mut found = MORE;
    for _ in 0..times {
        found = step();
        if found != MORE {
            break;
        }
    }
    found
}

/// A batch of steps, or of batches. It returns what the last one found.
macro_rules! batch {
    ($(#[$about:meta])* $batch:ident = $step:ident($($argument:ident: $type:ty),*)) => {
        $(#[$about])*
        #[unsafe(no_mangle)]
        #[inline(never)]
        extern "C" fn $batch($($argument: $type),*) -> u32 {
            $crate::tcp::steps::repeat($crate::tcp::steps::BATCH, || $step($($argument),*))
        }
    };
}
pub(super) use batch;

//! Walks along what waits: step by step, many steps to a batch, and batches to a run of a program.
//!
//! A step is a global function, which the verifier checks once by itself instead of once per turn of the loop around it
//! (Linux 5.6). A batch is one too, since the verifier follows each turn: it takes the longer the more turns there are in one
//! function. Such functions take numbers only; hence all they need is in the connection.

/// Steps in a batch. Histories of tests have few segments.
pub(crate) const BATCH: u32 = if cfg!(test) { 4 } else { 16 };

/// What a step found: the last one, or one with more behind it, or none.
pub(crate) const DONE: u32 = 0;
pub(crate) const MORE: u32 = 1;
pub(crate) const MISSED: u32 = 2;

/// Takes steps, or batches of them, until there is no more, and `times` at most. Returns what the last one found.
#[inline(always)]
pub(crate) fn repeat(times: u32, step: impl Fn() -> u32) -> u32 {
    let mut found = MORE;
    for _ in 0..times {
        found = step();
        if found != MORE {
            break;
        }
    }
    found
}

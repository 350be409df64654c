//! What makes each service slow, for every command that says so.
//!
//! [`model`] collects, with what [`connections`] know of the packets before, and [`holders`] of those who had the CPUs; [`verdict`]
//! finds the [`cause`], in [`words`]; [`text`] and [`json`] write all of what came of it, and [`headline`] what one line has room
//! for. [`recent`] keeps to the last seconds.

mod cause;
mod connections;
mod headline;
mod holders;
pub(crate) mod json;
mod model;
mod recent;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod verdict;
mod words;

pub(crate) use self::{headline::Headline, verdict::judge};
pub use self::{model::Model, recent::Recent};

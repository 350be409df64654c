//! What makes each service slow, for every command that shows it.
//!
//! [`model`] collects, for each [`service`] and each [`side`] of it, in [`windows`] of time: [`answers`] with the parts of their time,
//! [`waits`] for others' answers, datagrams that are [`awaited`], [`connections`] with the packets before, [`holders`] of CPUs, the
//! [`machine`]'s own figures, [`listening`] sockets, and what threads [`did`] for answers. [`suspects`] are the times that may be the
//! cause, [`judge`] finds it for a direction of a service, [`drops`] for sockets, [`unanswered`] for requests in vain, and [`verdict`] puts
//! the [`finding`]s in order. [`text`] and [`json`] write all of the result, and [`headline`] as much as fits one line, in [`words`].
//! [`recent`] keeps to the last seconds.

mod answers;
mod awaited;
mod cause;
mod connections;
mod datagrams;
mod did;
mod dropped;
mod drops;
mod finding;
mod headline;
mod holders;
mod item;
pub(crate) mod json;
mod judge;
mod listening;
mod machine;
mod model;
mod opening;
mod recent;
mod service;
mod side;
mod suspects;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod translated;
mod unanswered;
mod verdict;
mod waits;
mod windows;
mod words;

pub(crate) use self::{
    dropped::Dropped, finding::Verdict, headline::Headline, listening::Listening, machine::Sensors,
    verdict::judge,
};
pub use self::{model::Model, recent::Recent};

//! Recorded logs: bytes ([`input`]) → [`lines`] → [`json`] or [`csv`] → [`packet`], line by line by [`read`]. The report
//! takes packets; other views take [`record`]s of all logs in order ([`merge`]), at a pace ([`replay`]).

pub(crate) mod csv;
mod exact;
pub(crate) mod input;
pub(crate) mod json;
mod lines;
mod merge;
pub(crate) mod packet;
pub(crate) mod read;
mod record;
pub(crate) mod replay;
pub(crate) mod time;

//! Recorded logs: bytes ([`input`]) → [`lines`] → [`fields`] by [`json`] or [`csv`] → [`record`], line by line by [`read`]; those of
//! `net-latency record` come to their fields by [`recorded`]. The
//! report takes them as they come; other views take those of all logs in order ([`merge`]), at a pace ([`replay`]).

pub(crate) mod csv;
mod exact;
mod fields;
pub(crate) mod input;
mod json;
pub(crate) mod lines;
pub(crate) mod merge;
pub(crate) mod read;
pub(crate) mod record;
mod recorded;
pub(crate) mod replay;
mod skipped;
mod time;

//! Recorded logs: bytes ([`input`]) → [`lines`] → [`json`] or [`csv`] → [`packet`], line by line by [`read`].

pub(crate) mod csv;
pub(crate) mod input;
pub(crate) mod json;
mod lines;
pub(crate) mod packet;
pub(crate) mod read;
pub(crate) mod time;

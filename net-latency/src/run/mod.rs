//! A run from its start to its end, for every view: attaching, what ends it from outside, detaching.

pub(crate) mod beats;
pub(crate) mod command;
pub(crate) mod connections;
pub(crate) mod ends;
pub(crate) mod kernel_log;
pub(crate) mod names;
pub(crate) mod notice;
pub(crate) mod pace;
pub(crate) mod privileges;
pub(crate) mod tracer;

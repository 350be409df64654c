//! What the stream of lines is asked for.

use std::{ffi::OsString, num::NonZeroU64, path::PathBuf, time::Duration};

use super::{
    filter::PacketFilter,
    format::{FooterFormat, Format},
    rotation::Rotation,
    tracing::TracingConfig,
};
use crate::clock::Zone;

/// What to trace, how to show it and when to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamConfig {
    /// A command to run and trace, and its arguments; none if empty.
    pub command: Vec<OsString>,
    /// Which packets.
    pub filter: PacketFilter,
    /// By what means.
    pub tracing: TracingConfig,
    /// Form of the lines.
    pub format: Format,
    /// File to append lines to; standard output if `None`.
    pub output: Option<PathBuf>,
    /// When that file is rotated.
    pub rotation: Rotation,
    /// Whose time the lines show.
    pub zone: Zone,
    /// Nothing on stderr but errors.
    pub quiet: bool,
    /// Form of the figures at the end.
    pub footer: FooterFormat,
    /// 0: lines only; 1: details on text lines and the kernel side's diagnostics; 2 or more: debugging.
    pub verbosity: u8,
    /// Time after which to stop.
    pub duration: Option<Duration>,
    /// Time between two reports on standard error.
    pub interval: Option<Duration>,
    /// Number of lines after which to stop.
    pub count: Option<NonZeroU64>,
}

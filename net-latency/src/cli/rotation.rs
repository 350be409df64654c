//! When the output file is rotated.

use std::{path::Path, time::Duration};

use clap::Args;

use crate::{
    error::Failure,
    request::{Rotation, values},
};

/// Old files that stay unless the user says otherwise.
const KEEP: u32 = 9;

/// The options, as clap reads them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct RotationArguments {
    /// Begin a new file before this one is larger: 64K, 100M, 1G (FILE becomes FILE.1, …)
    #[arg(long, value_name = "SIZE", value_parser = values::parse_file_size)]
    rotate_size: Option<u64>,
    /// Begin a new file every DURATION: 10m, 24h
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration)]
    rotate_every: Option<Duration>,
    /// Rotated files to keep; the oldest is removed [default: 9]
    #[arg(long, value_name = "FILES", value_parser = values::parse_files)]
    rotate_keep: Option<u32>,
}

impl RotationArguments {
    /// Checks that there is something to rotate.
    pub(super) fn resolve(self, output: Option<&Path>) -> Result<Rotation, Failure> {
        let Self { rotate_size: size, rotate_every: every, rotate_keep: keep } = self;
        let rotation = Rotation { size, every, keep: keep.unwrap_or(KEEP) };
        let refuse = |sentence: &str| Err(Failure::Usage(sentence.to_owned()));
        if keep.is_some() && !rotation.is_wanted() {
            return refuse(
                "--rotate-keep does nothing by itself; add --rotate-size SIZE or --rotate-every DURATION",
            );
        }
        if rotation.is_wanted() && output.is_none() {
            return refuse("--rotate-size and --rotate-every need a file; add --output FILE");
        }
        if every.is_some_and(|every| every < Duration::from_secs(1)) {
            return refuse("--rotate-every is too short; write 1s or longer");
        }
        Ok(rotation)
    }
}

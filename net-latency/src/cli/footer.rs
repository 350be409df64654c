//! Output on standard error: the options that all views that trace share.

use clap::Args;

use super::choice::{choice, first};
use crate::request::FooterFormat;

/// The options, as clap reads them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct FooterArguments {
    /// Format of the summary on standard error; json: one line
    #[arg(long, value_name = "FORMAT", value_parser = choice::<FooterFormat>(), default_value = first::<FooterFormat>())]
    footer: FooterFormat,
    /// Only errors on standard error, and no summary; not with --footer
    #[arg(short, long, conflicts_with = "footer")]
    quiet: bool,
}

impl FooterArguments {
    /// Whether only errors are told, and the format of the footer.
    pub(super) fn resolve(&self) -> (bool, FooterFormat) {
        (self.quiet, if self.quiet { FooterFormat::None } else { self.footer })
    }
}

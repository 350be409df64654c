//! What is said on standard error: the options that every view that traces shares.

use clap::{Args, ValueEnum, builder::PossibleValue};

use crate::request::footer::FooterForm;

/// The options, as clap reads them.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct FooterArguments {
    /// Form of the figures at the end (and of --interval) on standard error; json: an object on one line
    #[arg(long, value_enum, value_name = "FORM", default_value_t)]
    footer: FooterForm,
    /// No messages on standard error but errors, and no footer; not with --footer
    #[arg(short, long, conflicts_with = "footer")]
    quiet: bool,
}

impl FooterArguments {
    /// Whether only errors are told, and the form of the footer.
    pub(super) fn resolve(&self) -> (bool, FooterForm) {
        (self.quiet, if self.quiet { FooterForm::None } else { self.footer })
    }
}

impl ValueEnum for FooterForm {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Text, Self::Json, Self::None]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        Some(match self {
            Self::Text => PossibleValue::new("text").help("To read"),
            Self::Json => {
                PossibleValue::new("json").help("A JSON object on one line (docs/footer.schema.json)")
            }
            Self::None => PossibleValue::new("none").help("No footer"),
        })
    }
}

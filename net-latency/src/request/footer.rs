//! What is said at the end.

/// Form of the figures at the end, on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FooterForm {
    /// To read.
    #[default]
    Text,
    /// A JSON object on one line.
    Json,
    /// None.
    None,
}

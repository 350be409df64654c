//! Why a line of a log is no packet.

/// Why a line was passed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// It is no JSON.
    NoJson,
    /// It is JSON, and no packet.
    OtherJson,
    /// It is of the text form.
    Text,
    /// It is no JSON, and no CSV header has come.
    NoCsv,
    /// It has more or fewer values than the CSV header has names.
    Width,
    /// A value is not of its column's kind.
    Value,
    /// It lacks what every packet has.
    Incomplete,
    /// It is longer than any of ours.
    TooLong,
    /// A name in it is.
    LongName,
}

impl Skipped {
    /// As the end of a sentence that begins with the place.
    #[must_use]
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::NoJson => "is not valid JSON",
            Self::OtherJson => "is not a packet's JSON, or has a value of the wrong type",
            Self::Text => "is of the text form",
            Self::NoCsv => "is neither JSON nor below a CSV header",
            Self::Width => "has more or fewer values than the CSV header",
            Self::Value => "has a value of the wrong type",
            Self::Incomplete => "lacks a readable ts, dir or proto",
            Self::TooLong => "is too long",
            Self::LongName => "has a name that is too long",
        }
    }
}

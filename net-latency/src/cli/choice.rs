//! Options whose value is one of a few words.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use crate::request::choice::Choice;

/// Reads one of the words of `T`; help, completions and the manual page list them.
pub(super) fn choice<T: Choice>() -> impl TypedValueParser<Value = T> {
    let words = T::ALL.iter().map(|(_, word, help)| {
        let value = PossibleValue::new(*word);
        if help.is_empty() { value } else { value.help(*help) }
    });
    PossibleValuesParser::new(words).try_map(|word| {
        let found = T::ALL.iter().find(|(_, known, _)| *known == word);
        found.map(|(value, ..)| *value).ok_or("no such value")
    })
}

/// The word that holds where none is given.
pub(super) fn first<T: Choice>() -> &'static str {
    T::ALL[0].1
}

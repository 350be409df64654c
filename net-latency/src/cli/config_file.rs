//! A configuration file: TOML whose keys are long options, at the top or in a section per view.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use toml::de::{DeArray, DeTable, DeValue};

use crate::error::Failure;

/// What to write, for those whose file is no TOML at all.
const FORM: &str = "write lines such as format = \"json\" or pid = [1, 2]";

/// The defaults in one file.
#[derive(Debug)]
pub(super) struct ConfigFile {
    pub(super) path: PathBuf,
    /// Names of the sections, and where they begin.
    pub(super) sections: Vec<(String, usize)>,
    /// In no particular order; no option twice in the same section.
    pub(super) entries: Vec<Entry>,
}

/// The default of one option.
#[derive(Debug)]
pub(super) struct Entry {
    /// The view whose section this is in; `None` at the top.
    pub(super) view: Option<String>,
    /// The option's long name.
    pub(super) key: String,
    pub(super) value: Value,
    pub(super) line: usize,
}

/// A value as it is written; what it means is the option's to say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Value {
    Switch(bool),
    Number(String),
    Text(String),
    List(Vec<String>),
}

impl ConfigFile {
    /// Reads a file; `None` if there is none.
    ///
    /// # Errors
    /// A usage failure that names the file, and the line where there is one.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, Failure> {
        let unreadable = |error: &dyn std::fmt::Display| {
            Failure::Usage(format!("cannot read {}: {error}", path.display()))
        };
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if is_missing(&error) => return Ok(None),
            // Whose directory can't be entered is another user's: sudo may leave us their HOME.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && fs::metadata(path).is_err() => {
                return Ok(None);
            }
            Err(error) => return Err(unreadable(&error)),
        };
        let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is not UTF-8 text"))?;
        Self::parse(path, &text).map(Some)
    }

    /// Reads a file's text.
    fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let line_of = |offset: usize| {
            1 + text.as_bytes()[..offset.min(text.len())].iter().filter(|b| **b == b'\n').count()
        };
        let mut file = Self { path: path.to_owned(), sections: Vec::new(), entries: Vec::new() };
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(span.start));
            let what = error.message().lines().collect::<Vec<_>>().join(", ");
            file.wrong(line, &format!("{what}; {FORM}"))
        })?;
        for (key, value) in table.into_inner() {
            let line = line_of(key.span().start);
            let key = key.into_inner().into_owned();
            match value.into_inner() {
                DeValue::Table(section) => {
                    file.sections.push((key.clone(), line));
                    for (inner, value) in section {
                        let line = line_of(inner.span().start);
                        file.add(
                            Some(key.clone()),
                            inner.into_inner().into_owned(),
                            value.into_inner(),
                            line,
                        )?;
                    }
                }
                value => file.add(None, key, value, line)?,
            }
        }
        Ok(file)
    }

    fn add(
        &mut self,
        view: Option<String>,
        key: String,
        value: DeValue<'_>,
        line: usize,
    ) -> Result<(), Failure> {
        let value = match value {
            DeValue::Boolean(on) => Value::Switch(on),
            DeValue::Array(list) => match texts(&list) {
                Some(list) => Value::List(list),
                None => {
                    return Err(
                        self.wrong(line, &format!("a list for {key} holds texts or whole numbers only"))
                    );
                }
            },
            value => match (text(&value), value) {
                (Some(number), DeValue::Integer(_)) => Value::Number(number),
                (Some(text), _) => Value::Text(text),
                (None, value) => {
                    let what = format!(
                        "{key} can't be a {}; write true or false, a whole number, a text in quotes, or a list of these in brackets",
                        value.type_str()
                    );
                    return Err(self.wrong(line, &what));
                }
            },
        };
        self.entries.push(Entry { view, key, value, line });
        Ok(())
    }

    /// What is wrong with a line, as a failure.
    pub(super) fn wrong(&self, line: usize, what: &str) -> Failure {
        Failure::Usage(format!("{}, line {line}: {what}", self.path.display()))
    }
}

/// `NotADirectory`: HOME may be /dev/null.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn texts(list: &DeArray<'_>) -> Option<Vec<String>> {
    list.iter().map(|value| text(value.get_ref())).collect()
}

/// A number or a text as one would write it on a command line.
fn text(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.clone().into_owned()),
        DeValue::Integer(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<ConfigFile, String> {
        ConfigFile::parse(Path::new("config.toml"), text).map_err(|failure| failure.to_string())
    }

    #[test]
    fn every_kind_of_value_arrives_with_its_line() {
        let text = "# mine\nutc = true\npid = [1, 2]\n\nport = 443\nmark = 0x10\n[top]\nformat = \"json\"\n";
        let mut entries = parse(text).expect("right").entries;
        entries.sort_by_key(|entry| entry.line);
        let read: Vec<_> =
            entries.iter().map(|e| (e.line, e.view.as_deref(), e.key.as_str(), &e.value)).collect();
        assert_eq!(
            read,
            [
                (2, None, "utc", &Value::Switch(true)),
                (3, None, "pid", &Value::List(vec!["1".to_owned(), "2".to_owned()])),
                (5, None, "port", &Value::Number("443".to_owned())),
                (6, None, "mark", &Value::Number("0x10".to_owned())),
                (8, Some("top"), "format", &Value::Text("json".to_owned())),
            ]
        );
    }

    #[test]
    fn what_is_no_default_is_refused_by_its_line() {
        let wrong = [
            "utc = true\nformat = json",
            "utc = true\nutc = true",
            "\n--utc",
            "[top\n",
            "interval = 1.5",
            "interval = 2026-11-21",
            "pid = [[1]]",
            "port = [80, true]",
            "[top]\n[top.more]\nutc = true",
        ];
        let sentences: Vec<_> = wrong.iter().map(|text| parse(text).expect_err(text)).collect();
        assert!(sentences.iter().all(|sentence| sentence.lines().count() == 1));
        insta::assert_snapshot!(sentences.join("\n"));
    }

    #[test]
    fn a_file_that_is_not_there_has_no_defaults() {
        let directory = tempfile::tempdir().expect("temporary directory");
        assert!(ConfigFile::read(&directory.path().join("none")).expect("no error").is_none());
        assert!(ConfigFile::read(Path::new("/dev/null/none")).expect("no error").is_none());
    }

    #[test]
    fn a_file_that_is_no_text_is_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("config.toml");
        fs::write(&path, b"utc = \"\xff\"").expect("writable");
        let sentence = ConfigFile::read(&path).expect_err("no text").to_string();
        assert_eq!(sentence, format!("cannot read {}: it is not UTF-8 text", path.display()));
        let sentence = ConfigFile::read(directory.path()).expect_err("no file").to_string();
        assert!(sentence.starts_with(&format!("cannot read {}: ", directory.path().display())), "{sentence}");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _unused = parse(&text);
        }
    }
}

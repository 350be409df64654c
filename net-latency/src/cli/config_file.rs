//! A configuration file: TOML whose keys are long options, at the top or in a section per view.

use std::{
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use memchr::memchr_iter;
use rustix::process::geteuid;

use toml::de::{DeArray, DeTable, DeValue};

use crate::{error::Failure, files::Place};

/// What to write, for those whose file is no TOML at all.
const FORM: &str = "write lines such as format = \"json\" or pid = [1, 2]";

/// Nobody writes as much, in bytes.
const MOST: u64 = 1 << 20;

/// Why a file is not read.
#[derive(Debug)]
pub(super) enum Unread {
    /// There is none, or none that can be seen.
    Missing,
    /// Somebody else may have written it, who must not say what root does.
    Foreign(String),
    /// It is wrong.
    Wrong(Failure),
}

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
    /// Reads a file. As root only one that root owns and that no one else can write.
    ///
    /// # Errors
    /// Why there is nothing to read; what is wrong names the file, and the line where there is one.
    pub(super) fn read(path: &Path) -> Result<Self, Unread> {
        Self::read_as(geteuid().is_root(), path)
    }

    fn read_as(is_root: bool, path: &Path) -> Result<Self, Unread> {
        let unreadable = |error: &dyn std::fmt::Display| {
            Unread::Wrong(Failure::Usage(format!("cannot read {}: {error}", path.display())))
        };
        // Without waiting for anything: it may be a FIFO.
        let file = match Place::find(path).and_then(|place| place.read()) {
            Ok(file) => file,
            Err(error) if is_missing(&error) => return Err(Unread::Missing),
            // Through somebody else's link.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_root => {
                return Err(Unread::Foreign(format!("{}: {error}", path.display())));
            }
            // Whose directory can't be entered is another user's: sudo may leave us their HOME.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !path.exists() => {
                return Err(Unread::Missing);
            }
            Err(error) => return Err(unreadable(&error)),
        };
        let metadata = file.metadata().map_err(|error| unreadable(&error))?;
        if !metadata.is_file() {
            return Err(unreadable(&"it is no regular file"));
        }
        if is_root {
            let why = match (metadata.uid(), metadata.mode() & 0o022) {
                (0, 0) => None,
                (0, _) => Some("others can write it; chmod go-w".to_owned()),
                (uid, _) => Some(format!("it belongs to another user (uid {uid}); chown root")),
            };
            if let Some(why) = why {
                let name = path.display();
                return Err(Unread::Foreign(format!("{name}: {why} {name} if root is to obey it")));
            }
        }
        let mut bytes = Vec::new();
        (&file).take(MOST + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
        if bytes.len() as u64 > MOST {
            return Err(unreadable(&format_args!("it has more than {} MiB", MOST >> 20)));
        }
        let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is not UTF-8 text"))?;
        Self::parse(path, &text).map_err(Unread::Wrong)
    }

    /// Reads a file's text.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let newlines: Vec<usize> = memchr_iter(b'\n', text.as_bytes()).collect();
        let line_of = |offset: usize| 1 + newlines.partition_point(|newline| *newline < offset);
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
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use proptest::prelude::*;

    use super::*;

    fn wrong(path: &Path) -> String {
        match ConfigFile::read(path) {
            Err(Unread::Wrong(failure)) => failure.to_string(),
            other => panic!("{other:?}"),
        }
    }

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
        for path in [&directory.path().join("none"), Path::new("/dev/null/none")] {
            assert!(matches!(ConfigFile::read(path), Err(Unread::Missing)), "{}", path.display());
        }
    }

    #[test]
    fn a_file_that_is_no_text_is_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("config.toml");
        fs::write(&path, b"utc = \"\xff\"").expect("writable");
        let sentence = wrong(&path);
        assert_eq!(sentence, format!("cannot read {}: it is not UTF-8 text", path.display()));
        let sentence = wrong(directory.path());
        assert!(sentence.starts_with(&format!("cannot read {}: ", directory.path().display())), "{sentence}");
        fs::write(&path, "\n".repeat(2 << 20)).expect("writable");
        assert!(wrong(&path).ends_with("it has more than 1 MiB"));
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).expect("made");
        assert!(wrong(&fifo).ends_with("it is no regular file"));
    }

    #[test]
    fn root_obeys_root_only() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("config.toml");
        fs::write(&path, "utc = true").expect("writable");
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("ours");
        let foreign = |path: &Path| match ConfigFile::read_as(true, path) {
            Err(Unread::Foreign(why)) => Some(why.replace(path.to_str().expect("UTF-8"), "FILE")),
            Ok(_) => None,
            Err(other) => panic!("{other:?}"),
        };
        mode(0o644);
        if geteuid().is_root() {
            assert_eq!(foreign(&path), None);
            mode(0o664);
            assert_eq!(
                foreign(&path).as_deref(),
                Some("FILE: others can write it; chmod go-w FILE if root is to obey it")
            );
            mode(0o644);
            std::os::unix::fs::chown(&path, Some(65534), None).expect("given away");
        }
        let why = foreign(&path).expect("somebody else's");
        assert!(why.starts_with("FILE: it belongs to another user (uid "), "{why}");
        // Another user may obey whom they like.
        assert_eq!(ConfigFile::read_as(false, &path).expect("fine").entries.len(), 1);
    }

    #[test]
    fn lines_are_found_in_one_pass() {
        let text = format!("{}x0 = 1", (1..60_000).map(|n| format!("k{n} = 1\n")).collect::<String>());
        let began = std::time::Instant::now();
        let entries = parse(&text).expect("right").entries;
        assert_eq!(entries.iter().map(|entry| entry.line).max(), Some(60_000));
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "{:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _unused = parse(&text);
        }
    }
}

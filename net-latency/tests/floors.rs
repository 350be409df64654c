//! Imports run down the floors only: each room of the user side knows those below it, and none above.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use regex_lite::Regex;

/// From the ground up. Rooms of one floor don't know each other.
const FLOORS: &[&[&str]] = &[
    &["escape", "files", "fuzz"],
    &["message"],
    &["clock", "error"],
    &["packet"],
    &["request"],
    &["kernel"],
    &["cli", "output", "probes"],
    &["accounting"],
    &["diagnosis", "export", "source"],
    &["run"],
    &["commands"],
    &["lib"],
];

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// The code without its tests, which may look anywhere.
fn without_tests(text: &str) -> &str {
    text.split_once("#[cfg(test)]\nmod ").map_or(text, |(code, _)| code)
}

/// The rooms that a text imports from: behind `crate::` one, or some in braces.
fn imported(text: &str) -> BTreeSet<String> {
    let path = Regex::new(r"crate::(?:\{|(\w+))").expect("a pattern");
    let mut rooms = BTreeSet::new();
    for found in path.captures_iter(text) {
        if let Some(room) = found.get(1) {
            rooms.insert(room.as_str().to_owned());
            continue;
        }
        let mut depth = 1;
        let mut word = String::new();
        let mut is_first = true;
        for c in text[found.get(0).expect("a match").end()..].chars() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => is_first = true,
                _ => {}
            }
            if depth == 1 && is_first && (c.is_alphanumeric() || c == '_') {
                word.push(c);
            } else if !word.is_empty() {
                rooms.insert(std::mem::take(&mut word));
                is_first = false;
            }
            if depth == 0 {
                break;
            }
        }
    }
    rooms
}

#[test]
fn imports_are_found_in_every_form() {
    let text = "use crate::clock::Zone;\nuse crate::{\n    error::Failure,\n    kernel::{self, facts::Live},\n    output,\n};\nlet x = crate::run::now();";
    assert_eq!(Vec::from_iter(imported(text)), ["clock", "error", "kernel", "output", "run"]);
}

#[test]
fn imports_run_down_the_floors_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let below = file.strip_prefix(&root).expect("below the root");
        let first = below.iter().next().and_then(|part| part.to_str()).expect("text");
        let room = first.strip_suffix(".rs").unwrap_or(first);
        if room == "main" || below.file_stem().is_some_and(|stem| stem == "tests") {
            continue;
        }
        let own = floor(room).unwrap_or_else(|| panic!("{room} has no floor: give it one in FLOORS"));
        let text = fs::read_to_string(&file).expect("a source file");
        for other in imported(without_tests(&text)) {
            let Some(theirs) = floor(&other) else { panic!("{}: what is crate::{other}?", below.display()) };
            if other == room || theirs < own {
                continue;
            }
            wrong.push(format!("{}: {room} imports {other}", below.display()));
        }
    }
    assert!(wrong.is_empty(), "imports that run up, or along a floor:\n{}", wrong.join("\n"));
}

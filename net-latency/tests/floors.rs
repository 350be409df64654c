//! Imports run down the floors only: each room of the user side knows those below it, and none above.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use regex_lite::Regex;
use walkdir::WalkDir;

/// From the ground up. Rooms of one floor don't know each other.
const FLOORS: &[&[&str]] = &[
    &["escape", "files", "fuzz", "name", "named", "written"],
    &["message"],
    &["clock", "error"],
    &["packet"],
    &["recording", "request"],
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

fn sources(folder: &Path) -> Vec<PathBuf> {
    let paths = WalkDir::new(folder).into_iter().map(|entry| entry.expect("an entry").into_path());
    paths.filter(|path| path.extension().is_some_and(|ending| ending == "rs")).collect()
}

/// The code without its tests, which may look anywhere, and without comments, which may name anything.
fn code(text: &str) -> String {
    let tests = ["mod", "pub(crate) mod"].map(|module| format!("#[cfg(test)]\n{module} "));
    let code = tests.iter().fold(text, |text, tests| text.split_once(tests).map_or(text, |(code, _)| code));
    code.lines().filter(|line| !line.trim_start().starts_with("//")).flat_map(|line| [line, "\n"]).collect()
}

/// Every path that a text names from `crate` or `super` on, those in braces each by itself.
fn paths(text: &str) -> Vec<Vec<&str>> {
    let start = Regex::new(r"\b(?:crate|super)::").expect("a pattern");
    let mut found = Vec::new();
    for begin in start.find_iter(text) {
        // Of `super::super::x` the second is part of the first.
        if !text[..begin.start()].ends_with("::") {
            branch(&text[begin.start()..], &mut Vec::new(), &mut found);
        }
    }
    found
}

/// Reads the rest of `path`, a name or several in braces, to its end; returns the text behind it.
fn branch<'a>(text: &'a str, path: &mut Vec<&'a str>, found: &mut Vec<Vec<&'a str>>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
            if rest.is_empty() {
                return rest;
            }
            if let Some(behind) = rest.strip_prefix('}') {
                return behind;
            }
            rest = branch(rest, path, found);
        }
    }
    let len = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let (name, rest) = text.split_at(len);
    if name.is_empty() {
        // `*`
        found.push(path.clone());
        return rest.get(1..).unwrap_or_default();
    }
    path.push(name);
    let rest = match rest.strip_prefix("::") {
        Some(rest) => branch(rest, path, found),
        None => {
            found.push(path.clone());
            // `x as y`
            rest.strip_prefix(" as ")
                .map_or(rest, |renamed| renamed.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_'))
        }
    };
    path.pop();
    rest
}

/// The rooms that a text imports from.
fn imported(text: &str) -> BTreeSet<&str> {
    paths(text)
        .into_iter()
        .filter(|path| path[0] == "crate")
        .filter_map(|path| path.get(1).copied())
        .collect()
}

/// The sources below a folder by their modules' paths, without what only tests have.
fn modules(root: &Path) -> BTreeMap<Vec<String>, String> {
    let modules = sources(root).into_iter().filter_map(|file| {
        let below = file.strip_prefix(root).expect("below the root").with_extension("");
        let mut path: Vec<_> = below.iter().map(|part| part.to_str().expect("text").to_owned()).collect();
        match path.last().map(String::as_str) {
            Some("tests") => return None,
            Some("mod" | "lib" | "main") => drop(path.pop()),
            _ => {}
        }
        Some((path, code(&fs::read_to_string(&file).expect("a source file"))))
    });
    modules.collect()
}

/// Which modules each module takes something from. What a folder passes on is its file's.
fn taken(modules: &BTreeMap<Vec<String>, String>) -> BTreeMap<&[String], BTreeSet<&[String]>> {
    let passed_on = Regex::new(r"pub(?:\([^)]*\))? use (\w+::[^;]+);").expect("a pattern");
    let passed: BTreeMap<_, Vec<Vec<String>>> = modules
        .iter()
        .map(|(module, text)| {
            let mut found = Vec::new();
            for tree in passed_on.captures_iter(text) {
                branch(tree.get(1).expect("a match").as_str(), &mut Vec::new(), &mut found);
            }
            (module, found.into_iter().map(|path| path.into_iter().map(str::to_owned).collect()).collect())
        })
        .collect();
    let resolve = |module: &[String], path: &[&str]| -> Option<&[String]> {
        let mut at = if path[0] == "crate" { Vec::new() } else { module.to_vec() };
        let mut names = path.iter().copied().skip_while(|name| *name == "crate").peekable();
        while names.next_if_eq(&"super").is_some() {
            at.pop();
        }
        for name in names {
            let child = [at.as_slice(), &[name.to_owned()]].concat();
            if modules.contains_key(&child) {
                at = child;
                continue;
            }
            let tree = passed
                .get(&at)
                .into_iter()
                .flatten()
                .find(|tree| tree.last().is_some_and(|last| last == name));
            if let Some(tree) = tree {
                at.push(tree[0].clone());
            }
            break;
        }
        modules.get_key_value(&at).map(|(module, _)| module.as_slice())
    };
    let of = |(module, text): (_, &String)| {
        let module: &Vec<String> = module;
        let others = paths(text).into_iter().filter_map(|path| resolve(module, &path));
        (module.as_slice(), others.filter(|other| *other != module.as_slice()).collect())
    };
    modules.iter().map(of).collect()
}

/// The files that lead back to themselves, each circle as one list. A folder's own file is none of them: it names the files in it.
fn circles(root: &Path) -> Vec<Vec<String>> {
    let modules = modules(root);
    let taken = taken(&modules);
    let is_folder = |module: &[String]| {
        modules.keys().any(|other| other.len() > module.len() && other.starts_with(module))
    };
    let reached = |from: &[String]| {
        let mut reached = BTreeSet::new();
        let mut next = vec![from.to_vec()];
        while let Some(module) = next.pop() {
            for other in &taken[module.as_slice()] {
                if !is_folder(other) && reached.insert(other.to_vec()) {
                    next.push(other.to_vec());
                }
            }
        }
        reached
    };
    let files: Vec<_> = modules.keys().filter(|module| !is_folder(module)).collect();
    let reach: BTreeMap<_, _> = files.iter().map(|module| (*module, reached(module))).collect();
    let mut found = BTreeSet::new();
    for (module, reached) in &reach {
        if reached.contains(*module) {
            let circle = reached.iter().filter(|other| reach[*other].contains(*module));
            found.insert(circle.map(|module| module.join("/")).collect::<Vec<_>>());
        }
    }
    found.into_iter().collect()
}

#[test]
fn imports_are_found_in_every_form() {
    let text = "use crate::clock::Zone;\nuse crate::{\n    error::{Failure, Kind as K},\n    kernel::{self, facts::Live},\n    output,\n};\nuse super::super::x::*;\nlet x = crate::run::now();";
    assert_eq!(Vec::from_iter(imported(text)), ["clock", "error", "kernel", "output", "run"]);
    let all = paths(text).into_iter().map(|path| path.join("::")).collect::<Vec<_>>();
    assert_eq!(
        all,
        [
            "crate::clock::Zone",
            "crate::error::Failure",
            "crate::error::Kind",
            "crate::kernel::self",
            "crate::kernel::facts::Live",
            "crate::output",
            "super::super::x",
            "crate::run::now"
        ]
    );
}

#[test]
fn files_of_the_user_side_are_in_no_circle() {
    let found = circles(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(found.is_empty(), "files that import each other: {found:?}");
}

#[test]
fn files_of_the_kernel_side_are_in_circles_of_two_at_most() {
    let found = circles(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../net-latency-ebpf/src"));
    // A socket has skbs, and an skb its socket. So the search finds circles.
    assert!(found.contains(&vec!["kernel/skb".to_owned(), "kernel/socket".to_owned()]), "{found:?}");
    let larger: Vec<_> = found.iter().filter(|circle| circle.len() > 2).collect();
    assert!(larger.is_empty(), "files that import each other: {larger:?}");
}

#[test]
fn imports_run_down_the_floors_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut wrong = Vec::new();
    for file in sources(&root) {
        let below = file.strip_prefix(&root).expect("below the root");
        let first = below.iter().next().and_then(|part| part.to_str()).expect("text");
        let room = first.strip_suffix(".rs").unwrap_or(first);
        if room == "main" || below.with_extension("").iter().any(|part| part == "tests") {
            continue;
        }
        let own = floor(room).unwrap_or_else(|| panic!("{room} has no floor: give it one in FLOORS"));
        let text = fs::read_to_string(&file).expect("a source file");
        for other in imported(&code(&text)) {
            let Some(theirs) = floor(other) else { panic!("{}: what is crate::{other}?", below.display()) };
            if other == room || theirs < own {
                continue;
            }
            wrong.push(format!("{}: {room} imports {other}", below.display()));
        }
    }
    assert!(wrong.is_empty(), "imports that run up, or along a floor:\n{}", wrong.join("\n"));
}

//! The documents as their readers meet them: their length, their links, the commands that they tell
//! people to type, and their words.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::{fs, iter};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use regex_lite::Regex;
use walkdir::{DirEntry, WalkDir};

/// Documents, and the most lines that they may have.
const LENGTHS: [(&str, usize); 3] = [("README.md", 160), ("ARCHITECTURE.md", 300), ("CONTRIBUTING.md", 120)];
const COLUMNS: usize = 100;

/// Words that no one outside this project would use so, as patterns, and what to say instead.
const WORDS: [(&str, &str); 22] = [
    (r"passings?", "skb stamps"),
    (r"foreign|shun|shuns|shunned|welcome", "untraced flow"),
    (r"left alone|leav(e|es|ing) \w+( \w+)? alone", "untraced"),
    (r"push(ed|es)? out", "evicted"),
    (r"of others", "filtered"),
    (r"on (their|its) way", "in flight"),
    (r"less than it could be", "degraded"),
    (r"by chance", "at random"),
    (r"left out", "skipped"),
    (r"the floor", "no-op programs"),
    (r"all that is given must fit|must fit every", "combined with AND"),
    (r"starts a command stopped|lets it go", "starts COMMAND paused, attaches, then resumes it"),
    (r"how often each stage was known", "one row per stage"),
    (r"becomes a sample", "switches to random sampling"),
    (r"(was|were|is|are) given (it|their skb)", "handled its skb"),
    (r"by a thread that has it", "threads whose name matches GLOB"),
    (r"each time this has passed", "every DURATION"),
    (r"nobody took them|dropped behind", "dropped after reaching TCP or UDP"),
    (r"refuses to be traced", "one cause, one remedy"),
    (r"brought nothing new", "duplicate segments"),
    (r"turned out not to be asked for", "were faster than --slower"),
    (r"pairs of ends", "address pairs"),
];

/// What a person who uses the tool need not read, below docs/.
const FOR_DEVELOPERS: [&str; 4] = ["testing.md", "releasing.md", "tables.md", "decisions/"];

/// Options in the documents that are not ours: those of container engines.
const OF_OTHER_PROGRAMS: [&str; 1] = ["--userns=host"];

/// Words of docs/security.md and docs/accuracy.md with an underscore that are no tests.
const NO_TESTS: [&str; 5] =
    ["no_new_privs", "bpf_ktime_get_ns", "kptr_restrict", "page_offset_base", "tcp_collapse"];

/// Messages in the documents that are the operating system's.
const OF_THE_SYSTEM: [&str; 3] = ["perf_event_open", "Permission denied", "Operation not permitted"];

static PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let pattern = |words| Regex::new(&format!(r"(?i)\b(?:{words})\b")).expect("a pattern");
    WORDS.map(|(words, instead)| (pattern(words), instead)).into()
});

struct Document {
    path: PathBuf,
    text: String,
}

/// A piece of code of a document: a span, or a line of a block.
struct Code<'a> {
    text: &'a str,
    is_span: bool,
}

impl Document {
    fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path: path.to_owned(), text }
    }

    fn name(&self) -> String {
        self.path.strip_prefix(workspace()).expect("a file of the workspace").display().to_string()
    }

    fn events(&self) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
        Parser::new_ext(&self.text, Options::ENABLE_TABLES).into_offset_iter()
    }

    /// Where lines can't be wrapped: tables, blocks of code, and links.
    fn unwrappable(&self) -> Vec<Range<usize>> {
        self.events()
            .filter_map(|(event, range)| match event {
                Event::Start(Tag::Table(_) | Tag::CodeBlock(_) | Tag::Link { .. } | Tag::Image { .. }) => {
                    Some(range)
                }
                _ => None,
            })
            .collect()
    }

    fn code(&self) -> Vec<Code<'_>> {
        let mut code = Vec::new();
        let mut is_block = false;
        for (event, range) in self.events() {
            match event {
                Event::Start(Tag::CodeBlock(_)) => is_block = true,
                Event::End(TagEnd::CodeBlock) => is_block = false,
                Event::Code(_) => {
                    code.push(Code { text: self.text[range].trim_matches('`').trim(), is_span: true });
                }
                Event::Text(_) if is_block => {
                    code.extend(self.text[range].lines().map(|text| Code { text, is_span: false }));
                }
                _ => {}
            }
        }
        code
    }

    /// The names by which other documents can point to its sections, as GitHub makes them.
    fn anchors(&self) -> BTreeSet<String> {
        let mut anchors = BTreeSet::new();
        let mut heading = None;
        for (event, _) in self.events() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.extend(text.to_lowercase().chars().filter_map(|c| match c {
                            ' ' => Some('-'),
                            '-' | '_' => Some(c),
                            _ => c.is_alphanumeric().then_some(c),
                        }));
                    }
                }
                _ => {}
            }
        }
        anchors
    }
}

fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in a workspace")
}

fn readme() -> Document {
    Document::read(&workspace().join("README.md"))
}

/// Files below `directory` whose names end with one of `endings`, in order.
fn files(directory: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let all = WalkDir::new(directory).sort_by_file_name().into_iter().map(|entry| entry.expect("an entry"));
    let is_one = |entry: &DirEntry| {
        let name = entry.file_name().to_string_lossy();
        entry.file_type().is_file() && endings.iter().any(|ending| name.ends_with(ending))
    };
    all.filter(is_one).map(DirEntry::into_path).collect()
}

fn below_docs() -> Vec<Document> {
    files(&workspace().join("docs"), &[".md"]).iter().map(|path| Document::read(path)).collect()
}

/// What a user reads.
fn for_users() -> Vec<Document> {
    let is_for_users = |document: &Document| {
        !FOR_DEVELOPERS.iter().any(|name| document.path.to_string_lossy().contains(name))
    };
    let documents: Vec<_> =
        iter::once(readme()).chain(below_docs().into_iter().filter(is_for_users)).collect();
    assert!(documents.len() >= 15, "README, guide, and a page for each view");
    documents
}

/// All documents.
fn all() -> Vec<Document> {
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"];
    below_docs().into_iter().chain(others.map(|name| Document::read(&workspace().join(name)))).collect()
}

fn assert_none(wrong: &[String]) {
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn documents_are_short() {
    let mut long = Vec::new();
    for (name, most) in LENGTHS {
        let lines = Document::read(&workspace().join(name)).text.lines().count();
        if lines > most {
            long.push(format!("{name} has {lines} lines of at most {most}"));
        }
    }
    assert_none(&long);
}

#[test]
fn documents_are_wrapped() {
    let mut wide = Vec::new();
    for document in all() {
        let unwrappable = document.unwrappable();
        let mut start = 0;
        for (number, line) in document.text.split_inclusive('\n').enumerate() {
            let end = start + line.len();
            let is_free = |range: &Range<usize>| range.start < end && start < range.end;
            if line.trim_end().chars().count() > COLUMNS && !unwrappable.iter().any(is_free) {
                wide.push(format!("{}:{} is wider than {COLUMNS} columns", document.name(), number + 1));
            }
            start = end;
        }
    }
    assert_none(&wide);
}

#[test]
fn links_lead_somewhere() {
    let mut dead = Vec::new();
    for document in all() {
        let folder = document.path.parent().expect("a file is in a folder");
        for (event, _) in document.events() {
            let (Event::Start(Tag::Link { dest_url, .. }) | Event::Start(Tag::Image { dest_url, .. })) =
                event
            else {
                continue;
            };
            let is_mail = !dest_url.contains('/') && dest_url.contains('@');
            if is_mail || dest_url.starts_with("https://") {
                continue;
            }
            let (file, anchor) = match dest_url.split_once('#') {
                Some((file, anchor)) => (file, Some(anchor)),
                None => (&*dest_url, None),
            };
            let path = if file.is_empty() { document.path.clone() } else { folder.join(file) };
            let is_alive =
                path.exists() && anchor.is_none_or(|anchor| Document::read(&path).anchors().contains(anchor));
            if !is_alive {
                dead.push(format!("{} points to {dest_url}", document.name()));
            }
        }
    }
    assert_none(&dead);
}

/// A command line of ours in a piece of code, without sudo, pipes and redirections.
fn command_line<'a>(code: &Code<'a>) -> Option<&'a str> {
    let text = code.text.strip_prefix("$ ");
    // In a block, lines without a prompt or sudo may be output.
    if !code.is_span && text.is_none() && !code.text.starts_with("sudo ") {
        return None;
    }
    let text = text.unwrap_or(code.text);
    let text = text.strip_prefix("sudo ").unwrap_or(text);
    let text =
        [" | ", " 2>", " >"].iter().fold(text, |text, end| text.split(end).next().expect("a first part"));
    (text == "net-latency" || text.starts_with("net-latency ")).then_some(text)
}

fn refusal(command_line: &str) -> Option<String> {
    let words = shlex::split(command_line).expect("quotes are closed");
    // The lines of a file stand in its place.
    let words = words.into_iter().filter(|word| !word.starts_with('@'));
    net_latency::inside::command().try_get_matches_from(words).err().and_then(|error| {
        let is_wrong = error.use_stderr();
        is_wrong.then(|| format!("{command_line}\n{error}"))
    })
}

#[test]
fn every_command_of_the_documents_is_taken() {
    let mut refused = Vec::new();
    let mut seen = 0;
    for document in for_users() {
        for line in document.code().iter().filter_map(command_line) {
            seen += 1;
            refused.extend(refusal(line));
        }
    }
    assert!(seen > 30, "only {seen} commands were found");
    assert_none(&refused);
}

#[test]
fn every_row_of_the_incident_table_is_a_command() {
    let readme = readme();
    let table = readme.text.split("| you want | you type |").nth(1).expect("the incident table");
    let rows: Vec<_> = table.lines().skip(2).take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() >= 10, "{rows:?}");
    for row in rows {
        let command = row.split('`').nth(1).unwrap_or_else(|| panic!("no command: {row}"));
        let line = command_line(&Code { text: command, is_span: true });
        let line = line.unwrap_or_else(|| panic!("not ours: {command}"));
        assert_eq!(refusal(line), None);
    }
}

/// All options of the tool and of its subcommands, with their dashes.
fn options() -> BTreeSet<String> {
    let mut command = net_latency::inside::command();
    command.build();
    let mut options = BTreeSet::new();
    for command in iter::once(&command).chain(command.get_subcommands()) {
        for argument in command.get_arguments() {
            options.extend(argument.get_long().map(|long| format!("--{long}")));
            options.extend(argument.get_short().map(|short| format!("-{short}")));
        }
    }
    options
}

#[test]
fn every_option_of_the_documents_exists() {
    let options = options();
    let mut unknown = Vec::new();
    for document in for_users() {
        for code in document.code().iter().filter(|code| code.is_span && code.text.starts_with('-')) {
            let option = code.text.split([' ', '=']).next().expect("a first part");
            let is_known =
                options.contains(option) || OF_OTHER_PROGRAMS.contains(&code.text) || option == "-";
            if !is_known {
                unknown.push(format!("{}: {}", document.name(), code.text));
            }
        }
    }
    assert_none(&unknown);
}

/// String literals of the program's sources, joined where a backslash continues them.
fn literals() -> Vec<(String, String)> {
    let literal = Regex::new(r#""((?:[^"\\]|\\[\s\S])*)""#).expect("a pattern");
    let continued = Regex::new(r"\\\n\s*").expect("a pattern");
    let tests = Regex::new(r"#\[cfg\(test\)\]\s*(pub(\(\w+\))? )?mod \w+ \{").expect("a pattern");
    let mut literals = Vec::new();
    // Modules that only tests have.
    let of_tests = ["tests.rs", "output/schema.rs"];
    for path in files(&workspace().join("net-latency/src"), &[".rs"]) {
        if of_tests.iter().any(|file| path.ends_with(file)) {
            continue;
        }
        let name = path.strip_prefix(workspace()).expect("a file of the workspace").display().to_string();
        let text = fs::read_to_string(&path).expect("sources are text");
        // Comments may hold a single quotation mark, and so may a character literal.
        let code: Vec<_> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        let code = code.join("\n").replace("'\"'", "").replace("b'\\\"'", "").replace("'\\\"'", "");
        let code = tests.splitn(&code, 2).next().expect("a first part");
        literals.extend(
            literal
                .captures_iter(code)
                .map(|found| (name.clone(), continued.replace_all(&found[1], "").into_owned())),
        );
    }
    literals
}

#[test]
fn messages_that_the_readme_explains_are_messages_of_the_program() {
    let readme = readme();
    let table = readme.text.split("| it says | do |").nth(1).expect("the table of messages");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let literals = literals();
    let mut unknown = Vec::new();
    let mut messages = 0;
    for row in rows {
        let says = row.split('|').nth(1).expect("a first column");
        for message in says.split('`').skip(1).step_by(2) {
            messages += 1;
            let is_ours = literals.iter().any(|(_, literal)| literal.contains(message));
            if !is_ours && !OF_THE_SYSTEM.contains(&message) {
                unknown.push(format!("README.md: the program never says \"{message}\""));
            }
        }
    }
    assert!(messages >= 10, "only {messages} were found");
    assert_none(&unknown);
}

#[test]
fn tests_that_documents_name_exist() {
    let folders = ["net-latency/src", "net-latency/tests", "net-latency-ebpf/src"];
    let paths = folders.iter().flat_map(|folder| files(&workspace().join(folder), &[".rs"]));
    let sources: String = paths.map(|path| fs::read_to_string(path).expect("sources are text")).collect();
    let is_name = |text: &str| {
        text.starts_with(char::is_lowercase) && text.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
    };
    let named = |text: &str, name: &str| text.contains(&format!("name: \"{name}\""));
    let themes: Vec<String> = files(&workspace().join("net-latency/tests/guest/cases/truth"), &[".rs"])
        .iter()
        .map(|path| fs::read_to_string(path).expect("sources are text"))
        .collect();
    let exists = |test: &str| match test.split_once("::") {
        Some((theme, scenario)) => themes.iter().any(|text| named(text, theme) && named(text, scenario)),
        // A function, or a case of the guests'.
        None => sources.contains(&format!("fn {test}(")) || sources.contains(&format!("(\"{test}\", ")),
    };
    for (path, at_least) in [("docs/security.md", 30), ("docs/accuracy.md", 60)] {
        let document = Document::read(&workspace().join(path));
        let code = document.code();
        let tests: BTreeSet<_> = code
            .iter()
            .filter(|code| code.is_span)
            .map(|code| code.text)
            .filter(|text| match text.split_once("::") {
                Some((theme, scenario)) => is_name(theme) && is_name(scenario) && theme != "truth",
                None => is_name(text) && text.contains('_') && !NO_TESTS.contains(text),
            })
            .collect();
        assert!(tests.len() > at_least, "{path}: {tests:?}");
        let missing: Vec<_> = tests.iter().filter(|test| !exists(test)).collect();
        assert!(missing.is_empty(), "{path} names tests that are not there: {missing:?}");
    }
}

#[test]
fn whoever_finds_a_vulnerability_knows_whom_to_tell() {
    let policy = Document::read(&workspace().join("SECURITY.md"));
    let package = fs::read_to_string(workspace().join("net-latency/Cargo.toml")).expect("the package");
    let maintainer = package.split_once("maintainer = \"").expect("a maintainer").1;
    let address = maintainer.split(['<', '>']).nth(1).expect("an address");
    assert!(policy.text.contains(&format!("<{address}>")), "SECURITY.md doesn't name {address}");
    for name in ["README.md", "docs/security.md"] {
        let document = Document::read(&workspace().join(name));
        let leads_there = |event: &Event<'_>| matches!(event, Event::Start(Tag::Link { dest_url, .. }) if dest_url.ends_with("SECURITY.md"));
        assert!(
            document.events().any(|(event, _)| leads_there(&event)),
            "{name} doesn't lead to SECURITY.md"
        );
    }
}

/// Where one of [`WORDS`] stands in `text`, with its context.
fn words_of_ours(name: &str, text: &str) -> Vec<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut found = Vec::new();
    for (pattern, instead) in PATTERNS.iter() {
        for hit in pattern.find_iter(&text) {
            let before = text[..hit.start()].rsplitn(5, ' ').take(4).collect::<Vec<_>>();
            let before = before.into_iter().rev().collect::<Vec<_>>().join(" ");
            found.push(format!("{name}: \"{before}{}\": say {instead}", hit.as_str()));
        }
    }
    found
}

#[test]
fn documents_say_what_a_colleague_would_say() {
    let mut found = Vec::new();
    for document in all() {
        // The tables of that page come from the benchmark.
        let is_table = |line: &&str| document.path.ends_with("performance.md") && line.starts_with('|');
        let text: Vec<_> = document.text.lines().filter(|line| !is_table(line)).collect();
        found.extend(words_of_ours(&document.name(), &text.join("\n")));
    }
    let schemas = files(&workspace().join("docs"), &[".schema.json"]);
    assert!(schemas.len() >= 2, "{schemas:?}");
    let configuration = files(&workspace().join("contrib"), &[""]);
    assert!(configuration.len() >= 5, "{configuration:?}");
    for path in schemas.iter().chain(&configuration) {
        let document = Document::read(path);
        found.extend(words_of_ours(&document.name(), &document.text));
    }
    assert_none(&found);
}

#[test]
fn the_program_says_what_a_colleague_would_say() {
    let mut command = net_latency::inside::command().term_width(0);
    command.build();
    let mut found = words_of_ours("--help", &command.render_long_help().to_string());
    for view in command.get_subcommands_mut() {
        found.extend(words_of_ours(
            &format!("{} --help", view.get_name()),
            &view.render_long_help().to_string(),
        ));
    }
    for (name, literal) in literals() {
        found.extend(words_of_ours(&name, &literal));
    }
    found.sort();
    found.dedup();
    assert_none(&found);
}

#[test]
fn words_are_found_across_lines_and_not_within_others() {
    assert_eq!(words_of_ours("text", "packets of\n  others were pushed  out").len(), 2);
    assert_eq!(words_of_ours("text", "compassing; surpassings; for others; passes; chance").len(), 0);
}

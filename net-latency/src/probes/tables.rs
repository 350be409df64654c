//! docs/tables.md: all hooks, and all maps with their bounds, from what declares them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use net_latency_common::Direction;
use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
use regex_lite::Regex;
use walkdir::{DirEntry, WalkDir};

use super::table::{
    CHANGED_BY_TASK, CLOSE, CONNECTIONS, DROPS, EXIT, FINE, FIRST_BYTES, HOOKS, Hook, PROCESSES, Programs,
    SENT_ON,
};
use crate::{packet::event::IpVersion, written};

const HEAD: &str = "# Hooks and maps

For the person who changes net-latency: what each view hooks, and what the kernel side keeps. This
page is written from the sources (`NET_LATENCY_WRITE_DOCS=1 cargo test -p net-latency --lib
documents_have`). How they work together: [ARCHITECTURE.md](../ARCHITECTURE.md). `net-latency check`
says what the running kernel has. The object for tests has `SKIPS` besides (`skips.rs`).
";

/// Views, and their hooks.
const SETS: [(&str, &[Hook]); 9] = [
    ("The stream, `top`, `diagnose`, `hist`, `export`, `record`", &HOOKS),
    ("`--stages fine`", &FINE),
    ("A COMMAND's processes (`--stages fine`: the first)", &PROCESSES),
    ("Ends of sockets, processes and threads", &[CLOSE, EXIT]),
    ("Packets that are forwarded without IP, where outgoing packets are not traced", &[SENT_ON]),
    (
        "`connections`; besides, `diagnose`, `top`, `export --connections`, `record --dump-on failed=`",
        &CONNECTIONS,
    ),
    ("These, where tasks are preempted in programs of tracepoints", &[CHANGED_BY_TASK]),
    ("`connections`; besides, `diagnose`", &FIRST_BYTES),
    ("`diagnose` besides", &[DROPS]),
];

/// Objects, and which maps are listed under which of them.
static OBJECTS: [(&str, &[u8]); 4] = [
    ("Packets", aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-full-bpf"))),
    ("`journey`", aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-journey-bpf"))),
    ("`calls`", aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-calls-bpf"))),
    ("`connections`", aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-connections-bpf"))),
];

/// Where a map or a table of the kernel side is declared, and the comment there.
struct Declared {
    file: String,
    comment: String,
}

fn hooks() -> String {
    let mut text =
        "\n## Hooks\n\nOf several, the first that the kernel has, unless it says all.\n".to_owned();
    for (view, hooks) in SETS {
        write!(text, "\n{view}:\n\n| dir | stage | packets | hook |\n|---|---|---|---|\n").expect("a string");
        hooks.iter().for_each(|hook| text += &hook_row(hook));
    }
    text
}

fn hook_row(hook: &Hook) -> String {
    let direction = match hook.direction {
        Some(Direction::In) => "in",
        Some(Direction::Out) => "out",
        None => "both",
    };
    let protocol = hook.protocol.map_or_else(|| "all".to_owned(), |protocol| protocol.name().to_uppercase());
    let version = match hook.version {
        Some(IpVersion::V4) => ", IPv4",
        Some(IpVersion::V6) => ", IPv6",
        None => "",
    };
    let names: Vec<_> = hook.candidates.iter().map(|name| format!("`{name}`")).collect();
    let names = names.join(", ");
    let hooked = match hook.programs {
        Programs::Function { .. } => names,
        Programs::Tracepoint { .. } => format!("tracepoint {names}"),
        Programs::AllTracepoints { .. } if hook.candidates.len() > 1 => format!("tracepoints {names}: all"),
        Programs::AllTracepoints { .. } => format!("tracepoint {names}"),
    };
    format!("| {direction} | {} | {protocol}{version} | {hooked} |\n", hook.stage.name())
}

fn declared() -> BTreeMap<String, Declared> {
    let item = r"(?m)((?:^/// .*\n)+)(?:^(?:#\[|//).*\n)*^(?:pub(?:\(\w+\))? )?static ([A-Z_]+):";
    let item = Regex::new(item).expect("a pattern");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../net-latency-ebpf/src");
    let mut declared = BTreeMap::new();
    // But for what only tests have.
    let is_code = |entry: &DirEntry| ["lives", "bpf/host"].iter().all(|tests| !entry.path().ends_with(tests));
    let entries =
        WalkDir::new(&sources).into_iter().filter_entry(is_code).map(|entry| entry.expect("an entry"));
    for entry in entries.filter(|entry| entry.file_type().is_file()) {
        let path = entry.path();
        let text = fs::read_to_string(path).expect("sources are text");
        let file = path.strip_prefix(&sources).expect("a file in there").display().to_string();
        for found in item.captures_iter(&text) {
            let comment: Vec<_> = found[1].lines().map(|line| line.trim_start_matches("/// ")).collect();
            let comment = comment.join(" ").replace("[`", "`").replace("`]", "`").replace(['[', ']'], "");
            declared.insert(found[2].to_owned(), Declared { file: file.clone(), comment });
        }
    }
    declared
}

/// Entries and bytes of the maps, and of tables in the object's own memory, by name.
fn sizes(bytes: &[u8]) -> BTreeMap<String, (String, u64)> {
    let maps = aya_obj::Object::parse(bytes).expect("build.rs makes objects").maps;
    let of_map = maps.into_iter().filter(|(name, _)| !name.starts_with('.')).map(|(name, map)| {
        let entries = map.max_entries();
        let bytes = u64::from(map.key_size() + map.value_size()) * u64::from(entries);
        // A ring buffer's entries are bytes.
        if map.key_size() == 0 {
            (name, (String::new(), entries.into()))
        } else {
            (name, (entries.to_string(), bytes))
        }
    });
    let object = object::File::parse(bytes).expect("an object");
    let own = object.symbols().filter(|symbol| {
        let section = symbol.section_index().and_then(|index| object.section_by_index(index).ok());
        section.is_some_and(|section| section.name().is_ok_and(|name| name.starts_with(".bss")))
    });
    let own = own.map(|symbol| (symbol.name().expect("UTF-8").to_owned(), (String::new(), symbol.size())));
    of_map.chain(own).collect()
}

fn maps() -> String {
    let declared = declared();
    let mut text = "\n## Maps\n\nTheir places as they are declared; options make some larger, fine stages some smaller. Bytes are\nthose of keys and values, without the kernel's own. An LRU map evicts what was not used for longest.\n".to_owned();
    let mut listed = BTreeSet::new();
    for (view, object) in OBJECTS {
        write!(text, "\n{view}:\n\n| map | in | entries | bytes | it has |\n|---|---|--:|--:|---|\n")
            .expect("a string");
        for (name, (entries, bytes)) in sizes(object) {
            // aya-log has maps of its own.
            if name.starts_with("AYA_") || !listed.insert(name.clone()) {
                continue;
            }
            let it = declared.get(&name).unwrap_or_else(|| panic!("{name} has no comment"));
            writeln!(text, "| `{name}` | `{}` | {entries} | {bytes} | {} |", it.file, it.comment)
                .expect("a string");
        }
    }
    text
}

#[test]
fn documents_have_the_hooks_and_maps_that_are_declared() {
    written::agrees("tables.md", &format!("{HEAD}{}{}", hooks(), maps()));
}

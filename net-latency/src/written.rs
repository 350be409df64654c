//! Documents that tests generate from declarations, and compare with them.

use std::{env, fs, path::PathBuf};

/// Documents are written anew, in place of being compared, where this is set.
const WRITE: &str = "NET_LATENCY_WRITE_DOCS";

fn path(file: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", "docs", file].iter().collect()
}

/// The document of that name below docs/.
pub(crate) fn read(file: &str) -> String {
    fs::read_to_string(path(file)).unwrap_or_else(|error| panic!("docs/{file}: {error}"))
}

/// `text` with the table behind `head` replaced.
pub(crate) fn with_table(text: &str, head: &str, table: &str) -> String {
    let (before, behind) = text.split_once(head).expect("the document has the table");
    let (_, after) = behind.split_once("\n\n").expect("an empty line ends it");
    format!("{before}{head}{table}\n{after}")
}

/// Docs/`file` is as it should be, or is written so.
pub(crate) fn agrees(file: &str, should: &str) {
    if env::var_os(WRITE).is_some() {
        fs::write(path(file), should).expect("docs can be written");
        return;
    }
    let is = read(file);
    let place = is.lines().zip(should.lines()).position(|(is, should)| is != should);
    assert!(is == should, "docs/{file} is not as declared from line {place:?} on; {WRITE}=1 writes it");
}

//! Figures in documents. They stand between `<!-- figures: WHAT -->` and `<!-- end -->`, where WHAT is a kernel of the record, for
//! its tables, or `KERNEL; MODE; LOAD` for the instructions that this mode adds to this load.

use std::{fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};

use super::{Extent, figures::Record};
use crate::paths;

const BEGIN: &str = "<!-- figures: ";
const HEAD_ENDS: &str = " -->";
const END: &str = "<!-- end -->";

/// Writes the figures on record into the documents that quote them.
pub(crate) fn fill() -> Result<()> {
    for (path, old, new) in filled_documents()? {
        if old != new {
            fs::write(&path, new).with_context(|| format!("can't write {}", path.display()))?;
            println!("{}", path.display());
        }
    }
    Ok(())
}

/// An error if a document quotes other figures than those on record.
pub(crate) fn check() -> Result<()> {
    for (path, old, new) in filled_documents()? {
        ensure!(
            old == new,
            "{} quotes other figures than docs/performance.json has: run `cargo xtask docs`",
            path.display()
        );
    }
    Ok(())
}

/// All documents, as they are and as they should be.
fn filled_documents() -> Result<Vec<(PathBuf, String, String)>> {
    let record = Record::read(&Extent::Modes.record_path())?;
    let mut documents = Vec::new();
    for folder in [paths::workspace().to_owned(), paths::workspace().join("docs")] {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let old = fs::read_to_string(&path)?;
                let new = filled(&old, &record).with_context(|| path.display().to_string())?;
                documents.push((path, old, new));
            }
        }
    }
    Ok(documents)
}

fn filled(text: &str, record: &Record) -> Result<String> {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, from_head)) = rest.split_once(BEGIN) {
        let (what, body) = from_head.split_once(HEAD_ENDS).context("a mark of figures has no end")?;
        let (_, after) =
            body.split_once(END).with_context(|| format!("no {END} after the figures: {what}"))?;
        result += &format!("{before}{BEGIN}{what}{HEAD_ENDS}{}{END}", record.quote(what)?);
        rest = after;
    }
    Ok(result + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        let path = tempfile::NamedTempFile::new().expect("a file");
        let figures = r#"{"6.1": [
            {"mode": "nothing", "load": "tcp", "ns": 30000, "lines": 0.0},
            {"mode": "stream", "load": "tcp", "ns": 46188, "lines": 4.0}
        ]}"#;
        fs::write(path.path(), figures).expect("written");
        Record::read(path.path()).expect("a record")
    }

    #[test]
    fn what_is_between_the_marks_comes_from_the_record() {
        let text = "costs <!-- figures: 6.1; stream; tcp -->many<!-- end --> more,\n\
                    <!-- figures: 6.1 -->\nold\n<!-- end -->\nend\n";
        let new = filled(text, &record()).expect("figures");
        assert_eq!(
            new,
            "costs <!-- figures: 6.1; stream; tcp -->16,188<!-- end --> more,\n\
             <!-- figures: 6.1 -->\n\n| instructions added | bare | stream |\n|---|--:|--:|\n\
             | tcp | 30,000 | 16,188 (4.0 lines) |\n\n<!-- end -->\nend\n"
        );
        assert_eq!(filled(&new, &record()).expect("figures"), new);
    }

    #[test]
    fn what_is_not_on_record_is_an_error() {
        for wrong in ["<!-- figures: 7.0 --><!-- end -->", "<!-- figures: 6.1; top; tcp --><!-- end -->"] {
            assert!(filled(wrong, &record()).is_err(), "{wrong}");
        }
        assert!(filled("<!-- figures: 6.1 -->", &record()).is_err());
    }

    #[test]
    fn the_documents_quote_what_is_on_record() {
        check().expect("documents that fit the record");
        let performance = paths::workspace().join("docs/performance.md");
        assert!(fs::read_to_string(performance).expect("a document").contains(BEGIN));
    }
}

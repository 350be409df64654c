//! Where it is looked up what the running kernel is and allows: in its own files, or in a record of them.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

use super::pages;

/// Bytes of a file that are of interest; some of the kernel's files never end.
const MOST: u64 = 64 << 10;

/// What the checks look at.
pub trait Facts {
    /// A file's text.
    ///
    /// # Errors
    /// If there is none, or this user may not read it.
    fn text(&self, path: &str) -> io::Result<String>;

    /// Where a symbolic link leads.
    fn link(&self, path: &str) -> Option<String>;

    /// Whether there is such a file.
    fn exists(&self, path: &str) -> bool;

    /// Whether the kernel tells this user where pages are mapped.
    fn shows_page_bases(&self) -> bool;

    /// The number that is all a file holds.
    fn number(&self, path: &str) -> Option<i64> {
        self.text(path).ok()?.trim().parse().ok()
    }
}

/// The running kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Live;

impl Facts for Live {
    fn text(&self, path: &str) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn link(&self, path: &str) -> Option<String> {
        Some(fs::read_link(path).ok()?.to_string_lossy().into_owned())
    }

    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }

    fn shows_page_bases(&self) -> bool {
        pages::bases().or_else(pages::variables).is_some()
    }
}

/// A record of another machine, for tests.
#[cfg(test)]
pub(crate) mod recorded {
    use std::collections::HashMap;

    use super::*;

    /// Files by their paths. A record has `== PATH` before each file's text, `-> PATH` before each link's,
    /// `++ PATH` for what is only known to exist.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Recorded {
        files: HashMap<String, String>,
        links: HashMap<String, String>,
        others: Vec<String>,
        page_bases: bool,
    }

    impl Recorded {
        /// Of a root shell on a kernel of the matrix.
        pub(crate) fn debian() -> Self {
            Self::parse(include_str!("recorded/debian-6.1.txt"))
        }

        /// Of a root shell on a kernel with PREEMPT_RT.
        pub(crate) fn realtime() -> Self {
            Self::parse(include_str!("recorded/debian-6.12-rt.txt"))
        }

        pub(crate) fn parse(text: &str) -> Self {
            let mut recorded = Self { page_bases: true, ..Self::default() };
            let mut place = None;
            for line in text.lines() {
                match line.split_at_checked(3).unwrap_or(("", line)) {
                    ("== ", path) => place = Some(recorded.files.entry(path.to_owned()).or_default()),
                    ("-> ", path) => place = Some(recorded.links.entry(path.to_owned()).or_default()),
                    ("++ ", path) => recorded.others.push(path.to_owned()),
                    _ => {
                        let place = place.as_mut().expect("a text has a path before it");
                        place.push_str(line);
                        place.push('\n');
                    }
                }
            }
            recorded
        }

        /// The same machine with another text in a file.
        pub(crate) fn with(mut self, path: &str, text: &str) -> Self {
            let place = if self.links.contains_key(path) { &mut self.links } else { &mut self.files };
            place.insert(path.to_owned(), text.to_owned());
            self
        }

        /// The same machine with other text in its place, in every file.
        pub(crate) fn replacing(mut self, from: &str, to: &str) -> Self {
            for text in self.files.values_mut() {
                *text = text.replace(from, to);
            }
            self
        }

        /// The same machine without what begins with `path`.
        pub(crate) fn without(mut self, path: &str) -> Self {
            self.files.retain(|file, _| !file.starts_with(path));
            self.others.retain(|file| !file.starts_with(path));
            self
        }

        pub(crate) fn hiding_page_bases(mut self) -> Self {
            self.page_bases = false;
            self
        }
    }

    impl Facts for Recorded {
        fn text(&self, path: &str) -> io::Result<String> {
            self.files.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn link(&self, path: &str) -> Option<String> {
            Some(self.links.get(path)?.trim_end().to_owned())
        }

        fn exists(&self, path: &str) -> bool {
            self.files.contains_key(path) || self.others.iter().any(|other| other == path)
        }

        fn shows_page_bases(&self) -> bool {
            self.page_bases
        }
    }
}

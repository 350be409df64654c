//! Which Debian mirrors this machine uses, read from its own apt sources.

use std::{env, fs, path::Path};

use anyhow::{Context as _, Result};

use crate::arch::Arch;

/// Names a Debian mirror where the apt sources have none, as on Ubuntu.
const OVERRIDE: &str = "NET_LATENCY_DEBIAN_MIRROR";

/// The keyring that Debian's package `debian-archive-keyring` installs.
const DEBIAN_KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Releases whose name tells that a source is Debian's.
const CODENAMES: [&str; 5] = ["bullseye", "bookworm", "trixie", "forky", "sid"];

/// Suites that hold the security updates of a release end so.
const SECURITY: &str = "-security";

/// One source of packages; the two formats of apt's sources say the same.
#[derive(Clone, Debug, Default, PartialEq)]
struct Source {
    uris: Vec<String>,
    suites: Vec<String>,
    signed_by: Option<String>,
}

/// Where Debian's packages are to be had.
#[derive(Debug, PartialEq)]
pub(crate) struct Mirrors {
    main: String,
    security: String,
    signed_by: Option<String>,
}

impl Mirrors {
    /// Reads this machine's apt sources.
    pub(crate) fn of_this_machine() -> Result<Self> {
        if let Ok(mirror) = env::var(OVERRIDE) {
            let signed_by = Path::new(DEBIAN_KEYRING).exists().then(|| DEBIAN_KEYRING.to_owned());
            return Ok(Self { security: security_of(&mirror), main: mirror, signed_by });
        }
        Self::among(&read_sources(Path::new("/etc/apt"))?).with_context(|| {
            format!(
                "the apt sources of this system name no Debian mirror: set {OVERRIDE} to the URI of one \
                 and install the package debian-archive-keyring"
            )
        })
    }

    fn among(sources: &[Source]) -> Option<Self> {
        let of = |security: bool| {
            sources.iter().find(|source| {
                source.suites.iter().any(|suite| is_debian(suite) && suite.ends_with(SECURITY) == security)
            })
        };
        let main = of(false)?;
        let uri = main.uris.first()?.clone();
        let security = of(true).and_then(|source| source.uris.first().cloned());
        Some(Self {
            security: security.unwrap_or_else(|| security_of(&uri)),
            main: uri,
            signed_by: main.signed_by.clone(),
        })
    }

    /// The sources list that offers these suites.
    pub(crate) fn list(&self, arch: Arch, suites: &[&str]) -> String {
        let arch = arch.debian();
        let signed_by =
            self.signed_by.as_deref().map(|path| format!(" signed-by={path}")).unwrap_or_default();
        let line = |suite: &&str| {
            let uri = if suite.ends_with(SECURITY) { &self.security } else { &self.main };
            format!("deb [arch={arch}{signed_by}] {uri} {suite} main\n")
        };
        suites.iter().map(line).collect()
    }
}

/// Mirrors keep security updates beside the rest.
fn security_of(mirror: &str) -> String {
    format!("{}{SECURITY}", mirror.trim_end_matches('/'))
}

fn is_debian(suite: &str) -> bool {
    CODENAMES
        .iter()
        .any(|name| suite == *name || suite.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')))
}

fn read_sources(etc: &Path) -> Result<Vec<Source>> {
    let mut files = vec![etc.join("sources.list")];
    let parts = etc.join("sources.list.d");
    if parts.is_dir() {
        let entries = fs::read_dir(&parts).with_context(|| format!("can't list {}", parts.display()))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        paths.sort();
        files.append(&mut paths);
    }
    let mut sources = Vec::new();
    for file in files.iter().filter(|file| file.is_file()) {
        let parse = match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => parse_list,
            Some("sources") => parse_deb822,
            _ => continue,
        };
        let text = fs::read_to_string(file).with_context(|| format!("can't read {}", file.display()))?;
        sources.extend(parse(&text));
    }
    Ok(sources)
}

/// `deb [option=value …] URI SUITE COMPONENT…`, one source a line.
fn parse_list(text: &str) -> Vec<Source> {
    text.lines().filter_map(parse_list_line).collect()
}

fn parse_list_line(line: &str) -> Option<Source> {
    let line = line.split('#').next()?.trim();
    let mut rest = line.strip_prefix("deb")?.strip_prefix(char::is_whitespace)?.trim_start();
    let mut signed_by = None;
    if let Some(bracketed) = rest.strip_prefix('[') {
        let (options, after) = bracketed.split_once(']')?;
        signed_by = options
            .split_whitespace()
            .find_map(|option| option.strip_prefix("signed-by="))
            .map(str::to_owned);
        rest = after;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Source { uris: vec![words.next()?], suites: vec![words.next()?], signed_by })
}

/// `Field: value` lines, one source a paragraph.
fn parse_deb822(text: &str) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut lines = text.lines().filter(|line| !line.starts_with('#')).peekable();
    while lines.peek().is_some() {
        let mut source = Source::default();
        let mut usable = true;
        let mut field = String::new();
        for line in lines.by_ref().take_while(|line| !line.trim().is_empty()) {
            let value = if line.starts_with([' ', '\t']) {
                line
            } else if let Some((name, value)) = line.split_once(':') {
                field = name.trim().to_ascii_lowercase();
                value
            } else {
                continue;
            };
            let mut words = value.split_whitespace().map(str::to_owned);
            match field.as_str() {
                "types" => usable &= words.any(|kind| kind == "deb"),
                "enabled" => usable &= words.all(|word| word != "no"),
                "uris" => source.uris.extend(words),
                "suites" => source.suites.extend(words),
                // A key may also be given inline; apt then trusts it only for that source.
                "signed-by" if source.signed_by.is_none() => {
                    source.signed_by = words.next().filter(|word| word.starts_with('/'));
                }
                _ => {}
            }
        }
        if usable && !source.uris.is_empty() {
            sources.push(source);
        }
    }
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEB822: &str = "\
Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/some.gpg

Types: deb
URIs: http://mirror.example/security
Suites:
 bookworm-security
Components: main

Types: deb-src
URIs: http://mirror.example/source
Suites: bookworm

Enabled: no
Types: deb
URIs: http://mirror.example/disabled
Suites: bookworm
";

    #[test]
    fn deb822() {
        let sources = parse_deb822(DEB822);
        assert_eq!(sources.len(), 2, "{sources:?}");
        let mirrors = Mirrors::among(&sources).unwrap();
        assert_eq!(mirrors.main, "http://mirror.example/debian");
        assert_eq!(mirrors.security, "http://mirror.example/security");
        assert_eq!(mirrors.signed_by.as_deref(), Some("/usr/share/keyrings/some.gpg"));
    }

    #[test]
    fn one_line_form() {
        let sources = parse_list(
            "# deb http://mirror.example/commented bookworm main\n\
             deb-src http://mirror.example/source bookworm main\n\
             deb https://mirror.example/other stable main\n\
             deb [arch=amd64 signed-by=/k.gpg] mirror+file:/etc/apt/mirrors/debian.list trixie main # why\n",
        );
        let mirrors = Mirrors::among(&sources).unwrap();
        assert_eq!(mirrors.main, "mirror+file:/etc/apt/mirrors/debian.list");
        assert_eq!(mirrors.signed_by.as_deref(), Some("/k.gpg"));
    }

    #[test]
    fn security_mirror_is_beside_the_main_one_unless_named() {
        let mirrors =
            Mirrors::among(&parse_list("deb http://mirror.example/debian/ bookworm main\n")).unwrap();
        assert_eq!(mirrors.security, "http://mirror.example/debian-security");
    }

    #[test]
    fn other_distributions_have_no_debian_mirror() {
        assert_eq!(Mirrors::among(&parse_list("deb http://mirror.example/ubuntu noble main\n")), None);
    }

    #[test]
    fn list_takes_security_suites_from_their_mirror() {
        let mirrors = Mirrors {
            main: "http://m/d".into(),
            security: "http://m/s".into(),
            signed_by: Some("/k".into()),
        };
        assert_eq!(
            mirrors.list(Arch::X86_64, &["bullseye", "bullseye-security"]),
            "deb [arch=amd64 signed-by=/k] http://m/d bullseye main\n\
             deb [arch=amd64 signed-by=/k] http://m/s bullseye-security main\n"
        );
    }
}

//! The kernel's functions: which can be probed, and where they are.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    ops::ControlFlow,
};

use super::symbols::{self, Symbol};

/// Where the functions that ftrace knows are listed, a name a line, behind it perhaps a module's in brackets.
const TRACEABLE: [&str; 2] = [
    "/sys/kernel/tracing/available_filter_functions",
    "/sys/kernel/debug/tracing/available_filter_functions",
];
/// Ranges of addresses that can't be probed, and their functions.
const BLACKLIST: &str = "/sys/kernel/debug/kprobes/blacklist";

/// A function that can be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name in the list of symbols.
    pub name: String,
    /// Where it begins.
    pub address: u64,
}

/// Why a function can't be probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The kernel forbids it.
    Blacklisted,
    /// Several functions have this name, and a probe is placed by name.
    Ambiguous,
    /// It is not in the list of symbols.
    Unlisted,
}

impl Refused {
    /// The reason, in words.
    #[must_use]
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Blacklisted => "the kernel forbids probes in it",
            Self::Ambiguous => "several functions have this name",
            Self::Unlisted => "it has no address in /proc/kallsyms",
        }
    }
}

/// Names of all functions that can be traced.
///
/// # Errors
/// If the kernel shows none to this user.
pub(crate) fn traceable() -> io::Result<Vec<String>> {
    for path in TRACEABLE {
        if let Ok(text) = fs::read_to_string(path) {
            return Ok(names(&text));
        }
    }
    // Without tracefs: more than can be traced, which attaching will tell.
    let mut names = Vec::new();
    symbols::for_each(|symbol| {
        if symbol.is_function() {
            names.push(String::from_utf8_lossy(symbol.name).into_owned());
        }
        ControlFlow::Continue(())
    })?;
    names.dedup();
    Ok(names)
}

pub(super) fn names(list: &str) -> Vec<String> {
    list.lines().filter_map(|line| line.split_ascii_whitespace().next()).map(str::to_owned).collect()
}

/// Where symbols are; those of functions too, as often as they are there.
pub(crate) type Addresses = HashMap<String, Vec<u64>>;

/// Addresses of the symbols with these names.
///
/// # Errors
/// If there is no list of symbols.
pub(crate) fn addresses<'a>(names: impl Iterator<Item = &'a str>) -> io::Result<Addresses> {
    let mut found = Found::new(names);
    symbols::for_each(|symbol| found.note(symbol))?;
    Ok(found.addresses)
}

struct Found<'a> {
    wanted: HashSet<&'a [u8]>,
    addresses: Addresses,
}

impl<'a> Found<'a> {
    fn new(names: impl Iterator<Item = &'a str>) -> Self {
        Self { wanted: names.map(str::as_bytes).collect(), addresses: Addresses::new() }
    }

    fn note(&mut self, symbol: &Symbol<'_>) -> ControlFlow<()> {
        if self.wanted.contains(symbol.name) {
            let name = String::from_utf8_lossy(symbol.name).into_owned();
            self.addresses.entry(name).or_default().push(symbol.address().unwrap_or(0));
        }
        ControlFlow::Continue(())
    }
}

/// Parts of the kernel that can't be probed: from where to where. None where this user may not know: then attaching tells.
#[must_use]
pub(crate) fn blacklist() -> Vec<(u64, u64)> {
    ranges(&fs::read_to_string(BLACKLIST).unwrap_or_default())
}

pub(super) fn ranges(text: &str) -> Vec<(u64, u64)> {
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let range = |line: &str| {
        let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
        Some((number(start)?, number(end)?))
    };
    text.lines().filter_map(range).collect()
}

/// Which of the functions with these names can be probed, and why not the others.
#[must_use]
pub(crate) fn probeable(
    names: &[String],
    addresses: &Addresses,
    blacklist: &[(u64, u64)],
) -> (Vec<Function>, Vec<(String, Refused)>) {
    let (mut functions, mut refused) = (Vec::new(), Vec::new());
    for name in names {
        match addresses.get(name).map(Vec::as_slice) {
            Some(&[address]) if blacklist.iter().any(|(start, end)| (*start..*end).contains(&address)) => {
                refused.push((name.clone(), Refused::Blacklisted));
            }
            Some(&[address]) => functions.push(Function { name: name.clone(), address }),
            Some([_, _, ..]) => refused.push((name.clone(), Refused::Ambiguous)),
            _ => refused.push((name.clone(), Refused::Unlisted)),
        }
    }
    (functions, refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "ffffffff81000000 T _stext\n\
        ffffffff81000100 t sock_poll\n\
        ffffffff81000200 t init_once\n\
        ffffffff81000300 t init_once\n\
        ffffffff81000400 T asm_exc_nmi\n\
        ffffffffc0000000 t tun_sendmsg\t[tun]\n";

    #[test]
    fn functions_that_can_be_probed_are_told_from_others() {
        let names = ["sock_poll", "init_once", "asm_exc_nmi", "tun_sendmsg", "none"].map(str::to_owned);
        let mut found = Found::new(names.iter().map(String::as_str));
        symbols::walk(LIST.as_bytes(), |symbol| found.note(symbol)).expect("memory can be read");
        let blacklist = ranges("0xffffffff81000400-0xffffffff81000420\tasm_exc_nmi\n");
        let (functions, refused) = probeable(&names, &found.addresses, &blacklist);
        let found: Vec<_> =
            functions.iter().map(|function| (function.name.as_str(), function.address)).collect();
        assert_eq!(found, [("sock_poll", 0xffff_ffff_8100_0100), ("tun_sendmsg", 0xffff_ffff_c000_0000)]);
        assert_eq!(
            refused,
            [
                ("init_once".to_owned(), Refused::Ambiguous),
                ("asm_exc_nmi".to_owned(), Refused::Blacklisted),
                ("none".to_owned(), Refused::Unlisted),
            ]
        );
    }

    #[test]
    fn modules_are_not_part_of_names() {
        assert_eq!(names("vfs_read\ntun_sendmsg [tun]\n"), ["vfs_read", "tun_sendmsg"]);
    }
}

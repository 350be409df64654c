//! The kernel's list of symbols: where its functions and variables are.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Seek as _},
    ops::ControlFlow,
};

use rustc_hash::FxHashMap;

const LIST: &str = "/proc/kallsyms";

/// The array that says where each CPU has its variables.
pub(crate) const PER_CPU_OFFSET: &str = "__per_cpu_offset";
/// Each CPU's variable with the kprobe whose handler it runs.
pub(crate) const CURRENT_KPROBE: &str = "current_kprobe";

/// A line of the list. Its address is all zeroes where `kptr_restrict` hides it.
pub(crate) struct Symbol<'a> {
    address: &'a [u8],
    kind: u8,
    /// Its name, without the module's.
    pub name: &'a [u8],
}

impl<'a> Symbol<'a> {
    /// Lines are `address type name`, and behind a tab the module in brackets.
    fn parse(line: &'a [u8]) -> Option<Self> {
        let (address, rest) = line.split_at(memchr::memchr(b' ', line)?);
        let [_, kind, b' ', name @ ..] = rest else { return None };
        let end = memchr::memchr3(b'\t', b' ', b'\n', name).unwrap_or(name.len());
        Some(Self { address, kind: *kind, name: &name[..end] })
    }

    /// Where it is; `None` where that is hidden.
    #[must_use]
    pub(crate) fn address(&self) -> Option<u64> {
        let text = std::str::from_utf8(self.address).ok()?;
        u64::from_str_radix(text, 16).ok().filter(|address| *address != 0)
    }

    /// Whether it is a function.
    #[must_use]
    pub(crate) const fn is_function(&self) -> bool {
        matches!(self.kind, b't' | b'T' | b'w' | b'W')
    }
}

/// Shows each of the kernel's symbols to `each`, until that has seen enough.
///
/// # Errors
/// If there is no list of symbols.
pub(crate) fn for_each(each: impl FnMut(&Symbol<'_>) -> ControlFlow<()>) -> io::Result<()> {
    walk(BufReader::with_capacity(1 << 16, File::open(LIST)?), each)
}

/// [`for_each`] for a given list.
pub(super) fn walk(
    mut list: impl BufRead,
    mut each: impl FnMut(&Symbol<'_>) -> ControlFlow<()>,
) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if list.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if let Some(symbol) = Symbol::parse(&line)
            && each(&symbol).is_break()
        {
            return Ok(());
        }
    }
}

/// Addresses of functions and variables.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    /// Functions with their addresses, in their order. All functions of one name, which static ones can share.
    pub functions: Vec<(u64, String)>,
    /// Variables that were requested.
    variables: FxHashMap<String, u64>,
}

impl Symbols {
    /// Reads the functions that `wanted` says and the variables of these names.
    ///
    /// # Errors
    /// If there is no list of symbols.
    pub(crate) fn read(wanted: impl Fn(&[u8]) -> bool, variables: &[&str]) -> io::Result<Self> {
        let mut symbols = Self::default();
        for_each(|symbol| symbols.note(symbol, &wanted, variables))?;
        symbols.functions.sort_unstable();
        Ok(symbols)
    }

    fn note(
        &mut self,
        symbol: &Symbol<'_>,
        wanted: impl Fn(&[u8]) -> bool,
        variables: &[&str],
    ) -> ControlFlow<()> {
        // Nearly all are not, and nothing else of them is looked at.
        let is_wanted = if symbol.is_function() {
            wanted(symbol.name)
        } else {
            variables.iter().any(|name| name.as_bytes() == symbol.name)
        };
        if is_wanted && let (Ok(name), Some(address)) = (std::str::from_utf8(symbol.name), symbol.address()) {
            if symbol.is_function() {
                self.functions.push((address, name.to_owned()));
            } else {
                self.variables.insert(name.to_owned(), address);
            }
        }
        ControlFlow::Continue(())
    }

    /// Where a variable is; 0 where that isn't known.
    #[must_use]
    pub(crate) fn variable(&self, name: &str) -> u64 {
        self.variables.get(name).copied().unwrap_or(0)
    }
}

/// The list of symbols, opened while addresses may be seen: they stay visible by this descriptor when that privilege is given up
/// (`kallsyms_open` checks once).
#[derive(Debug)]
pub(crate) struct Opened(File);

impl Opened {
    /// Opens it.
    ///
    /// # Errors
    /// If there is no list of symbols.
    pub(crate) fn new() -> io::Result<Self> {
        File::open(LIST).map(Self)
    }

    /// The function in which an address lies, if the kernel tells.
    #[must_use]
    pub(crate) fn function_at(&self, address: u64) -> Option<String> {
        let mut list = &self.0;
        list.rewind().ok()?;
        let mut symbols = Symbols::default();
        let list = BufReader::with_capacity(1 << 16, list);
        walk(list, |symbol| symbols.note(symbol, |_| true, &[])).ok()?;
        symbols.functions.sort_unstable();
        let next = symbols.functions.partition_point(|(start, _)| *start <= address);
        let (start, name) = symbols.functions.get(next.checked_sub(1)?)?;
        // Further away it is in something that has no name.
        (address - start < 1 << 16).then(|| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_and_variables_are_told_apart() {
        const LIST: &[u8] = b"0000000000000000 A fixed_percpu_data\n\
            0000000000034a80 D __preempt_count\n\
            ffffffff81000000 T tcp_v4_rcv\n\
            ffffffff81000100 t nf_hook\n\
            ffffffff82000000 R __per_cpu_offset\n\
            ffffffffc0000000 t veth_xmit\t[veth]\n";
        let mut symbols = Symbols::default();
        let variables = ["__preempt_count", "__per_cpu_offset", "tcp_v4_rcv"];
        walk(LIST, |symbol| symbols.note(symbol, |name| name != b"nf_hook", &variables))
            .expect("memory can be read");
        let names: Vec<_> = symbols.functions.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["tcp_v4_rcv", "veth_xmit"]);
        assert_eq!(symbols.variable("__preempt_count"), 0x34a80);
        assert_eq!(symbols.variable("__per_cpu_offset"), 0xffff_ffff_8200_0000);
        assert_eq!((symbols.variable("pcpu_hot"), symbols.variable("tcp_v4_rcv")), (0, 0));
    }

    #[test]
    fn lines_of_another_form_are_passed_over() {
        let mut names = Vec::new();
        walk(&b"\nx\n1 \n12 T\n12 T a\n12 Tb c\n"[..], |symbol| {
            names.push(String::from_utf8_lossy(symbol.name).into_owned());
            ControlFlow::Continue(())
        })
        .expect("memory can be read");
        assert_eq!(names, ["a"]);
    }
}

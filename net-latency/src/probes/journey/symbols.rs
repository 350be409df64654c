//! Addresses of the kernel's functions, and of the variables that say in which context a CPU is.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
};

use rustc_hash::FxHashMap;

const LIST: &str = "/proc/kallsyms";

/// Addresses by name. Of functions of one name, which static ones can have, all.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    pub(super) functions: Vec<(u64, String)>,
    /// Variables that were asked for.
    variables: FxHashMap<String, u64>,
}

impl Symbols {
    /// Reads the functions that `wanted` says and the variables of these names.
    pub(super) fn read(wanted: impl Fn(&str) -> bool, variables: &[&str]) -> io::Result<Self> {
        Self::parse(BufReader::with_capacity(1 << 16, File::open(LIST)?), wanted, variables)
    }

    /// Lines are `address type name`, and for a module's symbols its name.
    fn parse(mut list: impl BufRead, wanted: impl Fn(&str) -> bool, variables: &[&str]) -> io::Result<Self> {
        let mut symbols = Self::default();
        let mut line = String::new();
        while {
            line.clear();
            list.read_line(&mut line)? != 0
        } {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let Some(address) = u64::from_str_radix(address, 16).ok().filter(|address| *address != 0) else {
                continue;
            };
            let is_code = matches!(kind, "t" | "T" | "w" | "W");
            if is_code && wanted(name) {
                symbols.functions.push((address, name.to_owned()));
            } else if !is_code && variables.contains(&name) {
                symbols.variables.insert(name.to_owned(), address);
            }
        }
        symbols.functions.sort_unstable();
        Ok(symbols)
    }

    /// Where a variable is; 0 where that isn't known.
    pub(super) fn variable(&self, name: &str) -> u64 {
        self.variables.get(name).copied().unwrap_or(0)
    }
}

/// The function in which an address lies, if the kernel tells.
pub(super) fn function_at(address: u64) -> Option<String> {
    let symbols = Symbols::read(|_| true, &[]).ok()?;
    let next = symbols.functions.partition_point(|(start, _)| *start <= address);
    let (start, name) = symbols.functions.get(next.checked_sub(1)?)?;
    // Further away it is in something that has no name.
    (address - start < 1 << 16).then(|| name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"0000000000000000 A fixed_percpu_data\n\
        0000000000034a80 D __preempt_count\n\
        ffffffff81000000 T tcp_v4_rcv\n\
        ffffffff81000100 t nf_hook\n\
        ffffffff82000000 R __per_cpu_offset\n\
        ffffffffc0000000 t veth_xmit\t[veth]\n";

    #[test]
    fn functions_and_variables_are_told_apart() {
        let symbols = Symbols::parse(
            LIST,
            |name| name != "nf_hook",
            &["__preempt_count", "__per_cpu_offset", "tcp_v4_rcv"],
        )
        .expect("memory can be read");
        let names: Vec<_> = symbols.functions.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["tcp_v4_rcv", "veth_xmit"]);
        assert_eq!(symbols.variable("__preempt_count"), 0x34a80);
        assert_eq!(symbols.variable("__per_cpu_offset"), 0xffff_ffff_8200_0000);
        assert_eq!((symbols.variable("pcpu_hot"), symbols.variable("tcp_v4_rcv")), (0, 0));
    }
}

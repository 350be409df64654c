//! What the running kernel is and has: everything is looked up, nothing is concluded from its version.

pub(crate) mod arch;
pub(crate) mod btf;
pub(crate) mod cgroups;
pub(crate) mod containers;
pub(crate) mod cpus;
pub(crate) mod devices;
pub(crate) mod facts;
pub(crate) mod functions;
pub(crate) mod layout;
mod lives;
pub mod memory;
mod mounts;
pub(crate) mod netns;
pub(crate) mod owners;
pub(crate) mod pages;
pub(crate) mod ports;
pub mod preemption;
pub(crate) mod prerequisites;
pub(crate) mod processes;
pub(crate) mod symbols;
pub(crate) mod tasks;

use std::{fs, io};

use crate::error::Failure;

/// Where the kernel shows its BTF.
pub(crate) const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

/// The kernel's BTF as bytes.
///
/// # Errors
/// A failure that says what is missing, where the kernel shows none or this user may not read it.
pub(crate) fn read_btf() -> Result<Vec<u8>, Failure> {
    let remedy =
        "a kernel built with CONFIG_DEBUG_INFO_BTF=y is needed (all current distribution kernels are)";
    match fs::read(BTF_PATH) {
        Ok(bytes) if !bytes.is_empty() => Ok(bytes),
        Ok(_) => Err(Failure::cannot_trace(
            format!("this kernel shows no BTF type information in {BTF_PATH}"),
            remedy,
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::cannot_trace(
            format!("this kernel has no BTF type information ({BTF_PATH})"),
            remedy,
        )),
        Err(error) => Err(Failure::cannot_trace(
            format!("cannot read the kernel's BTF type information in {BTF_PATH}: {error}"),
            "run net-latency as root",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::{
        cgroups::unified_hierarchy, facts::recorded::Recorded, functions, preemption, prerequisites,
        processes::innermost, symbols,
    };
    use crate::fuzz;

    #[test]
    fn fuzz_lists_of_the_kernel() {
        let seeds = [
            "25 30 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n26 25 0:23 / /a\\040b rw shared:9 - cgroup2 cgroup2 rw\n",
            "ffffffff81000000 T _stext\nffffffff81000100 t sock_poll\nffffffffc0000000 t tun_sendmsg\t[tun]\n",
            "0xffffffff81000400-0xffffffff81000420\tasm_exc_nmi\n",
            "Name:\tcat\nTgid:\t7\nNSpid:\t1007\t7\n",
            "vfs_read\ntun_sendmsg [tun]\n",
        ];
        fuzz::run(
            "lists of the kernel",
            1_000,
            seeds.map(Vec::from),
            &[" - cgroup2 ", "NSpid:", "\\777"],
            |bytes| {
                let _ = (unified_hierarchy(bytes), innermost(bytes));
                let read = symbols::walk(bytes, |symbol| {
                    let _ = (symbol.address(), symbol.is_function());
                    ControlFlow::Continue(())
                });
                read.expect("memory can be read");
                let text = String::from_utf8_lossy(bytes);
                let _ = (functions::ranges(&text), functions::names(&text));
            },
        );
    }

    #[test]
    fn fuzz_facts_of_the_kernel() {
        let seeds = [include_str!("recorded/debian-6.1.txt"), include_str!("recorded/debian-6.12-rt.txt")];
        fuzz::run("facts of the kernel", 300, seeds.map(Vec::from), &["(", ")", "\n", "-1"], |bytes| {
            let facts = Recorded::parse(&format!("== /nowhere\n{}", String::from_utf8_lossy(bytes)));
            let _ = preemption::Preemption::of(&facts);
            for check in [prerequisites::needed(&facts), prerequisites::circumstances(&facts)].concat() {
                let _ = check.failure();
            }
        });
    }
}

//! What the running kernel is and has: everything is looked up, nothing is concluded from its version.

pub mod btf;
pub mod cgroups;
pub mod devices;
pub mod facts;
pub mod functions;
pub mod layout;
pub mod memory;
pub mod namespaced;
pub mod preemption;
pub mod prerequisites;
pub mod symbols;

use std::{fs, io};

use crate::error::Failure;

/// Where the kernel shows its BTF.
pub const BTF_PATH: &str = "/sys/kernel/btf/vmlinux";

/// The kernel's BTF as bytes.
///
/// # Errors
/// A failure that says what is missing, where the kernel shows none or this user may not read it.
pub fn read_btf() -> Result<Vec<u8>, Failure> {
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

//! The build script of the package that `cargo xtask dist --crate` makes. The package brings the kernel side's objects, so that
//! nothing is compiled for the BPF target, and this needs no other package.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=objects");
    println!("cargo:rustc-check-cfg=cfg(has_skipping_object)");
    let out = env::var_os("OUT_DIR").map(PathBuf::from).ok_or_else(|| io::Error::other("cargo names no OUT_DIR"))?;
    for entry in fs::read_dir("objects")? {
        let entry = entry?;
        fs::copy(entry.path(), out.join(entry.file_name()))?;
    }
    Ok(())
}

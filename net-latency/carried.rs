//! The build script of the package that `cargo xtask dist --crate` makes. The package brings the kernel side's objects, so that
//! nothing is compiled for the BPF target, and this needs no other package.

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").map_err(io::Error::other)?;
    let objects = PathBuf::from("objects").join(&architecture);
    println!("cargo:rerun-if-changed=objects");
    println!("cargo:rustc-check-cfg=cfg(has_skipping_object)");
    let out = env::var_os("OUT_DIR").map(PathBuf::from).ok_or_else(|| io::Error::other("cargo names no OUT_DIR"))?;
    let there = fs::read_dir(&objects).map_err(|error| {
        io::Error::other(format!("net-latency has no kernel side for {architecture} ({}: {error})", objects.display()))
    })?;
    for entry in there {
        let entry = entry?;
        fs::copy(entry.path(), out.join(entry.file_name()))?;
    }
    Ok(())
}

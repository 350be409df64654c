//! Which Rust toolchain builds the kernel side.
//!
//! Shared by xtask, which installs it, and by the build script of `net-latency`, which uses it.

use std::{env, path::Path, process::Command};

/// Names or points to another toolchain, for users who keep their own.
pub(crate) const OVERRIDE: &str = "NET_LATENCY_BPF_TOOLCHAIN";

/// Where Debian's `rustc-web` and `rust-web-src` put a compiler and its library source.
const DEBIAN: &str = "/usr";

/// What the workspace asks for: 1.95. Debian has older compilers too, under the same path.
const OLDEST_MINOR: u32 = 95;

/// Used where Debian's packages are not to be had. Pinned because bpf-linker reads only bitcode of
/// an LLVM that is no newer than its own, which is 22.
pub(crate) const NIGHTLY: &str = "nightly-2026-05-20";

/// The toolchain to give to `rustup run`: a name or a path.
pub(crate) fn choose() -> String {
    match env::var(OVERRIDE) {
        Ok(toolchain) if !toolchain.is_empty() => toolchain,
        _ if debian_is_complete() => DEBIAN.to_owned(),
        _ => NIGHTLY.to_owned(),
    }
}

/// Whether Debian's compiler is here, recent enough, with the source of `core`, which is built for the BPF target.
pub(crate) fn debian_is_complete() -> bool {
    let usr = Path::new(DEBIAN);
    usr.join("lib/rustlib/src/rust/library").exists()
        && Command::new(usr.join("bin/rustc")).arg("--version").output().is_ok_and(|output| {
            minor_version(&String::from_utf8_lossy(&output.stdout)).is_some_and(|minor| minor >= OLDEST_MINOR)
        })
}

/// The 96 in `rustc 1.96.0 (…)`.
fn minor_version(version: &str) -> Option<u32> {
    version.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minor_version_of_rustc() {
        assert_eq!(minor_version("rustc 1.96.0 (ac68faa20 2026-05-25)"), Some(96));
        assert_eq!(minor_version("gcc 12.2.0"), None);
    }
}

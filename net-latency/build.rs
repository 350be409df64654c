//! Builds the kernel side, so that the user side can carry it in its own binary.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use aya_build::{Package, Toolchain};
use object::{
    build::elf::{Builder, SectionData},
    elf::SHT_STRTAB,
};

#[path = "../xtask/src/setup/bpf_toolchain.rs"]
mod bpf_toolchain;

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../xtask/src/setup/bpf_toolchain.rs");
    println!("cargo:rerun-if-env-changed={}", bpf_toolchain::OVERRIDE);
    // The package for `cargo install` has no object for tests.
    println!("cargo:rustc-cfg=has_skipping_object");
    println!("cargo:rustc-check-cfg=cfg(has_skipping_object)");

    let workspace =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("this package has no workspace")?;
    let tools = workspace.join("target/tools/bin");
    let inherited = env::var_os("PATH").unwrap_or_default();
    let path: Vec<_> = std::iter::once(tools).chain(env::split_paths(&inherited)).collect();
    if !path.iter().any(|directory| directory.join("bpf-linker").is_file()) {
        bail!("bpf-linker is not installed: run `cargo xtask build`, which installs it and builds");
    }

    // SAFETY: the build script has no other thread that could read the environment meanwhile.
    unsafe {
        env::set_var("PATH", env::join_paths(path)?);
        // A compiler that is not a nightly builds `core` for the BPF target only when told so.
        env::set_var("RUSTC_BOOTSTRAP", "1");
        // The kernel side's instructions: 32-bit arithmetic and jumps too, which Linux has since 5.1 (2dc6b100f928). Flags of a
        // profile are not stable yet; all others the crate that starts the inner cargo sets itself.
        env::set_var("CARGO_UNSTABLE_PROFILE_RUSTFLAGS", "true");
        env::set_var("CARGO_PROFILE_RELEASE_RUSTFLAGS", "-Ctarget-cpu=v3");
        // No path of this machine in the objects, so that they are the same wherever they are built. Not stable yet either.
        env::set_var("CARGO_UNSTABLE_TRIM_PATHS", "true");
        env::set_var("CARGO_PROFILE_RELEASE_TRIM_PATHS", "all");
        // Build scripts and macros are for this machine.
        env::set_var("CARGO_PROFILE_RELEASE_BUILD_OVERRIDE_RUSTFLAGS", "");
        // What the inner cargo says is repeated as warnings at every build: let it be real warnings only.
        env::set_var("CARGO_TERM_QUIET", "true");
        // Nor that rustup takes cargo from another toolchain where this one has none.
        env::set_var("RUSTUP_LOG", "warn");
    }

    let root_dir = workspace.join("net-latency-ebpf");
    // An object each, with the maps of its own features only. The last two are for the bench and for tests, and in no binary of
    // users.
    let packages = [["stream"], ["counts"], ["full"], ["journey"], ["calls"], ["noop"], ["skipping"]];
    let packages: Vec<_> =
        packages.iter().map(|features| package(&root_dir, features)).collect::<Result<_, _>>()?;
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo names no OUT_DIR")?);
    // The kernel side is the same for every profile and target of the user side: one folder for all of them, so that its
    // cargo has nothing to do when it is asked again.
    let shared = workspace.join("target/ebpf");
    fs::create_dir_all(&shared)?;
    let lock = fs::File::create(shared.join("lock"))?;
    lock.lock().context("waiting for another build of the kernel side")?;
    // SAFETY: there is still no other thread.
    unsafe { env::set_var("OUT_DIR", &shared) };
    aya_build::build_ebpf(packages, Toolchain::Custom(&bpf_toolchain::choose()))?;
    for entry in fs::read_dir(&shared)? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().ends_with(b"-bpf") {
            let path = entry.path();
            let stripped = strip(&path).with_context(|| format!("stripping {}", path.display()))?;
            fs::write(out.join(entry.file_name()), stripped)?;
        }
    }
    Ok(())
}

/// An object without what only debuggers read: four fifths of it, which would be in the tool's binary and be gone through at
/// each start. The linker makes BTF of that, and so needs it, and can't leave it out.
fn strip(path: &Path) -> anyhow::Result<Vec<u8>> {
    let data = fs::read(path)?;
    let mut object = Builder::read(&*data)?;
    for section in &mut object.sections {
        section.delete =
            [&b".debug_"[..], b".rel.debug_"].iter().any(|debug| section.name.starts_with(debug));
    }
    object.delete_orphans();
    // LLVM writes one table of strings for symbols and sections; this writes two.
    let names = object.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = SHT_STRTAB;
    names.data = SectionData::SectionString;
    let mut stripped = Vec::new();
    object.write(&mut stripped)?;
    Ok(stripped)
}

fn package<'a>(root_dir: &'a Path, features: &'a [&'a str]) -> anyhow::Result<Package<'a>> {
    Ok(Package {
        name: "net-latency-ebpf",
        root_dir: root_dir.to_str().context("the path of the workspace is not UTF-8")?,
        no_default_features: true,
        features,
    })
}

//! Builds the kernel side, so that the user side can carry it in its own binary.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail, ensure};
use aya_build::{Package, Toolchain};
use object::{
    build::elf::{Builder, SectionData},
    elf::SHT_STRTAB,
};

#[path = "../xtask/src/setup/bpf_toolchain.rs"]
mod bpf_toolchain;

/// Set to anything: the objects keep their source lines, for the verifier's log to name them.
const SOURCE_LINES: &str = "NET_LATENCY_SOURCE_LINES";

fn main() -> anyhow::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=../xtask/src/setup/bpf_toolchain.rs");
    println!("cargo:rerun-if-env-changed={}", bpf_toolchain::OVERRIDE);
    println!("cargo:rerun-if-env-changed={SOURCE_LINES}");
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
        // The kernel side's instructions: 32-bit arithmetic and jumps too, which Linux has since 5.1 (2dc6b100f928). Copies and zeroes are
        // loads and stores of whole words, where bpf-linker would have LLVM call functions that loop over bytes. Flags of a profile are not
        // stable yet; all others the crate that starts the inner cargo sets itself.
        env::set_var("CARGO_UNSTABLE_PROFILE_RUSTFLAGS", "true");
        env::set_var(
            "CARGO_PROFILE_RELEASE_RUSTFLAGS",
            "-Ctarget-cpu=v3 -Clink-arg=--disable-expand-memcpy-in-order",
        );
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
    let packages =
        [["stream"], ["counts"], ["full"], ["journey"], ["calls"], ["connections"], ["noop"], ["skipping"]];
    let packages: Vec<_> =
        packages.iter().map(|features| package(&root_dir, features)).collect::<Result<_, _>>()?;
    let out = PathBuf::from(env::var_os("OUT_DIR").context("cargo names no OUT_DIR")?);
    // The kernel side is the same for every profile of the user side: one folder for all of them, and for each architecture, so that
    // its cargo has nothing to do when it is asked again.
    let architecture = env::var("CARGO_CFG_TARGET_ARCH").context("cargo names no architecture")?;
    let shared = workspace.join("target").join(match architecture.as_str() {
        "x86_64" => "ebpf",
        "aarch64" => "ebpf-arm64",
        other => bail!("net-latency knows no kernels of {other}: it is for x86_64 and aarch64"),
    });
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
/// each start. The linker makes BTF of that, and so needs it, and can't leave it out. Of the rest, more than half says which source line
/// each instruction comes from, and where in that a linker would have to write.
fn strip(path: &Path) -> anyhow::Result<Vec<u8>> {
    let data = fs::read(path)?;
    let mut object = Builder::read(&*data)?;
    let keeps_lines = env::var_os(SOURCE_LINES).is_some();
    for section in &mut object.sections {
        // The object is linked, and no loader looks at BTF's relocations.
        section.delete = [&b".debug_"[..], b".rel.debug_", b".rel.BTF"]
            .iter()
            .any(|unused| section.name.starts_with(unused));
        if section.name.as_slice() == b".BTF.ext" && !keeps_lines {
            let SectionData::Data(info) = &section.data else { bail!(".BTF.ext has no data") };
            section.data = SectionData::Data(without_lines(info)?.into());
        }
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

/// What a `.BTF.ext` says of functions, without what it says of source lines. The loader would copy all lines of a section for each of
/// its functions, and the kernel would check them, and keep them as long as the programs.
fn without_lines(info: &[u8]) -> anyhow::Result<Vec<u8>> {
    // Where the header (`struct btf_ext_header`) has its own length, and where lines and relocations begin behind it and how many bytes
    // they have.
    const HEADER: usize = 4;
    const LINES: usize = 16;
    const LINES_LENGTH: usize = 20;
    const RELOCATIONS: usize = 24;
    const RELOCATIONS_LENGTH: usize = 28;
    let word = |at: usize| {
        let bytes = info.get(at..at + 4).context("its header has no end")?;
        anyhow::Ok(u32::from_le_bytes(bytes.try_into()?))
    };
    let (lines, end) = (word(LINES)?, word(LINES)? + word(LINES_LENGTH)?);
    let header = word(HEADER)? as usize;
    ensure!(word(RELOCATIONS_LENGTH)? == 0 && header + end as usize == info.len(), "lines are not its end");
    let mut rest = info[..header + lines as usize].to_vec();
    for (at, value) in [(LINES_LENGTH, 0), (RELOCATIONS, lines)] {
        rest[at..at + 4].copy_from_slice(&u32::to_le_bytes(value));
    }
    Ok(rest)
}

fn package<'a>(root_dir: &'a Path, features: &'a [&'a str]) -> anyhow::Result<Package<'a>> {
    Ok(Package {
        name: "net-latency-ebpf",
        root_dir: root_dir.to_str().context("the path of the workspace is not UTF-8")?,
        no_default_features: true,
        features,
    })
}

//! The files for users: `target/dist`.

mod crates;
pub(crate) mod image;
mod parts;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use image::Entry;
use parts::Parts;
use walkdir::WalkDir;

use crate::{
    arch::Arch,
    build::{self, cargo},
    paths,
    process::quietly,
    setup::cargo_tool,
};

/// The manual pages, below `target/dist`.
const MANUALS: &str = "man";

/// Shells, and their completions' names below `target/dist`.
const COMPLETIONS: [(&str, &str); 4] = [
    ("bash", "completions/net-latency.bash"),
    ("zsh", "completions/_net-latency"),
    ("fish", "completions/net-latency.fish"),
    ("elvish", "completions/net-latency.elv"),
];

/// Licences of dependencies, their list as CycloneDX, and checksums of all, below `target/dist`.
const NOTICES: &str = "NOTICES.txt";
const LIST: &str = "net-latency.cdx.json";
const SUMS: &str = "SHA256SUMS";

const GENERATING_REMEDY: &str = "the tool must print this on any machine";
const OBJCOPY_REMEDY: &str = "objcopy is in the package binutils";

/// The image for container runtimes, and where it has [`NOTICES`], below `target/dist` and in the image.
const IMAGE: &str = "net-latency.oci.tar";
const NOTICES_IN_IMAGE: &str = "usr/share/doc/net-latency/NOTICES.txt";

/// What to make, besides the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    /// Nothing.
    Tool,
    /// A Debian package.
    Package,
}

/// Leaves the tool, and the files it generates, in `target/dist`; returns the path of the requested product.
pub(crate) fn run(product: Product, arch: Arch) -> Result<PathBuf> {
    let tool = leave(arch)?;
    let made = match product {
        Product::Tool => tool,
        Product::Package => package(arch)?,
    };
    sum(&paths::dist(arch))?;
    Ok(made)
}

/// Leaves the tool, whose path it returns, and the files it generates, without their checksums.
fn leave(arch: Arch) -> Result<PathBuf> {
    let dist = paths::dist(arch);
    let tool = dist.join("net-latency");
    let built = build::tool_for_others(arch)?;
    fs::create_dir_all(&dist)?;
    strip(&built, &tool, arch)?;
    let mut write_manuals = arch.command(&tool);
    quietly(write_manuals.args(["man", "--all"]).arg(dist.join(MANUALS)), GENERATING_REMEDY)?;
    for (shell, name) in COMPLETIONS {
        generate(arch.command(&tool), &["completions", shell], &dist.join(name))?;
    }
    let parts = Parts::find(arch)?;
    let list = serde_json::to_string_pretty(&parts.cyclonedx())?;
    write(&dist.join(NOTICES), &parts.notices()?)?;
    write(&dist.join(LIST), &format!("{list}\n"))?;
    Ok(tool)
}

/// Makes packages for `cargo install` in `target/dist`, and installs from them if they are to be checked; returns the path of the
/// tool's.
pub(crate) fn crates(is_checked: bool) -> Result<PathBuf> {
    let dist = paths::dist(Arch::default());
    fs::create_dir_all(&dist)?;
    let made = crates::pack()?;
    sum(&dist)?;
    if is_checked {
        crates::check()?;
    }
    Ok(made)
}

/// Writes the SHA-256 of all that is there, as `sha256sum --check` reads it.
fn sum(dist: &Path) -> Result<()> {
    let mut files = Vec::new();
    for entry in WalkDir::new(dist).sort_by_file_name() {
        let entry = entry?;
        if entry.file_type().is_file() && entry.file_name() != SUMS {
            files.push(entry.path().strip_prefix(dist)?.to_owned());
        }
    }
    let mut sums = Command::new("sha256sum");
    let sums =
        quietly(sums.arg("--").args(files).current_dir(dist), "sha256sum is in the package coreutils")?;
    write(&dist.join(SUMS), &sums)
}

/// When the sources were written, for what notes times: as everybody who builds them reproducibly says it, else the commit.
fn source_date() -> Option<String> {
    env::var("SOURCE_DATE_EPOCH").ok().or_else(|| {
        let mut log = Command::new("git");
        log.args(["log", "-1", "--format=%ct"]).current_dir(paths::workspace());
        Some(quietly(&mut log, "").ok()?.trim().to_owned())
    })
}

/// Puts the built tool without its symbols at `target`, and those beside it, where debuggers look.
fn strip(built: &Path, target: &Path, arch: Arch) -> Result<()> {
    let objcopy = arch.binutils("objcopy");
    let symbols = target.with_extension("debug");
    // Link-time optimisation gives some local symbols numbers that depend on the folder, and the linker's build ID on those.
    let whole = target.with_extension("whole");
    let mut trim = Command::new(&objcopy);
    trim.args(["--wildcard", "--strip-symbol=*.llvm.*", "--remove-section=.note.gnu.build-id"]);
    quietly(trim.arg(built).arg(&whole), OBJCOPY_REMEDY)?;
    let mut extract = Command::new(&objcopy);
    quietly(
        extract.args(["--only-keep-debug", "--compress-debug-sections"]).arg(&whole).arg(&symbols),
        OBJCOPY_REMEDY,
    )?;
    let mut strip = Command::new(&objcopy);
    strip.arg("--strip-all").arg(&whole).arg(target);
    quietly(&mut strip, OBJCOPY_REMEDY)?;
    fs::remove_file(&whole)?;
    // A link holds a name without a folder, and a checksum of the file.
    let mut link = Command::new(&objcopy);
    link.arg("--add-gnu-debuglink=net-latency.debug").arg(target).current_dir(paths::dist(arch));
    quietly(&mut link, OBJCOPY_REMEDY)?;
    Ok(())
}

/// Makes a Debian package of `target/dist`, as net-latency/Cargo.toml says.
fn package(arch: Arch) -> Result<PathBuf> {
    cargo_tool::DEB.ensure()?;
    let mut command = cargo("deb");
    let path = env::var_os("PATH").unwrap_or_default();
    let tools = paths::tools().join("bin");
    command.env("PATH", env::join_paths(std::iter::once(tools).chain(env::split_paths(&path)))?);
    command.args(["--package", "net-latency", "--no-build", "--no-strip", "--target", arch.target()]);
    command.arg("--output").arg(paths::dist(arch));
    if let Some(date) = source_date() {
        command.env("SOURCE_DATE_EPOCH", date);
    }
    // The packager's name may come by the variables of Debian's own tools.
    if let (Ok(name), Ok(address)) = (env::var("DEBFULLNAME"), env::var("DEBEMAIL")) {
        command.arg("--maintainer").arg(format!("{name} <{address}>"));
    }
    let printed = quietly(&mut command, "cargo-deb could not make the package")?;
    Ok(printed.lines().last().context("cargo-deb names no package")?.into())
}

/// Leaves the files for users of each of these architectures, and one image of their tools and licences with those of the first.
pub(crate) fn image(archs: &[Arch]) -> Result<PathBuf> {
    let read = |path: &Path| fs::read(path).with_context(|| format!("can't read {}", path.display()));
    let mut parts: Vec<(Arch, Vec<u8>, Vec<u8>)> = Vec::new();
    // One that is given twice is in the image once.
    for &arch in archs {
        if parts.iter().any(|(made, ..)| *made == arch) {
            continue;
        }
        let tool = leave(arch)?;
        parts.push((arch, read(&tool)?, read(&paths::dist(arch).join(NOTICES))?));
    }
    let created =
        source_date().map_or(Ok(0), |seconds| seconds.parse()).context("the time of the sources")?;
    let files: Vec<_> = parts
        .iter()
        .map(|(arch, program, notices)| {
            let program = Entry { path: image::PROGRAM, mode: 0o755, bytes: program };
            (*arch, [program, Entry { path: NOTICES_IN_IMAGE, mode: 0o644, bytes: notices }])
        })
        .collect();
    let made = paths::dist(archs[0]).join(IMAGE);
    image::write(&files, created, &made)?;
    for &arch in archs {
        sum(&paths::dist(arch))?;
    }
    Ok(made)
}

/// Makes an image of a tool that is only tested.
pub(crate) fn image_for_tests(arch: Arch, built: &Path, made: &Path) -> Result<()> {
    let stripped = made.with_extension("stripped");
    let objcopy = arch.binutils("objcopy");
    quietly(Command::new(objcopy).arg("--strip-all").arg(built).arg(&stripped), OBJCOPY_REMEDY)?;
    let program = fs::read(&stripped)?;
    fs::remove_file(&stripped)?;
    image::write(&[(arch, [Entry { path: image::PROGRAM, mode: 0o755, bytes: &program }])], 0, made)
}

/// Writes what the tool prints to a file.
fn generate(mut tool: Command, arguments: &[&str], path: &Path) -> Result<()> {
    let text = quietly(tool.args(arguments), GENERATING_REMEDY)?;
    fs::create_dir_all(path.parent().context("a file in a directory")?)?;
    write(path, &text)
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("can't write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &str) -> String {
        fs::read_to_string(paths::workspace().join(path)).unwrap()
    }

    #[test]
    fn the_package_has_the_tools_version() {
        let changelog = text("contrib/debian/changelog");
        let newest = format!("net-latency ({}-1) ", env!("CARGO_PKG_VERSION"));
        assert!(changelog.starts_with(&newest), "contrib/debian/changelog does not begin with {newest:?}");
    }

    #[test]
    fn what_the_unit_starts_is_in_the_package() {
        let (unit, manifest) = (text("contrib/systemd/net-latency.service"), text("net-latency/Cargo.toml"));
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/")).unwrap();
        for path in start.split_whitespace().filter(|word| word.contains('/')) {
            let (folder, name) = path.trim_start_matches(['@', '/']).rsplit_once('/').unwrap();
            let is_packed = manifest.lines().any(|line| line.contains(&format!("/{name}\", \"{folder}/\"")));
            assert!(is_packed, "the unit names /{folder}/{name}, which is not packed");
        }
    }
}

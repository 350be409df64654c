//! Packages for `cargo install`: the user side's sources, and the kernel side's objects, so that users need no BPF toolchain.
//!
//! They are packed from a copy of the sources below `target/`, whose manifests name nothing that isn't published.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum as _;
use toml::{Table, Value};
use walkdir::WalkDir;

use crate::{
    arch::Arch,
    build::{self, cargo},
    paths,
    process::{loudly, quietly, step, succeeds},
};

/// What the tool needs, and the tool.
const COMMON: &str = "net-latency-common";
const TOOL: &str = "net-latency";
/// The objects that are in the binary of users: not the bench's.
const OBJECTS: [&str; 6] = [
    "net-latency-bpf",
    "net-latency-counts-bpf",
    "net-latency-full-bpf",
    "net-latency-journey-bpf",
    "net-latency-calls-bpf",
    "net-latency-connections-bpf",
];
/// Their folder in the package, which has one for each architecture by rustc's name, and the build script that takes them from there.
const FOLDER: &str = "objects";
const SCRIPT: &str = "carried.rs";
/// Texts that every package has.
const TEXTS: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "README.md"];
const REMEDY: &str = "see cargo's messages";
/// What a linker takes, besides what rustc brings.
const LINKING: [&str; 3] = ["cc", "ld", "as"];
/// What must not be needed.
const BPF_TOOLS: [&str; 6] = ["bpf-linker", "clang", "llc", "llvm-config", "rustup", "rustc-web"];

/// Makes the packages in `target/dist`; returns that of the tool.
pub(super) fn pack() -> Result<PathBuf> {
    let stage = paths::crates().join("stage");
    paths::remove(&stage)?;
    let packages = stage.join("target/package");
    copy_sources(&stage)?;
    let mut pack = cargo("package");
    // The packages are checked as a whole, by `check`.
    pack.args(["--workspace", "--no-verify", "--allow-dirty", "--quiet"]).current_dir(&stage);
    quietly(pack.arg("--target-dir").arg(stage.join("target")), REMEDY)?;
    let mut made = PathBuf::new();
    for package in [COMMON, TOOL] {
        let name = file_name(package);
        made = paths::dist(Arch::default()).join(&name);
        fs::copy(packages.join(&name), &made).with_context(|| format!("cargo made no {name}"))?;
    }
    Ok(made)
}

fn file_name(package: &str) -> String {
    format!("{package}-{}.crate", env!("CARGO_PKG_VERSION"))
}

fn copy_sources(stage: &Path) -> Result<()> {
    let workspace = paths::workspace();
    let read = |path: &str| {
        let path = workspace.join(path);
        fs::read_to_string(&path).with_context(|| format!("can't read {}", path.display()))
    };
    for package in [COMMON, TOOL] {
        let target = stage.join(package);
        copy_folder(&workspace.join(package).join("src"), &target.join("src"))?;
        for text in TEXTS {
            fs::copy(workspace.join(text), target.join(text))
                .with_context(|| format!("can't copy {text}"))?;
        }
        let manifest = package_manifest(package, &read(&format!("{package}/Cargo.toml"))?)?;
        fs::write(target.join("Cargo.toml"), manifest)?;
    }
    fs::write(stage.join("Cargo.toml"), workspace_manifest(&read("Cargo.toml")?)?)?;
    fs::copy(workspace.join("Cargo.lock"), stage.join("Cargo.lock"))?;
    let tool = stage.join(TOOL);
    fs::copy(workspace.join(TOOL).join(SCRIPT), tool.join(SCRIPT))?;
    for &arch in Arch::value_variants() {
        let objects = build::objects(arch)?;
        let folder = tool.join(folder(arch));
        fs::create_dir_all(&folder)?;
        for object in OBJECTS {
            fs::copy(objects.join(object), folder.join(object))
                .with_context(|| format!("there is no {object} in {}", objects.display()))?;
        }
    }
    Ok(())
}

/// Where the objects of an architecture are in the package.
fn folder(arch: Arch) -> PathBuf {
    let (name, _) = arch.target().split_once('-').expect("a target has parts");
    Path::new(FOLDER).join(name)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    for entry in WalkDir::new(from) {
        let entry = entry?;
        let target = to.join(entry.path().strip_prefix(from)?);
        if entry.file_type().is_dir() {
            fs::create_dir_all(&target)?;
        } else {
            fs::copy(entry.path(), &target)
                .with_context(|| format!("can't copy {}", entry.path().display()))?;
        }
    }
    Ok(())
}

/// The manifest of a workspace that has only the packages.
fn workspace_manifest(text: &str) -> Result<String> {
    let mut manifest: Table = text.parse()?;
    manifest.remove("profile");
    let workspace = table(&mut manifest, "workspace")?;
    workspace.insert("members".to_owned(), Value::from(vec![COMMON, TOOL]));
    workspace.remove("default-members");
    let dependencies = table(workspace, "dependencies")?;
    dependencies.remove("net-latency-ebpf");
    let version = format!("={}", env!("CARGO_PKG_VERSION"));
    table(dependencies, COMMON)?.insert("version".to_owned(), version.into());
    Ok(manifest.to_string())
}

/// The manifest of a package: without what only its tests and its own build need.
fn package_manifest(package: &str, text: &str) -> Result<String> {
    let mut manifest: Table = text.parse()?;
    for key in ["build-dependencies", "dev-dependencies", "test", "bench"] {
        manifest.remove(key);
    }
    let about = table(&mut manifest, "package")?;
    about.remove("metadata");
    about.insert("readme".to_owned(), "README.md".into());
    if package == TOOL {
        about.insert("build".to_owned(), SCRIPT.into());
    }
    Ok(manifest.to_string())
}

fn table<'a>(within: &'a mut Table, key: &str) -> Result<&'a mut Table> {
    within.get_mut(key).and_then(Value::as_table_mut).with_context(|| format!("no {key} in a manifest"))
}

/// Installs from the packages, where there is nothing that compiles for the BPF target, and compares the objects with those that
/// were built from source: in the package, and in the binary that comes out.
pub(super) fn check() -> Result<()> {
    // Outside of the workspace, or cargo takes what it finds there for a part of it.
    let place = env::temp_dir().join(format!("net-latency-crates-{}", std::process::id()));
    paths::remove(&place)?;
    fs::create_dir_all(&place)?;
    let outcome = step("installing from the packages", || install(&place));
    paths::remove(&place)?;
    outcome
}

fn install(place: &Path) -> Result<()> {
    for package in [COMMON, TOOL] {
        let mut unpack = Command::new("tar");
        unpack.arg("-xzf").arg(paths::dist(Arch::default()).join(file_name(package))).arg("-C").arg(place);
        quietly(&mut unpack, "tar and gzip must be installed")?;
    }
    let unpacked = |package: &str| place.join(format!("{package}-{}", env!("CARGO_PKG_VERSION")));
    let tool = unpacked(TOOL);
    let read = |path: PathBuf| fs::read(&path).with_context(|| format!("can't read {}", path.display()));
    let mut objects = BTreeMap::new();
    for &arch in Arch::value_variants() {
        let from_source = build::objects(arch)?;
        for object in OBJECTS {
            let packed = read(tool.join(folder(arch)).join(object))?;
            ensure!(
                packed == read(from_source.join(object))?,
                "{object} of {arch} in the package is not what the sources give"
            );
            if arch.is_here() {
                objects.insert(object, packed);
            }
        }
    }

    // As long as it is not published, cargo has to be told where it is.
    let lock = fs::read_to_string(tool.join("Cargo.lock"))?;
    fs::write(tool.join("Cargo.lock"), without_source(&lock)?)?;
    let programs = place.join("bin");
    link_programs(&programs)?;
    for program in BPF_TOOLS {
        let is_there =
            succeeds(Command::new("sh").args(["-c", "command -v \"$0\"", program]).env("PATH", &programs));
        ensure!(!is_there, "{program} is in the PATH that shall have no BPF toolchain");
    }
    let mut install = Command::new(programs.join("cargo"));
    install.args(["install", "--locked", "--offline", "--quiet", "--debug", "--path"]).arg(&tool);
    install.arg("--root").arg(place.join("root")).arg("--target-dir").arg(paths::crates().join("build"));
    let common = unpacked(COMMON);
    let common = common.to_str().context("the temporary folder's name is not UTF-8")?;
    install.arg("--config").arg(format!("patch.crates-io.{COMMON}.path={common:?}"));
    install.current_dir(place).env("PATH", &programs);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let is_cargos = name.starts_with("CARGO_") && name != "CARGO_HOME";
        if is_cargos || name.starts_with("RUST") || name.starts_with("NET_LATENCY") {
            install.env_remove(&*name);
        }
    }
    loudly(&mut install, REMEDY)?;
    let installed = place.join("root/bin").join(TOOL);
    let version = quietly(Command::new(&installed).arg("--version"), "what was installed must run")?;
    ensure!(version.trim() == format!("{TOOL} {}", env!("CARGO_PKG_VERSION")), "it calls itself {version:?}");
    let binary = read(installed)?;
    for (name, bytes) in &objects {
        ensure!(contains(&binary, bytes), "{name} is not in the binary that was installed");
    }
    Ok(())
}

/// A lock file that takes the common package from wherever cargo is told.
fn without_source(lock: &str) -> Result<String> {
    let mut lock: Table = lock.parse()?;
    let packages = lock.get_mut("package").and_then(Value::as_array_mut).context("no packages are locked")?;
    let is_common = |package: &&mut Table| package.get("name").and_then(Value::as_str) == Some(COMMON);
    let common = packages.iter_mut().filter_map(Value::as_table_mut).find(is_common);
    let common = common.with_context(|| format!("{COMMON} is not locked"))?;
    ensure!(common.remove("checksum").is_some(), "{COMMON} is locked without a checksum");
    common.remove("source");
    Ok(lock.to_string())
}

/// Fills a folder with the programs that compiling for this machine takes, and no others: not rustup, which has other toolchains.
fn link_programs(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    let sysroot = quietly(Command::new("rustc").args(["--print", "sysroot"]), "rustup installs it")?;
    for program in ["cargo", "rustc"] {
        symlink(Path::new(sysroot.trim()).join("bin").join(program), folder.join(program))?;
    }
    let path = env::var_os("PATH").unwrap_or_default();
    for program in LINKING {
        let found = env::split_paths(&path).map(|place| place.join(program)).find(|place| place.exists());
        symlink(found.with_context(|| format!("{program} is not installed"))?, folder.join(program))?;
    }
    Ok(())
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(bytes, part).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(path: &str) -> String {
        fs::read_to_string(paths::workspace().join(path)).unwrap()
    }

    #[test]
    fn packages_name_nothing_that_is_not_published() {
        let workspace: Table = workspace_manifest(&manifest("Cargo.toml")).unwrap().parse().unwrap();
        let dependencies = workspace["workspace"]["dependencies"].as_table().unwrap();
        for (name, dependency) in dependencies {
            assert!(dependency.get("path").is_none() || dependency.get("version").is_some(), "{name}");
        }
        let tool: Table =
            package_manifest(TOOL, &manifest("net-latency/Cargo.toml")).unwrap().parse().unwrap();
        assert!(tool["dependencies"].get(COMMON).is_some() && tool.get("build-dependencies").is_none());
        assert_eq!(tool["package"]["build"].as_str(), Some(SCRIPT));
        let paths = [&tool, &workspace].map(|manifest| manifest.to_string().contains("net-latency-ebpf"));
        assert_eq!(paths, [false; 2]);
    }

    #[test]
    fn every_object_of_users_is_packed() {
        let is_object = |name: &str| {
            let is_for_tests = ["net-latency-noop-bpf", "net-latency-skipping-bpf"].contains(&name);
            name.ends_with("-bpf") && !is_for_tests
        };
        let kernel_side: Table = manifest("net-latency-ebpf/Cargo.toml").parse().unwrap();
        let built = kernel_side["bin"].as_array().unwrap().iter().map(|bin| bin["name"].as_str().unwrap());
        assert_eq!(built.filter(|name| is_object(name)).collect::<Vec<_>>(), OBJECTS);
    }

    #[test]
    fn a_lock_takes_the_common_package_from_anywhere() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1\"\nsource = \"s\"\nchecksum = \"c\"\n\n\
                    [[package]]\nname = \"net-latency-common\"\nversion = \"0\"\nsource = \"s\"\nchecksum = \"c\"\n";
        let changed = without_source(lock).unwrap();
        assert_eq!(changed.matches("checksum").count(), 1, "{changed}");
        assert!(without_source(&changed).is_err());
    }
}

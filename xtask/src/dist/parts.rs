//! The dependencies in the binary: for `NOTICES.txt`, and for the CycloneDX list.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use cargo_metadata::{Metadata, MetadataCommand, Package};
use serde_json::{Value, json};

use crate::{arch::Arch, build::cargo, paths, process::quietly};

const REMEDY: &str = "Cargo.lock must fit the manifests";
/// Beginnings of the names of files with licences, in capitals.
const LICENCES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
/// What a static program has in it of the C library.
const LIBC: &str = "GNU C Library, Copyright (C) Free Software Foundation, Inc. and others.\n\
    Its parts that this program needs are linked into it, under the terms of the GNU Lesser General Public\n\
    License, version 2.1 or later. Its source is that of the distribution that this was built on; a user who wants\n\
    another version builds this program with it, by `cargo xtask dist`.\n";

/// Other people's packages in the binary.
#[derive(Debug)]
pub(super) struct Parts {
    /// In order of name and version.
    packages: Vec<Package>,
    /// Dependencies, by names and versions.
    needs: BTreeMap<String, BTreeSet<String>>,
    /// SHA-256 of packages, by name and version, as Cargo.lock has them.
    checksums: BTreeMap<String, String>,
    rust: String,
    libc: String,
}

impl Parts {
    /// Asks cargo.
    pub(super) fn find(arch: Arch) -> Result<Self> {
        // The packages that are linked into the binary, and what each is built for.
        let roots = [("net-latency", arch.target()), ("net-latency-ebpf", "bpfel-unknown-none")];
        let mut linked = BTreeSet::new();
        for (package, target) in roots {
            let mut tree = cargo("tree");
            tree.args(["--locked", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"]);
            linked.extend(names(&quietly(tree.args(["--package", package, "--target", target]), REMEDY)?));
        }
        let metadata = MetadataCommand::new()
            .current_dir(paths::workspace())
            .other_options(["--locked".to_owned()])
            .exec()
            .context(REMEDY)?;
        let mut packages: Vec<_> =
            metadata.packages.iter().filter(|package| linked.contains(&name(package))).cloned().collect();
        packages.sort_by_key(name);
        ensure!(packages.len() == linked.len(), "cargo's lists of packages differ");
        let needs = needs(&metadata, &linked);
        packages.retain(|package| package.source.is_some());
        let lock = paths::workspace().join("Cargo.lock");
        let lock = fs::read_to_string(&lock).with_context(|| format!("can't read {}", lock.display()))?;
        let rust = quietly(Command::new("rustc").arg("--version"), "rustup installs it")?;
        let libc = quietly(Command::new("getconf").arg("GNU_LIBC_VERSION"), "it is in the package libc-bin")?;
        let last = |text: &str, place| text.split_whitespace().nth(place).unwrap_or_default().to_owned();
        Ok(Self { packages, needs, checksums: checksums(&lock), rust: last(&rust, 1), libc: last(&libc, 1) })
    }

    /// The authors and licences of all packages.
    pub(super) fn notices(&self) -> Result<String> {
        let mut out = "net-latency has these works of others in it.\n\n".to_owned();
        let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for package in &self.packages {
            let name = name(package);
            out += &format!("{name}: {}", licence(package));
            for file in licence_files(package)? {
                let text =
                    fs::read_to_string(&file).with_context(|| format!("can't read {}", file.display()))?;
                texts.entry(text.replace('\r', "").trim_end().to_owned()).or_default().push(name.clone());
            }
            out += &package.repository.as_ref().map_or_else(String::new, |place| format!(", {place}"));
            out.push('\n');
        }
        out += &format!(
            "Rust's standard library {}: MIT OR Apache-2.0, https://github.com/rust-lang/rust\n",
            self.rust
        );
        out +=
            &format!("GNU C Library {}: LGPL-2.1-or-later, https://www.gnu.org/software/libc\n", self.libc);
        texts.insert(LIBC.trim_end().to_owned(), vec![format!("glibc {}", self.libc)]);
        let mut texts: Vec<_> = texts.into_iter().collect();
        texts.sort_by(|one, other| one.1.cmp(&other.1));
        for (text, mut names) in texts {
            names.dedup();
            out += &format!("\n{}\n{}\n\n{text}\n", "=".repeat(80), names.join(", "));
        }
        Ok(out)
    }

    /// The list as CycloneDX 1.5. Without time and serial number, which would differ from build to build.
    pub(super) fn cyclonedx(&self) -> Value {
        let own = format!("net-latency {}", env!("CARGO_PKG_VERSION"));
        let mut components: Vec<Value> =
            self.packages.iter().map(|package| self.component(package)).collect();
        for (name, version, licence) in
            [("rust-std", &self.rust, "MIT OR Apache-2.0"), ("glibc", &self.libc, "LGPL-2.1-or-later")]
        {
            let purl = format!("pkg:generic/{name}@{version}");
            components.push(json!({
                "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
                "licenses": [{ "expression": licence }],
            }));
        }
        let dependencies: Vec<Value> = self
            .needs
            .iter()
            .map(|(name, needs)| {
                let needs: Vec<_> = needs.iter().map(|name| purl(name)).collect();
                json!({ "ref": purl(name), "dependsOn": needs })
            })
            .collect();
        json!({
            "bomFormat": "CycloneDX",
            "specVersion": "1.5",
            "version": 1,
            "metadata": { "component": {
                "type": "application", "bom-ref": purl(&own), "name": "net-latency",
                "version": env!("CARGO_PKG_VERSION"), "purl": purl(&own),
                "licenses": [{ "expression": "MIT OR Apache-2.0" }],
            } },
            "components": components,
            "dependencies": dependencies,
        })
    }

    fn component(&self, package: &Package) -> Value {
        let name = name(package);
        let mut component = json!({
            "type": "library",
            "bom-ref": purl(&name),
            "name": package.name,
            "version": package.version,
            "purl": purl(&name),
            "licenses": [{ "expression": licence(package) }],
        });
        if let Some(checksum) = self.checksums.get(&name) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
        }
        if let Some(place) = &package.repository {
            component["externalReferences"] = json!([{ "type": "vcs", "url": place }]);
        }
        component
    }
}

/// Name and version.
fn name(package: &Package) -> String {
    format!("{} {}", package.name, package.version)
}

fn purl(name: &str) -> String {
    format!("pkg:cargo/{}", name.replace(' ', "@"))
}

/// As an SPDX expression; older packages separate licences by a slash.
fn licence(package: &Package) -> String {
    package.license.as_deref().unwrap_or("NOASSERTION").replace('/', " OR ")
}

/// The lines of `cargo tree`: `name vVERSION`, and more.
fn names(tree: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let mut words = line.split_whitespace();
        Some(format!("{} {}", words.next()?, words.next()?.strip_prefix('v')?))
    };
    tree.lines().filter_map(name).collect()
}

fn needs(metadata: &Metadata, linked: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let names: BTreeMap<_, _> =
        metadata.packages.iter().map(|package| (&package.id, name(package))).collect();
    let nodes = metadata.resolve.iter().flat_map(|resolve| &resolve.nodes);
    let needs = nodes.filter_map(|node| {
        let name = names.get(&node.id).filter(|name| linked.contains(*name))?;
        let needed = node.dependencies.iter().filter_map(|id| names.get(id));
        Some((name.clone(), needed.filter(|name| linked.contains(*name)).cloned().collect()))
    });
    needs.collect()
}

/// What Cargo.lock says of packages from a registry.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let of_one = |package: &str| {
        let value = |key: &str| {
            package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"'))
        };
        Some((format!("{} {}", value("name")?, value("version")?), value("checksum")?.to_owned()))
    };
    lock.split("[[package]]").filter_map(of_one).collect()
}

fn licence_files(package: &Package) -> Result<Vec<std::path::PathBuf>> {
    let folder = package.manifest_path.parent().context("a manifest is in a folder")?;
    let folder = Path::new(folder.as_str());
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        if path.is_file() && LICENCES.iter().any(|begin| name.starts_with(begin)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_linked_has_a_licence_and_a_checksum() {
        let parts = Parts::find(Arch::default()).unwrap();
        let names: Vec<_> = parts.packages.iter().map(|package| package.name.as_str()).collect();
        // Of both sides, and of neither tests, macros nor build scripts.
        assert!(["aya", "aya-ebpf", "serde_json"].iter().all(|name| names.contains(name)), "{names:?}");
        assert!(
            !["proptest", "serde_derive", "aya-build", "cargo_metadata"]
                .iter()
                .any(|name| names.contains(name))
        );
        let listed = parts.cyclonedx();
        let components = listed["components"].as_array().unwrap();
        assert_eq!(components.len(), names.len() + 2);
        for component in &components[..names.len()] {
            assert_eq!(component["hashes"][0]["content"].as_str().map(str::len), Some(64), "{component}");
            assert_ne!(component["licenses"][0]["expression"], "NOASSERTION", "{component}");
        }
        let notices = parts.notices().unwrap();
        assert!(names.iter().all(|name| notices.contains(&format!("\n{name} "))), "{notices}");
        assert!(
            notices.contains("Permission is hereby granted") && notices.contains("Lesser General Public")
        );
    }

    #[test]
    fn lists_of_cargo_are_read() {
        let tree = "net-latency v0.1.0 (/somewhere/net-latency)\nanyhow v1.0.100\nanyhow v1.0.100 (*)\n\n";
        assert_eq!(Vec::from_iter(names(tree)), ["anyhow 1.0.100", "net-latency 0.1.0"]);
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"00\"\n\n[[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        assert_eq!(checksums(lock), BTreeMap::from([("a 1.0.0".to_owned(), "00".to_owned())]));
    }
}

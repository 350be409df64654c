//! Debian's kernels for the guests, unpacked below `target/`.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use anyhow::{Context as _, Result};

use super::{
    apt::{PrivateApt, extract},
    modules::Modules,
};
use crate::{paths, process::step};

/// The modules that the tests and the tool's users need. Whatever these depend on comes along.
const MODULES: [&str; 15] = [
    "veth",
    "tun",
    "virtio_pci",
    "virtio_net",
    "sch_fq",
    "sch_netem",
    "sch_tbf",
    "tcp_bbr",
    "bridge",
    "8021q",
    "bonding",
    "ip_gre",
    "vxlan",
    "nft_nat",
    "nft_chain_nat",
];

/// The same, of which some kernels lack some: 5.10 has no TLS.
const OPTIONAL: [&str; 2] = ["tls", "aesni_intel"];

/// Written last; tells that the directory is complete, and for which of the settings above.
const STAMP: &str = "complete";

/// A line of kernels that net-latency is tested on.
#[derive(Debug, PartialEq)]
pub(crate) struct Known {
    name: &'static str,
    /// The versions begin so.
    version: &'static [u64],
    /// The end of the package's name.
    flavour: &'static str,
    /// The Debian suites that carry it.
    suites: &'static [&'static str],
}

/// All of them, oldest first, the real-time build last.
const KNOWN: [Known; 5] = [
    Known {
        name: "5.10",
        version: &[5, 10],
        flavour: "-cloud-amd64",
        suites: &["bullseye", "bullseye-security"],
    },
    Known {
        name: "6.1",
        version: &[6, 1],
        flavour: "-cloud-amd64",
        suites: &["bookworm", "bookworm-security"],
    },
    Known {
        name: "6.12",
        version: &[6, 12],
        flavour: "-cloud-amd64",
        suites: &["trixie", "trixie-security"],
    },
    Known { name: "7.2", version: &[7, 2], flavour: "-cloud-amd64", suites: &["trixie-backports"] },
    Known { name: "rt", version: &[6, 12], flavour: "-rt-amd64", suites: &["trixie", "trixie-security"] },
];

/// One of the known series of kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Series(&'static Known);

impl Series {
    /// All known series.
    pub(crate) fn all() -> Vec<Self> {
        KNOWN.iter().map(Self).collect()
    }

    /// The kernel image.
    pub(crate) fn image(self) -> PathBuf {
        self.directory().join("vmlinuz")
    }

    /// The modules in the order to load them, each as name and file.
    pub(crate) fn modules(self) -> Result<Vec<(String, PathBuf)>> {
        let list = self.directory().join("modules.order");
        let list = fs::read_to_string(&list).with_context(|| format!("can't read {}", list.display()))?;
        Ok(list.lines().map(|name| (name.to_owned(), self.directory().join(format!("{name}.ko")))).collect())
    }

    fn directory(self) -> PathBuf {
        paths::kernels().join(self.0.name)
    }

    fn is_complete(self) -> bool {
        fs::read_to_string(self.directory().join(STAMP)).is_ok_and(|stamp| stamp == stamp_text())
    }

    /// The packages of the newest kernel of this series.
    fn packages(self, available: &[String]) -> Option<Vec<String>> {
        let Known { version, flavour, .. } = self.0;
        let version_of = |package: &str| {
            let rest =
                package.strip_prefix("linux-image-").or_else(|| package.strip_prefix("linux-binary-"))?;
            let text = rest.strip_suffix(flavour)?;
            // Others are named `linux-binary-unsigned-` and the like.
            text.starts_with(|first: char| first.is_ascii_digit()).then_some(())?;
            let numbers = numbers(text);
            // Release candidates are named by the version that they lead to.
            (numbers.starts_with(version) && !text.contains("rc")).then(|| (numbers, text.to_owned()))
        };
        let (_, newest) = available.iter().filter_map(|package| version_of(package)).max()?;
        // Newer packages are split: `linux-image` is then an empty one that needs the other two.
        let binary = format!("linux-binary-{newest}{flavour}");
        let image = format!("linux-image-{newest}{flavour}");
        let modules = format!("linux-modules-{newest}{flavour}");
        let kernel = if available.contains(&binary) { binary } else { image };
        let mut packages = vec![kernel];
        packages.extend(available.contains(&modules).then_some(modules));
        Some(packages)
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name)
    }
}

impl FromStr for Series {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        KNOWN.iter().find(|known| known.name == name).map(Self).ok_or_else(|| {
            let names: Vec<_> = KNOWN.iter().map(|known| known.name).collect();
            format!("the known kernels are {}", names.join(", "))
        })
    }
}

/// Fetches the kernels that aren't here yet.
pub(crate) fn ensure(series: &[Series]) -> Result<()> {
    let missing: Vec<_> = series.iter().copied().filter(|series| !series.is_complete()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
    step(&format!("fetching Debian's kernels {} (50 MB each)", names.join(", ")), || {
        let apt_directory = paths::kernels().join("apt");
        let mut suites: Vec<_> = missing.iter().flat_map(|series| series.0.suites).copied().collect();
        suites.sort_unstable();
        suites.dedup();
        let apt = PrivateApt::new(apt_directory.clone(), &suites)?;
        let available = apt.search("^linux-(image|binary|modules)-.*-amd64$")?;
        for series in missing {
            let packages = series.packages(&available).with_context(|| {
                format!(
                    "Debian's {} no longer has a kernel {series}: see CONTRIBUTING.md, \"Kernels\"",
                    series.0.suites.join(" and ")
                )
            })?;
            install(series, &apt, &packages)?;
        }
        Ok(fs::remove_dir_all(&apt_directory)?)
    })
}

/// Downloads packages and keeps of them what a guest needs.
fn install(series: Series, apt: &PrivateApt, packages: &[String]) -> Result<()> {
    let directory = series.directory();
    if directory.exists() {
        fs::remove_dir_all(&directory)?;
    }
    let unpacked = directory.join("unpacked");
    let debs = apt.download(packages, &unpacked)?;
    extract(&debs, &unpacked)?;
    fs::rename(find_image(&unpacked)?, series.image())?;
    let modules = Modules::below(&unpacked)?;
    let mut wanted = MODULES.to_vec();
    wanted.extend(OPTIONAL.into_iter().filter(|name| modules.has(name)));
    let modules = modules.with_needed(&wanted).with_context(|| packages.join(", "))?;
    let mut order = String::new();
    for (name, module) in modules {
        fs::write(directory.join(format!("{name}.ko")), module)?;
        order += &format!("{name}\n");
    }
    fs::write(directory.join("modules.order"), order)?;
    fs::remove_dir_all(&unpacked)?;
    fs::write(directory.join(STAMP), stamp_text())?;
    eprintln!("xtask: kernel {series}: {}", packages.join(", "));
    Ok(())
}

fn find_image(directory: &Path) -> Result<PathBuf> {
    for entry in walkdir::WalkDir::new(directory) {
        let entry = entry?;
        if entry.file_type().is_file() && entry.file_name().to_string_lossy().starts_with("vmlinuz") {
            return Ok(entry.into_path());
        }
    }
    anyhow::bail!("the kernel's packages hold no vmlinuz")
}

fn stamp_text() -> String {
    format!("{} {}\n", MODULES.join(" "), OPTIONAL.join(" "))
}

/// All numbers in a version, which is enough to order those of one series.
fn numbers(version: &str) -> Vec<u64> {
    version.split(|letter: char| !letter.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages(series: &str, available: &[&str]) -> Option<Vec<String>> {
        let available: Vec<_> = available.iter().map(ToString::to_string).collect();
        series.parse::<Series>().unwrap().packages(&available)
    }

    #[test]
    fn newest_by_number_not_by_letter() {
        let available = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64-unsigned",
            "linux-image-6.12.107+deb13-cloud-amd64",
            "linux-image-cloud-amd64",
        ];
        assert_eq!(packages("6.1", &available).unwrap(), ["linux-image-6.1.0-56-cloud-amd64"]);
    }

    #[test]
    fn split_packages() {
        let available = [
            "linux-image-7.2.12+deb13-cloud-amd64",
            "linux-binary-7.2.12+deb13-cloud-amd64",
            "linux-modules-7.2.12+deb13-cloud-amd64",
            "linux-binary-unsigned-7.2.12+deb13-cloud-amd64",
            "linux-binary-7.2.9+deb13-cloud-amd64",
            "linux-binary-7.2-rc13-cloud-amd64",
            "linux-binary-7.3.1+deb13-cloud-amd64",
        ];
        assert_eq!(
            packages("7.2", &available).unwrap(),
            ["linux-binary-7.2.12+deb13-cloud-amd64", "linux-modules-7.2.12+deb13-cloud-amd64"]
        );
    }

    #[test]
    fn real_time_is_a_flavour() {
        let available = [
            "linux-image-6.12.107+deb13-cloud-amd64",
            "linux-image-6.12.106+deb13-rt-amd64",
            "linux-image-6.12.107+deb13-rt-amd64-unsigned",
        ];
        assert_eq!(packages("rt", &available).unwrap(), ["linux-image-6.12.106+deb13-rt-amd64"]);
    }

    #[test]
    fn series_that_is_gone() {
        assert_eq!(packages("7.2", &["linux-image-7.3.1+deb13-cloud-amd64"]), None);
        assert!("4.19".parse::<Series>().unwrap_err().contains("5.10, 6.1, 6.12, 7.2, rt"));
    }
}

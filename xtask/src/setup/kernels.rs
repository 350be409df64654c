//! Debian's kernels for the guests, unpacked below `target/`.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    apt::{PrivateApt, extract},
    modules::Modules,
};
use crate::{arch::Arch, paths, process::step};

/// The modules that the tests and the tool's users need. Whatever these depend on comes along.
const MODULES: [&str; 24] = [
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
    "nft_tproxy",
    "nft_queue",
    "nfnetlink_queue",
    "sch_ingress",
    "cls_matchall",
    "act_mirred",
    "ifb",
    "nft_flow_offload",
    "nf_flow_table_inet",
];

/// Further modules, which some kernels lack: 5.10 has no TLS, and each architecture a cipher of its own for it.
const OPTIONAL: [&str; 4] = ["tls", "aesni_intel", "ghash_ce", "wireguard"];

/// Written last; tells that the directory is complete, and for which of the settings above.
const STAMP: &str = "complete";

/// Where Debian's newest kernels come to first. The next release brings a suite of its own.
const BACKPORTS: &[&str] = &["trixie-backports"];
/// Names the newest kernel that was found in the archive, and when: by the file's time.
const NEWEST: &str = "newest";
/// Ends the names of packages of [`Series::LargePages`].
const LARGE_PAGES: &str = "-16k";
/// After this the archive is asked again.
const NEWEST_IS_KNOWN_FOR: Duration = Duration::from_secs(7 * 24 * 3600);

/// A line of Debian's kernels, as one asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Series {
    /// The cloud kernels whose versions begin with these two numbers.
    Version(u64, u64),
    /// The highest cloud kernel in the archive.
    Newest,
    /// The PREEMPT_RT kernel of Debian 13.
    RealTime,
    /// Debian 13's kernel for arm64 with pages of 16 KiB.
    LargePages,
}

impl Series {
    /// What net-latency is tested on, oldest first, other builds last.
    const MATRIX: [Self; 6] = [
        Self::Version(5, 10),
        Self::Version(6, 1),
        Self::Version(6, 12),
        Self::Newest,
        Self::RealTime,
        Self::LargePages,
    ];

    /// [`Self::MATRIX`] for an architecture: on arm64 the kernel side needs Linux 5.18, and x86-64 has pages of one size.
    pub(crate) fn matrix(arch: Arch) -> &'static [Self] {
        match arch {
            Arch::X86_64 => &Self::MATRIX[..5],
            Arch::Arm64 => &Self::MATRIX[1..],
        }
    }

    /// The Debian suites that carry it.
    fn suites(self) -> &'static [&'static str] {
        match self {
            Self::Version(5, 10) => &["bullseye", "bullseye-security"],
            Self::Version(6, 1) => &["bookworm", "bookworm-security"],
            Self::Version(6, 12) | Self::RealTime | Self::LargePages => &["trixie", "trixie-security"],
            Self::Version(..) | Self::Newest => BACKPORTS,
        }
    }

    /// The end of the package's name.
    fn flavour(self, arch: Arch) -> String {
        let arch = arch.debian();
        match self {
            Self::RealTime => format!("-rt-{arch}"),
            Self::LargePages => format!("-{arch}{LARGE_PAGES}"),
            Self::Version(..) | Self::Newest => format!("-cloud-{arch}"),
        }
    }

    /// Whether a kernel of these numbers belongs to it. Other suites may be searched at the same time.
    fn has(self, numbers: &[u64]) -> bool {
        match self {
            Self::Version(major, minor) => numbers.starts_with(&[major, minor]),
            Self::Newest => true,
            Self::RealTime | Self::LargePages => numbers.starts_with(&[6, 12]),
        }
    }

    /// Its kernel on this machine, if it is here and need not be looked for in the archive.
    fn here(self, arch: Arch) -> Option<Kernel> {
        if self == Self::Newest && !is_recent(&newest_path(arch)) {
            return None;
        }
        self.here_of_any_age(arch)
    }

    fn here_of_any_age(self, arch: Arch) -> Option<Kernel> {
        let name = match self {
            Self::Newest => fs::read_to_string(newest_path(arch)).ok()?.trim().to_owned(),
            Self::Version(..) | Self::RealTime | Self::LargePages => self.to_string(),
        };
        let kernel = Kernel::named(arch, self, &name);
        kernel.is_complete().then_some(kernel)
    }

    /// Its newest kernel among the packages there are, and the packages to install.
    fn choose(self, arch: Arch, available: &[String]) -> Option<(Kernel, Vec<String>)> {
        let flavour = self.flavour(arch);
        let version_of = |package: &str| {
            let rest =
                package.strip_prefix("linux-image-").or_else(|| package.strip_prefix("linux-binary-"))?;
            let text = rest.strip_suffix(flavour.as_str())?;
            // Others are named `linux-binary-unsigned-` and the like.
            text.starts_with(|first: char| first.is_ascii_digit()).then_some(())?;
            let numbers = numbers(text);
            // Release candidates are named by the version that they lead to.
            (self.has(&numbers) && !text.contains("rc")).then(|| (numbers, text.to_owned()))
        };
        let (numbers, newest) = available.iter().filter_map(|package| version_of(package)).max()?;
        let series = match (self, numbers.as_slice()) {
            (Self::Newest, [major, minor, ..]) => Self::Version(*major, *minor),
            _ => self,
        };
        // Newer packages are split: `linux-image` is then an empty one that needs the other two.
        let binary = format!("linux-binary-{newest}{flavour}");
        let image = format!("linux-image-{newest}{flavour}");
        let modules = format!("linux-modules-{newest}{flavour}");
        let kernel = if available.contains(&binary) { binary } else { image };
        let mut packages = vec![kernel];
        packages.extend(available.contains(&modules).then_some(modules));
        Some((Kernel::named(arch, self, &series.to_string()), packages))
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(major, minor) => write!(f, "{major}.{minor}"),
            Self::Newest => f.write_str(NEWEST),
            Self::RealTime => f.write_str("rt"),
            Self::LargePages => f.write_str("16k"),
        }
    }
}

impl FromStr for Series {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let version = || {
            let (major, minor) = name.split_once('.')?;
            Some(Self::Version(major.parse().ok()?, minor.parse().ok()?))
        };
        match name {
            NEWEST => Ok(Self::Newest),
            "rt" => Ok(Self::RealTime),
            "16k" => Ok(Self::LargePages),
            _ => version().ok_or_else(|| {
                let names = Self::MATRIX.map(|series| series.to_string()).join(", ");
                format!("a kernel is named by the first two numbers of its version; tested are {names}")
            }),
        }
    }
}

/// A kernel that is on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    /// What it runs on.
    pub(crate) arch: Arch,
    /// As it was requested.
    pub(crate) series: Series,
    /// The first two numbers of its version, or `rt`.
    name: String,
}

impl Kernel {
    pub(crate) fn named(arch: Arch, series: Series, name: &str) -> Self {
        Self { arch, series, name: name.to_owned() }
    }

    /// Its name, and its architecture where that is not the usual one.
    pub(crate) fn full_name(&self) -> String {
        match self.arch {
            Arch::X86_64 => self.to_string(),
            arch => format!("{self} {arch}"),
        }
    }

    /// The kernel image.
    pub(crate) fn image(&self) -> PathBuf {
        self.directory().join("vmlinuz")
    }

    /// The modules in the order to load them, each as name and file.
    pub(crate) fn modules(&self) -> Result<Vec<(String, PathBuf)>> {
        let list = self.directory().join("modules.order");
        let list = fs::read_to_string(&list).with_context(|| format!("can't read {}", list.display()))?;
        Ok(list.lines().map(|name| (name.to_owned(), self.directory().join(format!("{name}.ko")))).collect())
    }

    fn directory(&self) -> PathBuf {
        paths::kernels(self.arch).join(&self.name)
    }

    fn is_complete(&self) -> bool {
        fs::read_to_string(self.directory().join(STAMP)).is_ok_and(|stamp| stamp == stamp_text())
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

/// Fetches the kernels that aren't here yet, and returns those that are here then, each once. A series that the archive
/// no longer has is told and left out; it is an error if nothing is left.
pub(crate) fn ensure(arch: Arch, wanted: &[Series]) -> Result<Vec<Kernel>> {
    let missing: Vec<_> = wanted.iter().copied().filter(|series| series.here(arch).is_none()).collect();
    if !missing.is_empty() {
        let fetched = fetch(arch, &missing);
        match missing.as_slice() {
            // Without a network the newest is the one that was found last.
            [Series::Newest]
                if let Err(error) = &fetched
                    && let Some(kernel) = Series::Newest.here_of_any_age(arch) =>
            {
                eprintln!(
                    "xtask: the newest kernel stays {kernel}, since the archive can't be asked: {error:#}"
                );
            }
            _ => fetched?,
        }
    }
    let mut kernels: Vec<Kernel> = Vec::new();
    for series in wanted {
        match series.here_of_any_age(arch) {
            Some(kernel) if kernels.iter().any(|other| other.name == kernel.name) => {}
            Some(kernel) => kernels.push(kernel),
            None => eprintln!(
                "xtask: kernel {series} is left out: Debian's {} has none",
                series.suites().join(" and ")
            ),
        }
    }
    ensure!(!kernels.is_empty(), "none of the requested kernels is in Debian's archive");
    Ok(kernels)
}

/// Fetches kernels; those that the archive does not have it passes over.
fn fetch(arch: Arch, missing: &[Series]) -> Result<()> {
    let names: Vec<_> = missing.iter().map(ToString::to_string).collect();
    step(&format!("fetching Debian's kernels {} (50 MB each)", names.join(", ")), || {
        let apt_directory = paths::kernels(arch).join("apt");
        let mut suites: Vec<_> = missing.iter().flat_map(|series| series.suites()).copied().collect();
        suites.sort_unstable();
        suites.dedup();
        let apt = PrivateApt::new(apt_directory.clone(), arch, &suites)?;
        let available =
            apt.search(&format!("^linux-(image|binary|modules)-.*-{}({LARGE_PAGES})?$", arch.debian()))?;
        for series in missing {
            let Some((kernel, packages)) = series.choose(arch, &available) else { continue };
            if !kernel.is_complete() {
                install(&kernel, &apt, &packages)?;
            }
            if *series == Series::Newest {
                fs::write(newest_path(arch), format!("{kernel}\n"))?;
            }
        }
        Ok(fs::remove_dir_all(&apt_directory)?)
    })
}

fn newest_path(arch: Arch) -> PathBuf {
    paths::kernels(arch).join(NEWEST)
}

/// Whether what the archive said then is taken for true still.
fn is_recent(path: &Path) -> bool {
    let time = fs::metadata(path).and_then(|metadata| metadata.modified());
    time.is_ok_and(|time| time.elapsed().is_ok_and(|age| age < NEWEST_IS_KNOWN_FOR))
}

/// Downloads packages and keeps of them what a guest needs.
fn install(kernel: &Kernel, apt: &PrivateApt, packages: &[String]) -> Result<()> {
    let directory = kernel.directory();
    paths::remove(&directory)?;
    let unpacked = directory.join("unpacked");
    let debs = apt.download(packages, &unpacked)?;
    extract(&debs, &unpacked)?;
    fs::rename(find_image(&unpacked)?, kernel.image())?;
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
    eprintln!("xtask: kernel {kernel}: {}", packages.join(", "));
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

    fn choose(series: &str, available: &[&str]) -> Option<(String, Vec<String>)> {
        let available: Vec<_> = available.iter().map(ToString::to_string).collect();
        let (kernel, packages) = series.parse::<Series>().unwrap().choose(Arch::X86_64, &available)?;
        Some((kernel.to_string(), packages))
    }

    fn packages(series: &str, available: &[&str]) -> Vec<String> {
        choose(series, available).expect("a kernel of this series").1
    }

    const SPLIT: [&str; 8] = [
        "linux-image-6.12.107+deb13-cloud-amd64",
        "linux-image-7.2.12+deb13-cloud-amd64",
        "linux-binary-7.2.12+deb13-cloud-amd64",
        "linux-modules-7.2.12+deb13-cloud-amd64",
        "linux-binary-unsigned-7.2.12+deb13-cloud-amd64",
        "linux-binary-7.2.9+deb13-cloud-amd64",
        "linux-binary-7.2-rc13-cloud-amd64",
        "linux-binary-7.3.1+deb13-cloud-amd64",
    ];

    #[test]
    fn newest_by_number_not_by_letter() {
        let available = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-56-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64-unsigned",
            "linux-image-6.12.107+deb13-cloud-amd64",
            "linux-image-cloud-amd64",
        ];
        assert_eq!(packages("6.1", &available), ["linux-image-6.1.0-56-cloud-amd64"]);
    }

    #[test]
    fn split_packages() {
        assert_eq!(
            packages("7.2", &SPLIT),
            ["linux-binary-7.2.12+deb13-cloud-amd64", "linux-modules-7.2.12+deb13-cloud-amd64"]
        );
    }

    #[test]
    fn the_newest_has_the_name_of_its_version() {
        let newest = ("7.3".to_owned(), vec!["linux-binary-7.3.1+deb13-cloud-amd64".to_owned()]);
        assert_eq!(choose("newest", &SPLIT), Some(newest.clone()));
        assert_eq!(choose("7.3", &SPLIT), Some(newest));
    }

    #[test]
    fn other_builds_are_flavours() {
        let available = [
            "linux-image-6.12.107+deb13-cloud-amd64",
            "linux-image-6.12.106+deb13-rt-amd64",
            "linux-image-6.12.107+deb13-rt-amd64-unsigned",
            "linux-image-7.3.1+deb13-rt-amd64",
            "linux-image-6.12.107+deb13-amd64-16k",
        ];
        assert_eq!(packages("rt", &available), ["linux-image-6.12.106+deb13-rt-amd64"]);
        assert_eq!(packages("16k", &available), ["linux-image-6.12.107+deb13-amd64-16k"]);
    }

    #[test]
    fn a_series_that_is_gone_has_no_kernel() {
        assert_eq!(choose("7.2", &["linux-image-7.3.1+deb13-cloud-amd64"]), None);
        assert!("old".parse::<Series>().unwrap_err().contains("5.10, 6.1, 6.12, newest, rt"));
    }

    #[test]
    fn names_are_read_back() {
        for series in Series::MATRIX {
            assert_eq!(series.to_string().parse(), Ok(series));
        }
    }
}

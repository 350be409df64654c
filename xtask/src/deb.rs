//! A Debian package of what is in `target/dist`, made by dpkg-deb.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};
use walkdir::WalkDir;

use crate::{
    dist::{COMPLETIONS, MANUAL},
    process::quietly,
};

const PACKAGE: &str = "net-latency";
const VERSION: &str = env!("CARGO_PKG_VERSION");
/// That of the only target the tool is built for.
const ARCHITECTURE: &str = "amd64";

/// Files of the workspace, and where they go.
const FROM_WORKSPACE: [(&str, &str); 7] = [
    ("contrib/systemd/net-latency.service", "usr/lib/systemd/system/net-latency.service"),
    ("contrib/config/service.toml", "etc/net-latency/service.toml"),
    ("contrib/config/config.toml", "usr/share/doc/net-latency/examples/config.toml"),
    ("contrib/debian/copyright", "usr/share/doc/net-latency/copyright"),
    ("README.md", "usr/share/doc/net-latency/README.md"),
    ("docs/accuracy.md", "usr/share/doc/net-latency/docs/accuracy.md"),
    ("CHANGELOG.md", "usr/share/doc/net-latency/CHANGELOG.md"),
];
/// The same for what may be missing.
const FROM_WORKSPACE_IF_THERE: [(&str, &str); 1] =
    [("contrib/logrotate/net-latency", "etc/logrotate.d/net-latency")];
/// Where Debian's shells look, by the names in [`COMPLETIONS`].
const DEBIAN_COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/net-latency"),
    ("zsh", "usr/share/zsh/vendor-completions/_net-latency"),
    ("fish", "usr/share/fish/vendor_completions.d/net-latency.fish"),
];
const DEBIAN_MANUAL: &str = "usr/share/man/man1/net-latency.1";
/// One of Debian's own form.
const DEBIAN_CHANGELOG: &str = "usr/share/doc/net-latency/changelog";
/// Must be compressed, says Debian's policy.
const COMPRESSED: [&str; 2] = [DEBIAN_MANUAL, DEBIAN_CHANGELOG];
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

const REMEDY: &str = "dpkg-deb, gzip, md5sum and date are needed, which every Debian has";

/// Makes the package beside what goes into it, and returns its path.
pub(crate) fn build(dist: &Path, workspace: &Path) -> Result<PathBuf> {
    let root = dist.join("deb");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    stage(&root, dist, workspace)?;
    let package = dist.join(format!("{PACKAGE}_{VERSION}_{ARCHITECTURE}.deb"));
    // xz is what all of Debian's releases can unpack.
    let mut command = Command::new("dpkg-deb");
    command.args(["--root-owner-group", "-Zxz", "--build"]).arg(&root).arg(&package);
    quietly(&mut command, REMEDY)?;
    fs::remove_dir_all(&root)?;
    Ok(package)
}

/// Lays out everything below `root` as it will be on the machine, and the package's description in DEBIAN.
fn stage(root: &Path, dist: &Path, workspace: &Path) -> Result<()> {
    install(&dist.join("net-latency"), &root.join("usr/bin/net-latency"), 0o755)?;
    install(&dist.join(MANUAL), &root.join(DEBIAN_MANUAL), 0o644)?;
    for (shell, target) in DEBIAN_COMPLETIONS {
        let (_, source) =
            COMPLETIONS.iter().find(|(name, _)| *name == shell).context("no such completions")?;
        install(&dist.join(source), &root.join(target), 0o644)?;
    }
    for (source, target) in FROM_WORKSPACE {
        install(&workspace.join(source), &root.join(target), 0o644)?;
    }
    for (source, target) in FROM_WORKSPACE_IF_THERE {
        if workspace.join(source).exists() {
            install(&workspace.join(source), &root.join(target), 0o644)?;
        }
    }
    let changelog = root.join(DEBIAN_CHANGELOG);
    fs::write(&changelog, changelog_text()?)?;
    set_mode(&changelog, 0o644)?;
    for path in COMPRESSED {
        quietly(Command::new("gzip").args(["-9", "--no-name"]).arg(root.join(path)), REMEDY)?;
    }
    for entry in WalkDir::new(root) {
        let entry = entry?;
        if entry.file_type().is_dir() {
            set_mode(entry.path(), 0o755)?;
        }
    }
    let files = files_of(root)?;
    let sums = quietly(Command::new("md5sum").arg("--").args(&files).current_dir(root), REMEDY)?;
    let mut kibibytes = 0;
    for file in &files {
        kibibytes += fs::metadata(root.join(file))?.len().div_ceil(1024);
    }
    let configuration: String = files
        .iter()
        .filter(|file| file.starts_with("etc"))
        .map(|file| format!("/{}\n", file.display()))
        .collect();

    let control = root.join("DEBIAN");
    fs::create_dir(&control)?;
    set_mode(&control, 0o755)?;
    for (name, text) in
        [("control", control_text(kibibytes)), ("md5sums", sums), ("conffiles", configuration)]
    {
        fs::write(control.join(name), text)?;
        set_mode(&control.join(name), 0o644)?;
    }
    for script in SCRIPTS {
        install(&workspace.join("contrib/debian").join(script), &control.join(script), 0o755)?;
    }
    Ok(())
}

fn install(source: &Path, target: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(target.parent().context("a file in a directory")?)?;
    fs::copy(source, target).with_context(|| format!("can't copy {}", source.display()))?;
    set_mode(target, mode)
}

/// Not by the umask of whoever builds.
fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("can't set the mode of {}", path.display()))
}

/// All files below `root`, sorted, as paths from there.
fn files_of(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in WalkDir::new(root).sort_by_file_name() {
        let entry = entry?;
        if entry.file_type().is_file() {
            files.push(entry.path().strip_prefix(root)?.to_owned());
        }
    }
    Ok(files)
}

/// Whom to write to about the package: whoever made it, by the variables of Debian's own tools.
fn maintainer() -> String {
    let variable = |name, default: &str| env::var(name).unwrap_or_else(|_| default.to_owned());
    let name = variable("DEBFULLNAME", "the net-latency authors");
    format!("{name} <{}>", variable("DEBEMAIL", "root@localhost"))
}

fn changelog_text() -> Result<String> {
    // So that the same source makes the same package, for those who set it.
    let time = env::var("SOURCE_DATE_EPOCH").map_or_else(|_| "now".to_owned(), |epoch| format!("@{epoch}"));
    let date = quietly(Command::new("date").args(["--utc", "--rfc-email", "--date", &time]), REMEDY)?;
    let maintainer = maintainer();
    Ok(format!(
        "{PACKAGE} ({VERSION}) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- {maintainer}  {date}"
    ))
}

fn control_text(kibibytes: u64) -> String {
    let maintainer = maintainer();
    format!(
        "Package: {PACKAGE}
Version: {VERSION}
Architecture: {ARCHITECTURE}
Maintainer: {maintainer}
Installed-Size: {kibibytes}
Section: net
Priority: optional
Suggests: logrotate
Description: where packets spend their time inside the kernel
 Shows, live and per packet, where the time went between driver, IP, TCP or
 UDP and the application, in both directions, with the process that took or
 gave the bytes. It hooks into the running kernel (Linux 5.10 and later) by
 eBPF, at a cost that a busy server can bear.
 .
 The package brings a systemd service that keeps a log; it is not enabled.
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{paths, process::succeeds};

    /// What `dist` makes, with next to nothing in it.
    fn dist() -> tempfile::TempDir {
        let dist = tempfile::tempdir().unwrap();
        for name in ["net-latency", MANUAL].into_iter().chain(COMPLETIONS.map(|(_, name)| name)) {
            let path = dist.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "#").unwrap();
        }
        dist
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn everything_is_in_its_place() {
        let dist = dist();
        let root = dist.path().join("deb");
        stage(&root, dist.path(), paths::workspace()).unwrap();
        let files = files_of(&root).unwrap();
        let has = |path: &str| files.iter().any(|file| file == Path::new(path));
        for path in [
            "usr/bin/net-latency",
            "usr/share/man/man1/net-latency.1.gz",
            "usr/share/doc/net-latency/copyright",
            "usr/share/doc/net-latency/changelog.gz",
            "usr/lib/systemd/system/net-latency.service",
        ] {
            assert!(has(path), "{path} is missing in {files:?}");
        }
        let unit = fs::read_to_string(root.join("usr/lib/systemd/system/net-latency.service")).unwrap();
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/")).unwrap();
        for path in start.split_whitespace().filter(|word| word.contains('/')) {
            assert!(has(path.trim_start_matches('/')), "the unit names {path}, which is missing");
        }
        let configuration = fs::read_to_string(root.join("DEBIAN/conffiles")).unwrap();
        assert!(configuration.lines().any(|line| line == "/etc/net-latency/service.toml"), "{configuration}");
        assert!(configuration.lines().all(|line| line.starts_with("/etc/")), "{configuration}");
        let sums = fs::read_to_string(root.join("DEBIAN/md5sums")).unwrap();
        assert!(sums.lines().any(|line| line.ends_with("  usr/bin/net-latency")), "{sums}");
        assert!(!sums.contains("DEBIAN"), "{sums}");
        assert_eq!(mode(&root.join("usr/bin/net-latency")), 0o755);
        assert_eq!(mode(&root.join("DEBIAN/postinst")), 0o755);
        assert_eq!(mode(&root.join("etc/net-latency/service.toml")), 0o644);
        assert_eq!(mode(&root.join("usr/share")), 0o755);
    }

    #[test]
    fn dpkg_takes_the_package() {
        if !succeeds(Command::new("dpkg-deb").arg("--version")) {
            println!("not tried: there is no dpkg-deb on this machine");
            return;
        }
        let dist = dist();
        let package = build(dist.path(), paths::workspace()).unwrap();
        let field =
            |name| quietly(Command::new("dpkg-deb").arg("-f").arg(&package).arg(name), REMEDY).unwrap();
        assert_eq!(field("Package").trim(), PACKAGE);
        assert_eq!(field("Version").trim(), VERSION);
        let listed = quietly(Command::new("dpkg-deb").arg("-c").arg(&package), REMEDY).unwrap();
        let binary =
            listed.lines().find(|line| line.ends_with(" ./usr/bin/net-latency")).expect("the binary");
        assert!(binary.starts_with("-rwxr-xr-x root/root"), "{binary}");
        assert!(!dist.path().join("deb").exists(), "what it was made from is left");
    }
}

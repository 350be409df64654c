//! Whether a command can be run, found out before anything is attached.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::process;
use crate::error::{Failure, NOT_EXECUTABLE, NOT_FOUND};

/// Where `execvp` looks if PATH is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// The command that these words are, if there are any.
pub(super) fn resolve(words: Vec<OsString>, proc: &Path) -> Result<Option<Vec<OsString>>, Failure> {
    let Some(name) = words.first() else { return Ok(None) };
    process::check_namespace("a command", proc)?;
    check(name, &env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into()))?;
    Ok(Some(words))
}

/// Checks that there is an executable file of that name.
fn check(name: &OsStr, path: &OsStr) -> Result<(), Failure> {
    let is_path = name.as_encoded_bytes().contains(&b'/');
    let places: Vec<PathBuf> = if is_path {
        vec![name.into()]
    } else {
        env::split_paths(path).map(|directory| directory.join(name)).collect()
    };
    let mut reason = None;
    for place in places {
        match fs::metadata(&place) {
            Ok(found) if found.is_dir() => reason = Some("it is a directory"),
            Ok(found) if found.permissions().mode() & 0o111 == 0 => {
                reason = Some("it is not executable; `chmod +x` makes it so");
            }
            Ok(_) => return Ok(()),
            Err(_) => {}
        }
    }
    let (code, reason) = match reason {
        // A directory in PATH is no command.
        Some(reason) if is_path || reason.starts_with("it is not") => (NOT_EXECUTABLE, reason),
        _ if is_path => (NOT_FOUND, "there is no such file"),
        _ => (NOT_FOUND, "there is no such command; PATH says where commands are looked for"),
    };
    Err(Failure::Command { code, sentence: format!("cannot run {}: {reason}", name.display()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_run_is_told_as_shells_do() {
        let place = tempfile::tempdir().expect("temporary directory");
        let file = place.path().join("text");
        fs::write(&file, "text").expect("writable");
        fs::create_dir(place.path().join("folder")).expect("writable");
        let missing = place.path().join("missing");
        let path = place.path().as_os_str();
        let mut said = String::new();
        for name in [
            OsStr::new("missing"),
            missing.as_os_str(),
            OsStr::new("text"),
            file.as_os_str(),
            path,
            OsStr::new("folder"),
        ] {
            let failure = check(name, path).expect_err("can't be run");
            let sentence = failure.to_string().replace(path.to_str().expect("UTF-8"), "/DIR");
            said += &format!("{}: {sentence}\n", failure.exit_code());
        }
        insta::assert_snapshot!(said);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("ours");
        for (name, path) in [(OsStr::new("text"), path), (file.as_os_str(), OsStr::new(""))] {
            check(name, path).expect("it can be run");
        }
    }
}

//! What earlier versions had, and what to use instead: told for one release.

use std::{
    env,
    ffi::OsString,
    iter,
    path::{Path, PathBuf},
};

use crate::{error::Failure, message::tell};

/// Former options, and why they are gone.
const OPTIONS: [(&str, &str); 6] = [
    ("--config", "write one argument a line into FILE, and start net-latency @FILE"),
    ("--no-config", "no file is read unless you name it as @FILE"),
    ("--user", "use -- runuser -u NAME -- COMMAND"),
    ("--rotate-size", ROTATION),
    ("--rotate-every", ROTATION),
    ("--rotate-keep", ROTATION),
];

/// What rotates files now.
const ROTATION: &str = "use logrotate and SIGHUP, or net-latency record, which bounds what it keeps";

/// What the packaged service names.
const SERVICE: &str = "@/etc/net-latency/service.args";

/// Refuses options that are gone, in a command line without the words of a COMMAND.
///
/// # Errors
/// Which option it is, and what to use instead.
pub(super) fn refuse_options(arguments: &[OsString]) -> Result<(), Failure> {
    for argument in arguments.iter().take_while(|argument| *argument != "--").filter_map(|a| a.to_str()) {
        let name = argument.split('=').next().unwrap_or_default();
        if let Some((_, instead)) = OPTIONS.iter().find(|(option, _)| *option == name) {
            return Err(Failure::Usage(format!("{name} is gone: {instead}")));
        }
    }
    Ok(())
}

/// Says which files with defaults are still there: they are not read.
pub(super) fn tell_of_files(arguments: &[OsString]) {
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".config"));
    let user = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).or(home);
    let old = iter::once("/etc".into()).chain(user).map(|folder| folder.join("net-latency/config.toml"));
    let is_service = arguments.iter().any(|argument| argument == SERVICE);
    let service = is_service.then(|| "/etc/net-latency/service.toml".into());
    for path in old.chain(service).filter(|path| path.exists()) {
        let path = path.display();
        tell(format_args!(
            "{path} is no longer read: move its options to a file of arguments, name that as @FILE, and remove {path}"
        ));
    }
}

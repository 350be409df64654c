//! A guest for whatever one wants to try in it.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};

use crate::{
    build,
    cli::VmArgs,
    guest::qemu::{Outcome, attached, contents},
    setup::{self, programs},
};

/// Boots a guest and runs a command or a shell in it.
pub(crate) fn run(args: VmArgs) -> Result<ExitCode> {
    let kernel = setup::ensure_guest(args.target.arch, args.kernel)?;
    let built = build::for_guest(args.target.arch)?;
    let mut contents = contents(kernel, &built, args.command);
    contents.files = programs::files(args.target.arch, programs::STRACE)?;
    for file in args.files {
        let name = file.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{} has no name to use in the guest", file.display()))?;
        contents.programs.push((name.to_owned(), file));
    }
    exit_code(attached(contents, args.timeout.map(Duration::from_secs))?)
}

/// The command's exit status as this process's own.
pub(crate) fn exit_code(outcome: Outcome) -> Result<ExitCode> {
    match outcome {
        Outcome::Exited(status) => Ok(ExitCode::from(status)),
        Outcome::Died { reason, tail } => {
            bail!("the guest died: {reason}; its console's last lines:\n{tail}")
        }
    }
}

//! Runs the tool on this machine, or in a guest where this machine's kernel can't be traced.

use std::{
    path::Path,
    process::{ExitCode, ExitStatus, Output, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{
    arch::Arch,
    build,
    cli::RunArgs,
    guest::{
        init,
        qemu::{attached, contents},
    },
    process::as_root,
    setup::{self, Needs, kernels::Series},
    vm,
};

/// What the tool exits with where it can't trace.
const CANT_TRACE: i32 = 3;
/// Without arguments, as a newcomer starts it.
const DEFAULT_ARGS: [&str; 2] = ["--duration", "10s"];
pub(crate) const DEFAULT_KERNEL: &str = "6.12";

/// Builds and runs the tool.
pub(crate) fn run(args: RunArgs) -> Result<ExitCode> {
    if let Some(kernel) = args.vm {
        return in_guest(kernel, args);
    }
    let arch = Arch::OF_THIS_PROGRAM;
    setup::ensure(&Needs::build(arch))?;
    let tool = build::tool(arch)?;
    let check = as_root(&tool)
        .arg("check")
        .stdin(Stdio::inherit())
        .output()
        .with_context(|| format!("can't run {} as root: install sudo, or be root", tool.display()))?;
    match check.status.code() {
        Some(0) => on_this_machine(&tool, &args),
        Some(CANT_TRACE) if args.host => bail!("this host's kernel can't be traced: {}", reason(&check)),
        Some(CANT_TRACE) => {
            eprintln!(
                "xtask: this host's kernel can't be traced: {}. Running in a guest with Linux {DEFAULT_KERNEL} instead.",
                reason(&check)
            );
            in_guest(DEFAULT_KERNEL.parse().map_err(anyhow::Error::msg)?, args)
        }
        _ => bail!("`{} check` failed ({}): {}", tool.display(), check.status, reason(&check)),
    }
}

fn on_this_machine(tool: &Path, args: &RunArgs) -> Result<ExitCode> {
    let mut command = as_root(tool);
    // Ctrl-C is for the tool, which then ends by itself; xtask has to wait for it.
    let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT])?;
    let handle = signals.handle();
    let ignoring = std::thread::spawn(move || signals.forever().for_each(drop));
    let status = command.args(&args.args).status().with_context(|| format!("can't run {}", tool.display()));
    handle.close();
    ignoring.join().expect("ignoring signals doesn't panic");
    Ok(exit_code(status?))
}

fn in_guest(kernel: Series, mut args: RunArgs) -> Result<ExitCode> {
    let kernel = setup::ensure_guest(Arch::OF_THIS_PROGRAM, kernel)?;
    let built = build::for_guest(Arch::OF_THIS_PROGRAM)?;
    if args.args.is_empty() {
        args.args = DEFAULT_ARGS.map(Into::into).to_vec();
    }
    let mut command = vec!["net-latency".into()];
    command.append(&mut args.args);
    let mut contents = contents(kernel, &built, command);
    contents.environment.push((init::DEMO.into(), "1".into()));
    vm::exit_code(attached(contents, None)?)
}

fn exit_code(status: ExitStatus) -> ExitCode {
    status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// The tool's sentence about what is wrong.
fn reason(check: &Output) -> String {
    let text =
        [&check.stdout, &check.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    last.trim().trim_start_matches("net-latency: ").trim_end_matches('.').to_owned()
}

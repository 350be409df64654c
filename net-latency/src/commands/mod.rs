//! One file per subcommand.

pub(crate) mod calls;
pub(crate) mod check;
pub(crate) mod connections;
pub(crate) mod diagnose;
pub(crate) mod export;
pub(crate) mod hist;
pub(crate) mod journey;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod stream;
pub(crate) mod top;

use std::{
    fs,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context as _;
use net_latency_common::Counter;

use crate::{
    accounting::{Human, Losses, Summary},
    clock::Zone,
    error::Failure,
    message::{counted, tell},
    request::Config,
    source::log::replay::Replay,
};

/// Does what was requested. The exit code is another than 0 only for a command that was traced.
///
/// # Errors
/// What the subcommand fails with.
pub(crate) fn run(config: Config) -> Result<ExitCode, Failure> {
    match config {
        Config::Stream(config) => return stream::run(&config),
        Config::Calls(config) => calls::run(&config)?,
        Config::Check(config) => check::run(&config)?,
        Config::Connections(config) => connections::run(&config)?,
        Config::Diagnose(config) => diagnose::run(&config)?,
        Config::Export(config) => export::run(&config)?,
        Config::Hist(config) => hist::run(&config)?,
        Config::Journey(config) => journey::run(&config)?,
        Config::Print(text) => to_stdout(&text)?,
        Config::Write { directory, files } => to_files(&directory, &files)?,
        Config::Record(config) => record::run(&config)?,
        Config::Report(config) => report::run(&config)?,
        Config::Top(config) => top::run(&config)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes a text that is complete to standard output. A reader that has seen enough is no failure.
pub(crate) fn to_stdout(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            let reason = error.kind();
            Err(Failure::of_output(
                reason,
                anyhow::Error::new(error).context("cannot write to standard output"),
            ))
        }
        _ => Ok(()),
    }
}

/// Writes files into a directory, which it makes.
pub(crate) fn to_files(directory: &Path, files: &[(String, Vec<u8>)]) -> Result<(), Failure> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    for (name, text) in files {
        let path = directory.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// The figures of a replay: `elapsed` of the log's time, if that is told, and what was done with its lines, and with it.
fn write_replayed(
    replay: &Replay,
    summary: &Summary,
    elapsed: Option<Duration>,
    [done, ended]: [&str; 2],
    zone: Zone,
    out: &mut Vec<u8>,
) -> io::Result<()> {
    let [packets_in, packets_out] = summary.by_direction();
    write!(out, "net-latency: {} in, {packets_out} out", counted(packets_in, "packet"))?;
    if let Some(elapsed) = elapsed {
        write!(out, " in {} of log", Human(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)))?;
    }
    writeln!(out)?;
    summary.write(zone, out)?;
    let (shown, filtered) = (summary.packets(), replay.filtered());
    let lines = counted(shown + filtered, "line");
    writeln!(out, "  {lines} read: {shown} {done}, {filtered} filtered")?;
    replay.notes().iter().try_for_each(|note| writeln!(out, "  {note}"))?;
    if replay.is_over() { Ok(()) } else { writeln!(out, "  the log was not {ended} to its end") }
}

/// Tells standard error, while a view runs, that packets are being lost.
struct Alarm {
    /// The loss, and its remedy.
    words: &'static str,
    is_quiet: bool,
    /// Of these it has told: skipped at random, and lost otherwise.
    told: [u64; 2],
}

impl Alarm {
    fn new(words: &'static str, is_quiet: bool) -> Self {
        Self { words, is_quiet, told: [0; 2] }
    }

    fn look(&mut self, losses: &Losses) {
        const SHED: &str = "packets skipped at random just now, since more come than the output takes: a filter, or a faster output, helps";
        let shed = losses.counters.get(Counter::Shed);
        let counts = [shed, losses.lines() - shed];
        for ((count, told), words) in counts.into_iter().zip(self.told).zip([SHED, self.words]) {
            if count > told && !self.is_quiet {
                tell(format_args!("{} {words}", count - told));
            }
        }
        self.told = counts;
    }
}

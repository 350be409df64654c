//! The options of `net-latency calls`.

use std::{
    num::NonZeroU64,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use glob::Pattern;
use net_latency_common::MAX_CGROUPS;

use super::{
    choice::{choice, first},
    footer::FooterArguments,
    packets::{at_most, unique},
    places, process,
    tracing::TracingArguments,
};
use crate::{
    clock::Zone,
    error::Failure,
    request::{
        Backend, CallFormat, CallsConfig, PacketFilter, Preset, Stages, Style,
        glob::{Glob, MAX_GLOBS},
        values,
    },
};

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct CallsArguments {
    /// Trace the functions with these names: 'tcp_sendmsg', '__sys_*', 'sock_[rs]*'
    #[arg(value_name = "FUNCTION", help_heading = "Functions (without any: --preset socket)")]
    functions: Vec<String>,
    /// Trace the functions of this part of the kernel (repeatable)
    #[arg(
        long = "preset",
        value_parser = choice::<Preset>(),
        value_name = "PRESET",
        help_heading = "Functions (without any: --preset socket)"
    )]
    presets: Vec<Preset>,

    /// Only calls by this process (repeatable); interrupts belong to none
    #[arg(short, long = "pid", value_name = "PID", value_parser = values::parse_pid, help_heading = "Calls")]
    pids: Vec<u32>,
    /// Only calls by processes or threads whose name matches GLOB: 'nginx', 'ngin*' (repeatable)
    #[arg(long = "comm", value_name = "GLOB", value_parser = |text: &str| text.parse::<Glob>(), help_heading = "Calls")]
    comms: Vec<Glob>,
    /// Only calls by processes in this cgroup or below: a systemd unit, a container (repeatable)
    #[arg(long = "cgroup", value_name = "PATH", help_heading = "Calls")]
    cgroups: Vec<PathBuf>,
    /// Only calls inside an outermost call that took at least this long: 250us, 1ms
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration, help_heading = "Calls")]
    slower: Option<Duration>,

    /// How nested calls are shown
    #[arg(long, value_parser = choice::<Style>(), default_value = first::<Style>(), help_heading = "Output")]
    style: Style,
    /// Output format: text in that style, or a JSON object per call
    #[arg(long, value_parser = choice::<CallFormat>(), default_value = first::<CallFormat>(), help_heading = "Output")]
    format: CallFormat,
    /// Text: the functions' addresses too
    #[arg(long, help_heading = "Output")]
    addr: bool,
    /// Text: also each call's time without its traced callees
    #[arg(long = "self", help_heading = "Output")]
    self_time: bool,
    /// Append the output to this file, not to standard output; SIGHUP reopens it by its name
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Output")]
    utc: bool,
    #[command(flatten)]
    footer: FooterArguments,
    /// Name the functions that can't be traced, and say why
    #[arg(short, long, help_heading = "Output")]
    verbose: bool,

    /// Stop after this time: 250us, 1ms, 10s, 2m, 1h
    #[arg(long, value_parser = values::parse_duration, help_heading = "End")]
    duration: Option<Duration>,
    /// Stop after this many outermost calls, with all calls inside them
    #[arg(short = 'n', long, value_name = "CALLS", value_parser = values::parse_count, help_heading = "End")]
    count: Option<NonZeroU64>,

    #[command(flatten)]
    tracing: TracingArguments,
}

impl CallsArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<CallsConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        let tracing = self.tracing.resolve(Stages::Basic);
        if tracing.backend == Backend::Fentry {
            return Err(Failure::Usage(
                "calls are traced by kprobes only; leave out --backend fentry".to_owned(),
            ));
        }
        process::check_pids(&self.pids, proc)?;
        at_most("--comm", self.comms.len(), MAX_GLOBS)?;
        at_most("--cgroup", self.cgroups.len(), MAX_CGROUPS as usize)?;
        let functions = self.functions.iter().map(|text| pattern(text)).collect::<Result<Vec<_>, _>>()?;
        let mut presets = unique(self.presets);
        if functions.is_empty() && presets.is_empty() {
            presets = vec![Preset::Socket];
        }
        Ok(CallsConfig {
            functions,
            presets,
            filter: PacketFilter {
                pids: unique(self.pids),
                comms: unique(self.comms),
                cgroups: unique(places::cgroups(&self.cgroups, proc)?),
                ..PacketFilter::default()
            },
            slower: self.slower,
            style: self.style,
            format: self.format,
            addresses: self.addr,
            self_time: self.self_time,
            output: self.output,
            zone: if self.utc { Zone::UTC } else { Zone::Local },
            quiet,
            footer,
            verbose: self.verbose,
            duration: self.duration,
            count: self.count,
            tracing,
        })
    }
}

fn pattern(text: &str) -> Result<Pattern, Failure> {
    values::parse_pattern(text).map_err(|remedy| {
        Failure::Usage(format!("{text:?} is not a pattern for names of functions; {remedy}"))
    })
}

//! The options of `net-latency diagnose`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use super::{
    choice::{choice, first},
    footer::FooterArguments,
    packets::PacketArguments,
    tracing::TracingArguments,
};
use crate::{
    clock::Zone,
    error::Failure,
    request::{DiagnoseConfig, DiagnoseInput, FooterFormat, ReportFormat, Stages, values},
};

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct DiagnoseArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// A part of an answer that takes at least this long is slow; where there are no answers, a stage of a packet
    #[arg(long, value_parser = values::parse_duration, value_name = "DURATION", default_value = "1ms", help_heading = "Output")]
    threshold: Duration,
    /// Tell every cause, the parts of all answers, and what is normal
    #[arg(long, help_heading = "Output")]
    all: bool,
    /// Output format
    #[arg(long, value_parser = choice::<ReportFormat>(), default_value = first::<ReportFormat>(), help_heading = "Output")]
    format: ReportFormat,
    /// Show times in UTC instead of local time
    #[arg(long, help_heading = "Output")]
    utc: bool,
    #[command(flatten)]
    footer: FooterArguments,

    /// Trace for this long: 10s, 2m; Ctrl-C ends it earlier, with the verdict
    #[arg(long, value_parser = values::parse_duration, default_value = "10s", help_heading = "End")]
    duration: Duration,
    /// Judge recordings, or logs in JSON or CSV format, also compressed with gzip or zstd, instead of this kernel's
    /// packets; - for standard input. Record them with --stages fine
    #[arg(long, value_name = "FILE", num_args = 1.., help_heading = "Replay",
          conflicts_with_all = ["backend", "buffer", "cgroups", "containers", "netns", "sample", "control", "duration"])]
    replay: Vec<PathBuf>,

    #[command(flatten)]
    tracing: TracingArguments,
}

impl DiagnoseArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<DiagnoseConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        let (filter, input) = if self.replay.is_empty() {
            let tracing = self.tracing.resolve(Stages::Fine);
            (self.packets.resolve(proc)?, DiagnoseInput::Kernel { tracing, duration: self.duration })
        } else {
            if footer == FooterFormat::Json {
                return Err(Failure::Usage(
                    "--footer json tells about tracing; net-latency report --format json sums up a log"
                        .to_owned(),
                ));
            }
            (self.packets.resolve_for_log(proc)?, DiagnoseInput::Logs(self.replay))
        };
        if filter.is_only_some() {
            return Err(Failure::Usage(
                "diagnose has to see every packet, to tell how many are slow and what follows what: leave out --slower \
                 and --sample; --threshold sets what is slow"
                    .to_owned(),
            ));
        }
        Ok(DiagnoseConfig {
            filter,
            input,
            threshold: self.threshold,
            is_all: self.all,
            format: self.format,
            zone: if self.utc { Zone::UTC } else { Zone::Local },
            quiet,
            footer,
        })
    }
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use clap::Parser as _;

    use super::*;
    use crate::{
        cli::{Arguments, Config, command},
        request::{Backend, PacketFilter, THRESHOLD, TracingConfig},
    };

    fn parse(arguments: &str) -> Result<DiagnoseConfig, String> {
        let arguments = ["net-latency", "diagnose"].into_iter().chain(arguments.split_whitespace());
        let arguments = Arguments::try_parse_from(arguments).map_err(|error| error.to_string())?;
        match arguments.resolve(Path::new("/proc")) {
            Ok(Config::Diagnose(config)) => Ok(*config),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => Err(failure.to_string()),
        }
    }

    #[test]
    fn it_traces_fine_stages_for_ten_seconds() {
        let tracing = TracingConfig { backend: Backend::Auto, buffer_bytes: 4 << 20, stages: Stages::Fine };
        let usual = DiagnoseConfig {
            filter: PacketFilter::default(),
            input: DiagnoseInput::Kernel { tracing: tracing.clone(), duration: Duration::from_secs(10) },
            threshold: THRESHOLD,
            is_all: false,
            format: ReportFormat::Text,
            zone: Zone::Local,
            quiet: false,
            footer: FooterFormat::Text,
        };
        assert_eq!(parse(""), Ok(usual.clone()));
        let config =
            parse("--port 80 --duration 2m --format json --threshold 5ms --all --utc -q --backend kprobe");
        let expected = DiagnoseConfig {
            filter: PacketFilter { ports: vec![80], ..PacketFilter::default() },
            input: DiagnoseInput::Kernel {
                tracing: TracingConfig { backend: Backend::Kprobe, ..tracing },
                duration: Duration::from_secs(120),
            },
            threshold: Duration::from_millis(5),
            is_all: true,
            format: ReportFormat::Json,
            zone: Zone::UTC,
            quiet: true,
            footer: FooterFormat::None,
        };
        assert_eq!(config, Ok(expected));
        let logs = DiagnoseInput::Logs(["a", "-"].map(PathBuf::from).to_vec());
        assert_eq!(parse("--replay a -"), Ok(DiagnoseConfig { input: logs, ..usual }));
    }

    #[test]
    fn help_fits_a_terminal() {
        let mut command = command().term_width(80);
        command.build();
        let diagnose = command.find_subcommand_mut("diagnose").expect("there");
        let help = diagnose.clone().term_width(80).render_help().to_string();
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        assert_snapshot!(help);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_remedy() {
        let wrong = [
            "--threshold 0s",
            "--duration 10",
            "--format csv",
            "--stages basic",
            "--replay a --duration 1s",
            "--replay a --backend kprobe",
            "--replay a --footer json",
            "--replay",
            "--slower 1ms",
            "--sample 1/10",
        ];
        let said = wrong.map(|arguments| {
            let message = parse(arguments).expect_err("makes no sense");
            message.split("\n\nUsage:").next().unwrap_or_default().to_owned()
        });
        assert_snapshot!(said.join("\n\n"));
    }
}

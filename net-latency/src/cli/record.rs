//! The options of `net-latency record`.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;

use super::{
    choice::{choice, first},
    connections::refuse_filters_of_packets,
    export::parse_listen,
    footer::FooterArguments,
    packets::PacketArguments,
    tracing::TracingArguments,
};
use crate::{
    clock::Zone,
    error::Failure,
    request::{Listen, PacketFilter, RecordConfig, Stages, Trigger, Triggers, values},
};

/// Where programs ask for a file unless told otherwise: only this machine reaches that.
const DEFAULT_LISTEN: &str = "127.0.0.1:9824";

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct RecordArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// Directory for the recordings; it has to exist
    #[arg(short, long, value_name = "DIR", help_heading = "Output")]
    output: PathBuf,
    /// Keep packets for this long: 30s, 5m, 1h
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration, default_value = "5m", help_heading = "Output")]
    last: Duration,
    /// Maximum memory for packets; the oldest are dropped first
    #[arg(long, value_name = "SIZE", value_parser = values::parse_memory, default_value = "64M", help_heading = "Output")]
    memory: usize,
    /// Write a recording when: slower=50ms (a packet took that long, in total or in one stage), drops=10/s (the
    /// kernel dropped N packets within a second), failed=1/s (N TCP connections failed within a second), http (POST /dump on --listen), signal (SIGUSR1: always on);
    /// repeatable
    #[arg(long = "dump-on", value_name = "TRIGGER", value_parser = parse_trigger, default_value = "signal", help_heading = "Output")]
    triggers: Vec<Trigger>,
    /// Write at most one recording per DURATION: 10s, 1m
    #[arg(long, value_name = "DURATION", value_parser = values::parse_duration, default_value = "1m", help_heading = "Output")]
    every: Duration,
    /// Recordings to keep; the oldest is removed
    #[arg(long, value_name = "FILES", value_parser = values::parse_files, default_value_t = 10, help_heading = "Output")]
    keep: u32,
    /// Address and port to listen on for --dump-on http, or unix:PATH, a unix socket for its owner and group
    /// [default: 127.0.0.1:9824]
    #[arg(long, value_name = "WHERE", value_parser = parse_listen, help_heading = "Output")]
    listen: Option<Listen>,
    /// Host name that requests may use for this machine, besides localhost, its own and any address (repeatable)
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    host_name: Vec<String>,
    /// Stage detail
    #[arg(long, value_parser = choice::<Stages>(), default_value = first::<Stages>(), help_heading = "Output")]
    stages: Stages,
    /// Show times of the summary in UTC instead of local time
    #[arg(long, help_heading = "Output")]
    utc: bool,
    #[command(flatten)]
    footer: FooterArguments,

    /// Stop after this time: 250us, 1ms, 10s, 2m, 1h
    #[arg(long, value_parser = values::parse_duration, help_heading = "End")]
    duration: Option<Duration>,

    #[command(flatten)]
    tracing: TracingArguments,
}

impl RecordArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<RecordConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        let mut triggers = Triggers::default();
        for trigger in self.triggers {
            match trigger {
                Trigger::Slower(least) => triggers.slower = Some(least),
                Trigger::Drops(least) => triggers.drops = Some(least),
                Trigger::Failed(least) => triggers.failed = Some(least),
                Trigger::Http => triggers.http = true,
                Trigger::Signal => {}
            }
        }
        if !triggers.http && (self.listen.is_some() || !self.host_name.is_empty()) {
            return Err(Failure::Usage(
                "--listen and --host-name do nothing by themselves; add --dump-on http".to_owned(),
            ));
        }
        let default = || parse_listen(DEFAULT_LISTEN).map_err(Failure::Usage);
        let listen = triggers.http.then(|| self.listen.map_or_else(default, Ok)).transpose()?;
        let config = RecordConfig {
            filter: self.packets.resolve(proc)?,
            tracing: self.tracing.resolve(self.stages),
            last: self.last,
            memory: self.memory,
            triggers,
            directory: self.output,
            every: self.every,
            keep: self.keep,
            listen,
            host_names: self.host_name,
            zone: if self.utc { Zone::UTC } else { Zone::Local },
            quiet,
            footer,
            duration: self.duration,
        };
        if config.triggers.failed.is_some() {
            // They count however few of their packets are kept.
            let filter = PacketFilter { sample: None, control: false, ..config.filter.clone() };
            refuse_filters_of_packets(&filter, "record --dump-on failed")?;
        }
        Ok(config)
    }
}

fn parse_trigger(text: &str) -> Result<Trigger, String> {
    let rate = |text: &str| text.strip_suffix("/s")?.parse().ok().filter(|count| *count > 0);
    match text.split_once('=') {
        Some(("slower", least)) => values::parse_duration(least).map(Trigger::Slower),
        Some(("drops", least)) => rate(least)
            .map(Trigger::Drops)
            .ok_or_else(|| "write a number of packets a second: drops=10/s".to_owned()),
        Some(("failed", least)) => rate(least)
            .map(Trigger::Failed)
            .ok_or_else(|| "write a number of connections a second: failed=1/s".to_owned()),
        None if text == "signal" => Ok(Trigger::Signal),
        None if text == "http" => Ok(Trigger::Http),
        _ => Err("write slower=50ms, drops=10/s, failed=1/s, signal or http".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use insta::assert_snapshot;

    use super::*;
    use crate::{
        cli::{Arguments, Config, command},
        request::{Backend, FooterFormat, PacketFilter, TracingConfig},
    };

    fn parse(arguments: &str) -> Result<RecordConfig, String> {
        let arguments = ["net-latency", "record"].into_iter().chain(arguments.split_whitespace());
        let arguments = Arguments::try_parse_from(arguments).map_err(|error| error.to_string())?;
        match arguments.resolve(Path::new("/proc")).map_err(|failure| failure.to_string())? {
            Config::Record(config) => Ok(*config),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_option_arrives() {
        let config = parse(
            "--port 80 -o /var/log --last 30s --memory 16M --dump-on slower=50ms --dump-on drops=10/s --dump-on failed=3/s --dump-on http \
             --every 10s --keep 3 --listen unix:/run/x.sock --host-name a --stages fine --utc -q --duration 1m",
        );
        let expected = RecordConfig {
            filter: PacketFilter { ports: vec![80], ..PacketFilter::default() },
            tracing: TracingConfig { backend: Backend::Auto, buffer_bytes: 4 << 20, stages: Stages::Fine },
            last: Duration::from_secs(30),
            memory: 16 << 20,
            triggers: Triggers {
                slower: Some(Duration::from_millis(50)),
                drops: Some(10),
                failed: Some(3),
                http: true,
            },
            directory: "/var/log".into(),
            every: Duration::from_secs(10),
            keep: 3,
            listen: Some(Listen::Unix("/run/x.sock".into())),
            host_names: vec!["a".to_owned()],
            zone: Zone::UTC,
            quiet: true,
            footer: FooterFormat::None,
            duration: Some(Duration::from_secs(60)),
        };
        assert_eq!(config, Ok(expected));
        let config = parse("-o d").expect("enough");
        assert_eq!((config.listen, config.triggers), (None, Triggers::default()));
        let config = parse("-o d --dump-on http").expect("enough");
        assert_eq!(config.listen.map(|listen| listen.to_string()).as_deref(), Some(DEFAULT_LISTEN));
    }

    #[test]
    fn help_fits_a_terminal() {
        let mut command = command().term_width(80);
        command.build();
        let record = command.find_subcommand_mut("record").expect("there");
        let help = record.clone().term_width(80).render_help().to_string();
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
        assert_snapshot!(help);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_remedy() {
        let wrong = [
            "",
            "-o d --memory 1M",
            "-o d --dump-on slower",
            "-o d --dump-on drops=0/s",
            "-o d --dump-on drops=10",
            "-o d --dump-on failed=10",
            "-o d --dump-on failed=1/s --direction in",
            "-o d --listen 127.0.0.1:1",
            "-o d --keep 0",
            "-o d --last 0s",
        ];
        let said = wrong.map(|arguments| {
            let message = parse(arguments).expect_err("makes no sense");
            message.split("\n\nUsage:").next().unwrap_or_default().to_owned()
        });
        assert_snapshot!(said.join("\n\n"));
    }
}

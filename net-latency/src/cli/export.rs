//! The options of `net-latency export`.

use std::{path::Path, time::Duration};

use clap::{Args, Command};

use super::{
    choice::{choice, first},
    connections::refuse_filters_of_packets,
    footer::FooterArguments,
    packets::PacketArguments,
};
use crate::{
    error::Failure,
    request::{Backend, ExportBy, ExportConfig, Listen, SlowLines, Stages, values},
};

/// Where scrapers find it unless told otherwise: only this machine reaches that.
const DEFAULT_LISTEN: &str = "127.0.0.1:9823";
/// Groups with series of their own unless told otherwise.
const DEFAULT_SERIES: u16 = 64;

/// Bytes of a unix socket's path (`sun_path` in include/uapi/linux/un.h, and its end).
const LONGEST_SOCKET: usize = 107;
/// Lines of slow packets in a second unless told otherwise.
const DEFAULT_RATE: u16 = 100;

/// The options, as clap reads them.
#[derive(Debug, Args)]
pub(super) struct ExportArguments {
    #[command(flatten)]
    packets: PacketArguments,

    /// Address and port to listen on, 0.0.0.0:9823 or [::]:9823 for all addresses of this machine; or unix:PATH, a unix socket for its owner and group
    #[arg(long, value_name = "WHERE", default_value = DEFAULT_LISTEN, value_parser = parse_listen, help_heading = "Output")]
    listen: Listen,
    /// Host name that scrapers may use for this machine, besides localhost, its own and any address (repeatable)
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    host_name: Vec<String>,
    /// Label series by this, besides direction, protocol and stage
    #[arg(long, value_parser = choice::<ExportBy>(), default_value = first::<ExportBy>(), help_heading = "Output")]
    by: ExportBy,
    /// Stage detail; fine not with --slower
    #[arg(long, value_parser = choice::<Stages>(), default_value = first::<Stages>(), help_heading = "Output")]
    stages: Stages,
    /// Number of groups that get series of their own, those with the most packets; the rest share one more, "other"
    #[arg(long, value_name = "N", value_parser = values::parse_rows, default_value_t = DEFAULT_SERIES, help_heading = "Output")]
    series: u16,
    /// Maximum lines per second that --slower writes, and as many at once; the rest are only counted
    #[arg(long, value_name = "LINES", value_parser = values::parse_rate, default_value_t = DEFAULT_RATE, requires = "slower", help_heading = "Output")]
    slower_rate: u16,
    /// Metrics of TCP connections and listening sockets too: how connections ended, handshakes, accept queues
    #[arg(long, help_heading = "Output")]
    connections: bool,
    #[command(flatten)]
    footer: FooterArguments,

    /// Stop after this time: 250us, 1ms, 10s, 2m, 1h
    #[arg(long, value_parser = values::parse_duration, help_heading = "End")]
    duration: Option<Duration>,

    /// How to hook into the kernel
    #[arg(long, value_parser = choice::<Backend>(), default_value = first::<Backend>(), help_heading = "Tracing")]
    backend: Backend,
    /// Room for this many buckets in the kernel's memory: about 100 bytes each, and 8 per CPU
    #[arg(long, value_name = "COUNT", value_parser = values::parse_buckets, default_value = "32K", help_heading = "Tracing")]
    buckets: u32,
}

/// Here `--slower` is no filter: all packets are counted.
pub(super) fn with_own_words(command: Command) -> Command {
    command.mut_arg("slower", |slower| {
        slower.help_heading("Output").help(
            "Count all packets, and write those that took at least this long, in total or in one stage, as JSON \
             lines to standard output: 10ms",
        )
    })
}

impl ExportArguments {
    /// Checks the options against this machine, whose processes `proc` shows.
    pub(super) fn resolve(self, proc: &Path) -> Result<ExportConfig, Failure> {
        let (quiet, footer) = self.footer.resolve();
        let mut filter = self.packets.resolve(proc)?;
        let slower = filter.slower.take();
        if slower.is_some() && self.stages == Stages::Fine {
            return Err(Failure::Usage(
                "export has no lines with fine stages: leave out --slower or --stages fine; \
                 `net-latency --stages fine --slower 10ms` has both"
                    .to_owned(),
            ));
        }
        if self.connections {
            refuse_filters_of_packets(&filter, "export --connections")?;
        }
        Ok(ExportConfig {
            connections: self.connections,
            filter,
            backend: self.backend,
            by: self.by,
            buckets: self.buckets,
            stages: self.stages,
            series: self.series.into(),
            slow: slower.map(|least| SlowLines { least, per_second: self.slower_rate }),
            listen: self.listen,
            host_names: self.host_name,
            duration: self.duration,
            quiet,
            footer,
        })
    }
}

pub(super) fn parse_listen(text: &str) -> Result<Listen, String> {
    match text.strip_prefix("unix:") {
        Some("") => Err("write the path of a socket behind it: unix:/run/net-latency/metrics.sock".to_owned()),
        Some(path) if path.len() > LONGEST_SOCKET => {
            Err(format!("the path of a unix socket has {LONGEST_SOCKET} bytes at most, this one has {}", path.len()))
        }
        Some(path) => Ok(Listen::Unix(path.into())),
        None => text.parse().map(Listen::Port).map_err(|_| {
            "write an address of this machine and a port, 127.0.0.1:9823, 0.0.0.0:9823 or [::]:9823, or a unix socket, \
             unix:/run/net-latency/metrics.sock"
                .to_owned()
        }),
    }
}

//! How cost, memory and losses grow: with connections, with packets that wait to be read, with entries of filters.

use std::{fs, time::Duration};

use anyhow::Result;

use super::{
    Cost, figure,
    load::{Ends, Load},
    measured,
    mode::{Mode, Running, hist},
};
use crate::{
    net::{Path, Version},
    peers::{CLIENT, Pair, Peer, SERVER},
    tool::{Backend, Launch},
};

/// Bytes of a message.
const LEN: u32 = 200;
/// Round trips that count at least.
const ROUND_TRIPS: u32 = 2000;
/// What opening a hundred thousand connections may take.
const PATIENCE: Duration = Duration::from_secs(900);

/// Each on connections that stay open, in turn.
const CONNECTIONS: [u32; 5] = [10, 100, 1000, 10_000, 100_000];
/// What connections to one address can be at most, with some ports left.
const PER_ADDRESS: u32 = 20_000;

/// Packets that wait at the same time; the kernel side has room for 32,768 of TCP and 16,384 of UDP.
const WAITING: [u32; 6] = [1, 128, 1024, 8192, 32_768, 65_536];
/// Segments that a connection sends at once, so that it needs no acknowledgement before the last.
const SEGMENTS: u32 = 8;

/// Entries of an option.
const ENTRIES: [u32; 3] = [1, 8, 64];
const WARM_UP: u32 = 500;

pub(super) fn measure() -> Result<()> {
    filters()?;
    datagrams()?;
    // Last, since closing that many takes its time.
    let mut flows = Flows::prepare()?;
    for count in CONNECTIONS {
        flows.grow(count)?;
        flows.take_turns_under_each(count)?;
    }
    for count in WAITING {
        flows.wait_unread(count)?;
    }
    Ok(())
}

/// Something that traces, or nothing.
fn start(launch: Option<Launch>) -> Result<Running> {
    match launch {
        Some(launch) => Running::launch(launch, None),
        None => Running::start(Mode::Nothing),
    }
}

fn stream() -> Launch {
    Launch::new(Backend::Fentry)
}

/// Prints a figure, and one of the run that it comes from.
fn tell(part: &str, mode: &str, load: &str, messages: u32, cost: &Cost, tracing: Running) -> Result<()> {
    tell_cost(part, mode, load, messages, cost);
    if let Some(mut run) = tracing.stop()? {
        for (key, value) in [("part", part), ("mode", mode), ("load", load)] {
            run[key] = value.into();
        }
        println!("{run}");
    }
    Ok(())
}

fn tell_cost(part: &str, mode: &str, load: &str, messages: u32, cost: &Cost) {
    let mut figure = figure(mode, load, messages, cost);
    figure["part"] = part.into();
    println!("{figure}");
}

/// Connections over loopback.
struct Flows {
    pair: Pair,
    open: u32,
}

impl Flows {
    fn prepare() -> Result<Self> {
        // All ports but the well-known ones, and no listener's queue that is too short.
        fs::write("/proc/sys/net/ipv4/ip_local_port_range", "1024 65535")?;
        let path = Path::loopback(Version::V4)?;
        let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
        pair.set_patience(PATIENCE);
        pair.far.set_port(pair.server.ask("listen 0.0.0.0")?.try_into()?);
        let most = CONNECTIONS.into_iter().max().unwrap_or(0);
        for peer in [&mut pair.client, &mut pair.server] {
            peer.ask(&format!("many room {most}"))?;
        }
        Ok(Self { pair, open: 0 })
    }

    /// Opens connections until there are `count`.
    fn grow(&mut self, count: u32) -> Result<()> {
        let Pair { client, server, far, .. } = &mut self.pair;
        while self.open < count {
            let address = format!("127.0.0.{}", 1 + self.open / PER_ADDRESS);
            let more = (count - self.open).min(PER_ADDRESS - self.open % PER_ADDRESS);
            server.tell(&format!("many accept {more}"))?;
            client.ask(&format!("many connect {address} {} {more}", far.port()))?;
            server.answer()?;
            self.open += more;
        }
        Ok(())
    }

    fn take_turns(&mut self, rounds: u32) -> Result<()> {
        let Pair { client, server, .. } = &mut self.pair;
        server.tell(&format!("many serve {rounds} {LEN}"))?;
        client.ask(&format!("many take-turns {rounds} {LEN}"))?;
        server.answer()?;
        Ok(())
    }

    /// A round trip on each in turn, under what traces and under nothing.
    fn take_turns_under_each(&mut self, count: u32) -> Result<()> {
        let rounds = ROUND_TRIPS.div_ceil(count);
        let load = format!("{count} connections");
        for (mode, launch) in
            [("nothing", None), ("stream, fentry", Some(stream())), ("hist, fentry", Some(hist()))]
        {
            let tracing = start(launch)?;
            self.take_turns(1)?;
            let cost = measured(&tracing, || self.take_turns(rounds))?;
            tell(
                "a round trip on each of many connections in turn",
                mode,
                &load,
                count * rounds,
                &cost,
                tracing,
            )?;
        }
        Ok(())
    }

    /// Segments that are all sent before the first is read.
    fn wait_unread(&mut self, count: u32) -> Result<()> {
        let (connections, each) = (count.div_ceil(SEGMENTS), count.min(SEGMENTS));
        let load = format!("{count} segments on {connections} connections");
        for (mode, launch) in [("nothing", None), ("stream, fentry", Some(stream()))] {
            let tracing = start(launch)?;
            let Pair { client, server, .. } = &mut self.pair;
            let mut play = |bursts| -> Result<()> {
                for _ in 0..bursts {
                    client.ask(&format!("many write {connections} {each} {LEN}"))?;
                    server.ask(&format!("many read {connections} {}", each * LEN))?;
                }
                Ok(())
            };
            play(1)?;
            let cost = measured(&tracing, || play(bursts(count)))?;
            tell(WAITING_PART, mode, &load, bursts(count) * count, &cost, tracing)?;
        }
        Ok(())
    }
}

const WAITING_PART: &str = "packets sent before the first of them is read";

/// How often that many are sent and read, so that what the tool does anyway is spread over enough packets.
fn bursts(count: u32) -> u32 {
    ROUND_TRIPS.div_ceil(count)
}

/// Datagrams that are all sent before the first is read.
fn datagrams() -> Result<()> {
    for count in WAITING {
        let load = format!("{count} datagrams on one socket");
        for (mode, launch) in [("nothing", None), ("stream, fentry", Some(stream()))] {
            let tracing = start(launch)?;
            let (mut client, mut server) = (Peer::spawn(CLIENT)?, Peer::spawn(SERVER)?);
            client.ask("udp bind 127.0.0.1")?;
            let port = server.ask("udp bind 127.0.0.1")?;
            server.ask(&format!("udp receive-room {}", 1 << 29))?;
            let mut play = |bursts| -> Result<()> {
                for _ in 0..bursts {
                    client.ask(&format!("udp send-to 127.0.0.1:{port} {count} {LEN}"))?;
                    server.ask(&format!("udp receive {count}"))?;
                }
                Ok(())
            };
            play(1)?;
            let cost = measured(&tracing, || play(bursts(count)))?;
            tell(WAITING_PART, mode, &load, bursts(count) * count, &cost, tracing)?;
        }
    }
    Ok(())
}

/// Lists of different lengths, with none and with the last of them fitting.
fn filters() -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut ends = Ends::prepare(Load::RoundTrip, &path)?;
    let most = ENTRIES.into_iter().max().unwrap_or(0);
    let others: Vec<_> = (0..most).map(|_| Peer::spawn(b"nl-idle")).collect::<Result<_>>()?;
    let (pids, port) = (ends.pids(), ends.port());

    let mut play = |messages| ends.play(messages);
    let bare = start(None)?;
    play(WARM_UP)?;
    let bare = measured(&bare, || play(ROUND_TRIPS))?;
    for entries in ENTRIES {
        let count = usize::try_from(entries)?;
        let lists: [(&str, Vec<String>, Vec<String>); 3] = [
            ("--port", (1..=entries).map(|port| port.to_string()).collect(), vec![port.to_string()]),
            ("--host", (1..=entries).map(|n| format!("10.9.8.{n}")).collect(), vec!["127.0.0.1".into()]),
            (
                "--pid",
                others.iter().take(count).map(|peer| peer.pid().to_string()).collect(),
                pids.iter().map(ToString::to_string).collect(),
            ),
        ];
        for (option, others, ours) in lists {
            for fits in [false, true] {
                let mut list = others.clone();
                if fits {
                    // A list of one becomes both processes.
                    list.truncate(list.len().saturating_sub(ours.len()));
                    list.extend(ours.iter().cloned());
                }
                let arguments: Vec<_> =
                    list.into_iter().flat_map(|value| [option.to_owned(), value]).collect();
                let tracing = start(Some(stream().args(&arguments)))?;
                play(WARM_UP)?;
                let cost = measured(&tracing, || play(ROUND_TRIPS))?;
                let load =
                    format!("{entries} × {option}, {}", if fits { "the last fits" } else { "none fits" });
                let part = "a TCP round trip, filtered";
                tell_cost(part, "nothing", &load, ROUND_TRIPS, &bare);
                tell(part, "stream, fentry", &load, ROUND_TRIPS, &cost, tracing)?;
            }
        }
    }
    Ok(())
}

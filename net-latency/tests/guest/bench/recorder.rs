//! The recorder: what it takes for a packet, beside the stream and `hist`; and at a rate at which its memory is full after minutes, how
//! long that lasts, how long a file of all of it takes, and whether a packet is lost.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;

use super::{
    figure, measured,
    mode::{Running, hist},
};
use crate::tool::{Backend, Launch, Scratch, Sink};

const CONNECTIONS: usize = 50;
const BYTES: usize = 200;
/// The longest of a load that is irregular.
const MOST_BYTES: usize = 1_400;
/// Of a round trip by the loopback device: out and in at each end.
const PACKETS: u64 = 4;
/// Round trips that count: some twenty blocks.
const TRIPS: u32 = 20_000;
/// The cheapest counts.
const TRIES: usize = 3;
/// Packets a second, and for how long.
const RATE: u64 = 20_000;
const SPAN: Duration = Duration::from_mins(10);
/// Memory for packets, and what the tool says that it takes besides, MiB.
const MEMORY: u64 = 64;
const BESIDES: u64 = 28;
/// Seconds that have to be held, and ms that a file of them may take.
const HELD: u64 = 130;
const WRITTEN_MS: u64 = 2_000;

/// Prints the findings, one JSON object a line.
pub(super) fn measure() -> Result<()> {
    let directory = TempDir::new()?;
    let mut ends = Ends::connect()?;
    let stream = Launch::new(Backend::Fentry).sink(nothing()).args(&["-o", "/dev/null"]);
    for (name, launch) in [("stream -o /dev/null", stream), ("hist", hist()), ("record", record(&directory))]
    {
        let tracing = Running::launch(launch, None)?;
        let tries = (0..TRIES).map(|_| measured(&tracing, || (0..TRIPS).try_for_each(|_| ends.trip(BYTES))));
        let cost = tries.collect::<Result<Vec<_>>>()?.into_iter().min().context("there are tries")?;
        println!("{}", figure(name, "round trip of one of 50", TRIPS, &cost));
        tracing.stop()?;
    }
    fill(&directory, &mut ends)
}

fn nothing() -> Sink {
    Sink::Redirected(Scratch::new("nothing"))
}

fn record(directory: &TempDir) -> Launch {
    let directory = directory.path().display().to_string();
    Launch::new(Backend::Fentry).view("record").sink(nothing()).args(&["-o", &directory])
}

/// Keeps that rate with messages of all lengths, and has a file written of all that is held then, while it goes on.
fn fill(directory: &TempDir, ends: &mut Ends) -> Result<()> {
    let memory = format!("{MEMORY}M");
    let tool = record(directory).args(&["--last", "10m", "--memory", &memory]).start()?;
    let trips = SPAN.as_secs() * RATE / PACKETS;
    let begun = Instant::now();
    let mut drawn = 1_u64;
    for trip in 0..trips {
        // Knuth's generator for MMIX.
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ends.trip((drawn >> 33) as usize % MOST_BYTES + 1)?;
        if trip == trips / 10 * 9 {
            tool.signal(Signal::SIGUSR1)?;
        }
        let due = Duration::from_nanos(1_000_000_000 * PACKETS / RATE * trip);
        if let Some(early) = due.checked_sub(begun.elapsed()) {
            sleep(early);
        }
    }
    let elapsed = begun.elapsed();
    ensure!(elapsed < SPAN.mul_f64(1.01), "the rate was not kept: it took {elapsed:?}");
    let status = fs::read_to_string(format!("/proc/{}/status", tool.pid()))?;
    let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let most = most.context("no VmHWM")?.parse::<u64>()? >> 10;
    let outcome = tool.stop()?;
    let said = outcome.stderr.iter().find(|line| line.contains(".nlr: ")).context("no file was written")?;
    let number = |before: &str| {
        let (rest, _) = said.split_once(before)?;
        rest.rsplit(' ').next()?.parse::<u64>().ok()
    };
    let numbers = [" packets", " KiB", " ms"].map(number);
    let [Some(packets), Some(kib), Some(ms)] = numbers else { anyhow::bail!("{said}") };
    let (held, lost) = (packets / RATE, outcome.lost()?);
    println!(
        "{}",
        json!({"part": "full memory", "packets_a_second": RATE, "file_packets": packets, "file_kib": kib, "bytes_a_packet": kib as f64 * 1024.0 / packets as f64, "seconds_held": held, "written_in_ms": ms, "resident_most_mib": most, "lost": lost})
    );
    ensure!(held >= HELD && ms <= WRITTEN_MS && lost == 0 && most <= MEMORY + BESIDES, "{said}");
    Ok(())
}

/// Connections that are used one after the other.
struct Ends {
    pairs: Vec<[TcpStream; 2]>,
    next: usize,
}

impl Ends {
    fn connect() -> Result<Self> {
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let connect = |_| {
            let client = TcpStream::connect(listening.local_addr()?)?;
            let (server, _) = listening.accept()?;
            Ok([client, server])
        };
        Ok(Self { pairs: (0..CONNECTIONS).map(connect).collect::<Result<_>>()?, next: 0 })
    }

    /// `len` bytes there and back by the next of them.
    fn trip(&mut self, len: usize) -> Result<()> {
        let [client, server] = &mut self.pairs[self.next];
        self.next = (self.next + 1) % CONNECTIONS;
        let mut bytes = [7; MOST_BYTES];
        let bytes = &mut bytes[..len];
        client.write_all(bytes)?;
        server.read_exact(bytes)?;
        server.write_all(bytes)?;
        client.read_exact(bytes)?;
        Ok(())
    }
}

//! What one scrape of the metrics takes, and how long it is.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{
    Cost, figure,
    mode::{Running, export},
};
use crate::{
    cases::export::{address, get_encoded},
    net::{Path, Version},
    peers::Pair,
};

const PART: &str = "a scrape of the metrics";
/// Of each size that many, of which the mean counts.
const SCRAPES: u32 = 5;
/// Pairs of processes, and what they say to each other: enough for each histogram to have a dozen buckets in use.
const PAIRS: [u32; 3] = [1, 10, 32];
const ROUNDS: u32 = 50;
const LEN: u32 = 200;

/// Forms, as a scraper asks for them: name, `Accept`, `Accept-Encoding`.
const FORMS: [(&str, &str, &str); 3] = [
    ("text", "text/plain;version=0.0.4", "identity"),
    ("text by gzip", "text/plain;version=0.0.4", "gzip"),
    ("protobuf by gzip", "application/vnd.google.protobuf", "gzip"),
];

/// Scrapes of as many groups as there are processes: TCP in both directions.
pub(super) fn measure() -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    for count in PAIRS {
        let running = Running::launch(export("process"), None)?;
        let address = address(running.tool().context("it is the tool")?)?;
        for place in 0..count {
            let [client, server] = ["client", "server"].map(|end| format!("nl-{end}-{place}"));
            let mut pair = Pair::prepare(&path, client.as_bytes(), server.as_bytes())?;
            pair.open(&path)?;
            pair.converse(ROUNDS, LEN)?;
        }
        let load = format!("{} groups", 2 * count);
        for (name, accept, encoding) in FORMS {
            let (cost, bytes) = scrapes(&running, || get_encoded(address, "/metrics", accept, encoding))?;
            let mut figure = figure(name, &load, SCRAPES, &cost);
            figure["part"] = PART.into();
            figure["bytes"] = bytes.into();
            println!("{figure}");
        }
        running.stop()?;
    }
    Ok(())
}

/// What some scrapes take, the scraper's part included, and bytes of one.
fn scrapes(running: &Running, scrape: impl Fn() -> Result<(String, Vec<u8>)>) -> Result<(Cost, usize)> {
    let (mut elapsed, mut bytes) = (Duration::ZERO, 0);
    let before = running.busy()?;
    for _ in 0..SCRAPES {
        // Figures that are younger than 0.1 s may be given again.
        running.settle()?;
        let start = Instant::now();
        let (head, body) = scrape()?;
        elapsed += start.elapsed();
        ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
        bytes = body.len();
    }
    let own = running.busy()? - before;
    let ns = |time: Duration| u64::try_from(time.as_nanos());
    Ok((Cost { ns: ns(elapsed)?, own_ns: ns(own)?, lines: 0 }, bytes))
}

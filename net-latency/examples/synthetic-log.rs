//! Writes a log of traffic that never was, to measure `net-latency report` with:
//! `cargo run --release --example synthetic-log -- 5000000 json > log`.

use std::env;
use std::io::{self, BufWriter, Write as _};

use clap::ValueEnum as _;
use net_latency::output::Format;

#[path = "../tests/logs/mod.rs"]
mod logs;

const SPAN_NS: u64 = 600_000_000_000;

fn main() -> io::Result<()> {
    let mut arguments = env::args().skip(1);
    let packets = arguments.next().and_then(|packets| packets.parse().ok()).unwrap_or(1_000_000);
    let format = arguments.next().and_then(|format| Format::from_str(&format, false).ok());
    let mut out = BufWriter::new(io::stdout().lock());
    logs::write(packets, SPAN_NS, format.unwrap_or(Format::Json), &mut out)?;
    out.flush()
}

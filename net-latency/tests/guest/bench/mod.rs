//! What tracing adds to a message's way, and what one gets for it: one JSON object a line for each figure.
//!
//! Meant for a guest whose clock counts instructions (`cargo xtask bench`): there a figure repeats within a few per
//! mille on any machine, and all that the one processor does counts, the tool's own user side too.

mod bpftrace;
mod connections;
mod floor;
mod hooks;
mod load;
mod mode;
mod recorder;
mod scale;
mod scrapes;

use std::{
    io::Write as _,
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use self::{
    load::{Ends, Load},
    mode::{Mode, Running},
};
use crate::net::{Path, Version};

/// First argument of a bench.
pub(crate) const ROLE: &str = "bench";

/// Messages before those that count: caches, windows and buffers find their sizes.
const WARM_UP: u32 = 500;
/// Each time with new sockets and more unread messages, of which the cheapest counts: whose addresses and ports share the
/// fewest places of hash tables, whose skbs lie in one slab, and where the fewest interrupts came.
const TRIES: usize = 6;
/// What the tool needs to write what it has read: it reads every 40 ms, and holds the newest back once.
const SETTLED: Duration = Duration::from_millis(300);

/// The loads that are watched over.
const SHORT: [Load; 2] = [Load::RoundTrip, Load::Datagrams];

/// Measures: with `short` the loads and modes that are watched over, with `mode NAME` the modes whose name has that in
/// it, with `hooks NAME` those hook by hook, with `scale` how cost grows with what there is to trace, with `connections` and
/// `recorder` those of their views, else all.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let measured = match arguments[..] {
        ["short"] => measure(&SHORT, &Mode::WATCHED),
        ["mode", name] => {
            let is_chosen = |mode: &Mode| matches!(mode, Mode::Nothing) || mode.name().contains(name);
            measure(&Load::ALL, &Mode::ALL.into_iter().filter(is_chosen).collect::<Vec<_>>())
        }
        ["hooks", name] => measure_hooks(name),
        ["scale"] => scale::measure(),
        ["connections"] => connections::measure(),
        ["recorder"] => recorder::measure(),
        _ => measure(&Load::ALL, &Mode::ALL),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure_hooks(name: &str) -> Result<()> {
    let places = [("loopback", Path::loopback(Version::V4)?), ("veth", Path::veth(Version::V4)?)];
    for mode in Mode::ALL.into_iter().filter(|mode| mode.has_programs() && mode.name().contains(name)) {
        hooks::measure(mode, &Load::ALL, &places).with_context(|| mode.name())?;
    }
    Ok(())
}

fn measure(loads: &[Load], modes: &[Mode]) -> Result<()> {
    let mut places = vec![("loopback", Path::loopback(Version::V4)?)];
    if loads.len() > SHORT.len() {
        places.push(("veth", Path::veth(Version::V4)?));
    }
    for mode in modes {
        match measure_mode(*mode, loads, &places) {
            // Others' programs may fail on a kernel that they don't know; ours may not.
            Err(error) if matches!(mode, Mode::Bpftrace) => {
                println!("{}", json!({"mode": mode.name(), "left_out": format!("{error:#}")}));
            }
            outcome => outcome.with_context(|| mode.name())?,
        }
        if matches!(mode, Mode::Export) {
            scrapes::measure()?;
        }
    }
    Ok(())
}

fn measure_mode(mode: Mode, loads: &[Load], places: &[(&str, Path)]) -> Result<()> {
    let tracing = Running::start(mode)?;
    for (place, path) in places {
        for load in loads.iter().filter(|load| mode.sees(**load)) {
            let (mut tries, mut unread) = (Vec::new(), Vec::new());
            for _ in 0..TRIES {
                unread.push(Unread::send()?);
                let mut ends = Ends::prepare(*load, path)?;
                ends.play(WARM_UP)?;
                tries.push(measured(&tracing, || ends.play(load.messages()))?);
            }
            let cost = tries.into_iter().min().context("there are tries")?;
            let load_name = format!("{}, {place}", load.name());
            println!("{}", figure(mode.name(), &load_name, load.messages(), &cost));
        }
    }
    if let Some(mut run) = tracing.stop()? {
        run["mode"] = mode.name().into();
        println!("{run}");
    }
    Ok(())
}

/// A message that is never read, and its connection. Where the last free skb of a slab is what a round trip takes last, the allocator
/// changes slabs with each of them, until there are more or fewer skbs: 600 instructions.
struct Unread {
    _ends: [TcpStream; 2],
}

impl Unread {
    fn send() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut sender = TcpStream::connect(listener.local_addr()?)?;
        let (receiver, _) = listener.accept()?;
        sender.write_all(&[0; 200])?;
        Ok(Self { _ends: [sender, receiver] })
    }
}

/// What some messages cost.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    ns: u64,
    /// The part of that which the tracing process took itself.
    own_ns: u64,
    lines: u64,
}

/// The figure of one message.
fn figure(mode: &str, load: &str, messages: u32, cost: &Cost) -> Value {
    let messages = u64::from(messages);
    json!({
        "mode": mode,
        "load": load,
        "ns": cost.ns / messages,
        "own_ns": cost.own_ns / messages,
        "lines": cost.lines as f64 / messages as f64,
    })
}

/// What it costs to send the messages that `play` sends.
fn measured(tracing: &Running, play: impl FnOnce() -> Result<()>) -> Result<Cost> {
    tracing.settle()?;
    let (lines, before) = (tracing.lines()?, tracing.busy()?);
    let start = Instant::now();
    play()?;
    let elapsed = start.elapsed();
    // What the tool still does for these messages counts as well.
    let busy = tracing.busy()?;
    tracing.settle()?;
    let after = tracing.busy()?;
    Ok(Cost {
        ns: u64::try_from((elapsed + (after - busy)).as_nanos())?,
        own_ns: u64::try_from((after - before).as_nanos())?,
        lines: tracing.lines()? - lines,
    })
}

//! Journeys as the kernel's `function_graph` tracer sees them: of all functions that the tool has attached to, it has the
//! calls that a packet made, and nothing else is a row.

use std::{fs, thread::sleep, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{
    Case,
    journey::{expect_read, journey, judged, rows, start},
};
use crate::{
    ftrace::{self, Call, Entry, Tracing, is_interleaved},
    net::{Path, Version},
    peers::{CLIENT, Pair, Peer, SERVER},
    tool::{Backend, Outcome},
};

pub(crate) const CASES: &[Case] = &[
    ("journey_of_a_segment_is_what_function_graph_sees", segment),
    ("journey_of_a_datagram_is_what_function_graph_sees", datagram),
];

const LEN: u32 = 200;
/// What frees the skbs of packets that were read before, meanwhile (`skb_defer_free_flush`, Linux 5.19).
const OF_OTHERS: [&str; 2] = ["napi_consume_skb", "skb_release_head_state"];
/// While an acknowledgement may be on its way too, which a busy machine brings about, a try is none.
const TRIES: u32 = 8;

/// What one packet's journey was.
struct Testimony {
    outcome: Outcome,
    entries: Vec<Entry>,
    /// The functions that the tool has attached to.
    functions: Vec<&'static str>,
}

impl Testimony {
    /// Follows the only packet between two ends that `send` sends, with both tracers.
    fn of(backend: Backend, port: &str, send: impl FnOnce() -> Result<()>) -> Result<Self> {
        let before = ftrace::attached_functions()?;
        let tool = start(backend, &["--port", port, "--direction", "out"])?;
        let mut functions = ftrace::attached_functions()?;
        // These are given no skb and make no row.
        functions.retain(|function| !before.contains(function) && !function.starts_with("__napi_schedule"));
        let tracing = if backend == Backend::Kprobe || ftrace::graph_follows_trampolines()? {
            Tracing::of_graph(&functions)?
        } else {
            println!(
                "by the tracer function: this kernel's function_graph leaves out functions with a BPF trampoline"
            );
            let mut tracing = Tracing::of_events(&[])?;
            let groups: Vec<_> = functions.iter().map(std::slice::from_ref).collect();
            tracing.set_functions(&groups)?;
            tracing
        };
        send()?;
        let entries = tracing.stop()?;
        Ok(Self { outcome: tool.wait()?, entries, functions })
    }

    /// Compares the calls of `first` and what followed until `last` with the journey's rows of functions. `None` if there
    /// was another packet.
    fn judge(&self, reader: u32, first: &str, sends: &str) -> Result<Option<()>> {
        let journey = journey(&self.outcome)?;
        let verdict = expect_read(&journey, reader).and_then(|()| self.compare(&journey, first, sends));
        match verdict {
            Ok(verdict) => Ok(verdict),
            Err(error) => judged(&self.outcome, &journey, Err(error)).map(|()| None),
        }
    }

    fn compare(&self, journey: &Value, first: &str, sends: &str) -> Result<Option<()>> {
        let rows = rows(journey)?;
        let total = journey["total_ns"].as_i64().context("no total")?;
        let calls = ftrace::calls(&self.entries);
        let begin = calls.iter().position(|call| call.name == first);
        let begin = begin.with_context(|| format!("ftrace has no {first} in {calls:?}"))?;
        let start = calls[begin].entered;
        let since = |call: &Call| i64::try_from(call.entered - start);
        // Timers send multicast by IPv6 meanwhile (router solicitations, MLD), on any CPU; this packet is of IPv4.
        let of_ipv6: Vec<_> = calls.iter().filter(|call| call.name.starts_with("ip6_")).collect();
        let mut theirs = calls[begin..].to_vec();
        theirs.retain(|call| !of_ipv6.iter().any(|outer| outer.contains(call)));
        let mut sent = 0;
        for call in theirs.iter().filter(|call| call.name == sends) {
            sent += usize::from(since(call)? <= total);
        }
        if sent != 1 {
            println!("another packet at the same time");
            return Ok(None);
        }
        let ours: Vec<_> = rows
            .iter()
            .filter(|row| self.functions.iter().any(|function| row["function"] == *function))
            .collect();
        // Each of ours is one of theirs, in their order. What comes behind the last one is no part of the way.
        let mut rest = theirs.iter();
        let mut others = Vec::new();
        let (mut our_times, mut their_times) = (Vec::new(), Vec::new());
        for row in &ours {
            loop {
                let call =
                    rest.next().with_context(|| format!("ftrace has no call of {row}; it has {theirs:?}"))?;
                // Another processor may call the same for a packet of its own, of a timer for one.
                if row["function"] == call.name && ftrace::is_row_of(row, call.task, call.cpu) {
                    our_times.push(row["since_ns"].as_i64().context("no time")?);
                    their_times.push(since(call)?);
                    break;
                }
                // What an idle CPU or ksoftirqd does is a timer's, of a connection that an earlier case left behind, and a
                // worker's is what takes down an earlier one's namespace.
                if call.task != 0 && !is_of_the_kernel(call.task) {
                    others.push(call.name);
                }
            }
        }
        ensure!(
            is_interleaved(&our_times, &their_times),
            "ftrace's times are {their_times:?}, the tool's {our_times:?}"
        );
        let other = others.iter().find(|name| !OF_OTHERS.contains(name));
        ensure!(other.is_none(), "ftrace has a call of {other:?} that is no row: {theirs:?}");
        let all = ours.len() + others.len();
        ensure!(ours.len() * 4 >= all * 3, "{} rows for {theirs:?}", ours.len());
        println!(
            "{} of the {} calls that ftrace has of {} functions are rows, {} %; not these: {others:?}",
            ours.len(),
            all,
            self.functions.len(),
            ours.len() * 100 / all,
        );
        Ok(Some(()))
    }
}

/// Whether this is one of the kernel's threads that do work for others.
fn is_of_the_kernel(task: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{task}/comm"));
    name.is_ok_and(|name| ["kworker/", "ksoftirqd/"].iter().any(|kind| name.starts_with(kind)))
}

fn segment(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::connect(&path)?;
    let port = pair.far.port().to_string();
    for _ in 0..TRIES {
        // Both ends have been answering each other then, and so acknowledge with what they send next, or late.
        pair.converse(20, LEN)?;
        sleep(Duration::from_millis(300));
        let reader = pair.server.pid();
        let testimony = Testimony::of(backend, &port, || {
            pair.server.tell(&format!("read {LEN} 4096 0"))?;
            sleep(Duration::from_millis(50));
            pair.client.ask(&format!("write {LEN}"))?;
            pair.server.answer().map(drop)
        })?;
        if testimony.judge(reader, "tcp_sendmsg_locked", "__tcp_transmit_skb")?.is_some() {
            return Ok(());
        }
        // The other way, for the next try.
        pair.server.ask(&format!("write {LEN}"))?;
        pair.client.ask(&format!("read {LEN} 4096 0"))?;
    }
    anyhow::bail!("no packet was alone in {TRIES} tries")
}

fn datagram(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V4)?;
    let (near, far) = path.addresses();
    let mut client = path.near(|| Peer::spawn(CLIENT))?;
    let mut server = path.far(|| Peer::spawn(SERVER))?;
    let port = server.ask(&format!("udp bind {far}"))?.to_string();
    client.ask(&format!("udp bind {near}"))?;
    client.ask(&format!("udp connect {far}:{port}"))?;
    let testimony = Testimony::of(backend, &port, || {
        client.ask(&format!("udp send 1 {LEN}"))?;
        server.ask("udp receive 1").map(drop)
    })?;
    let verdict = testimony.judge(server.pid(), "udp_sendmsg", "ip_send_skb")?;
    verdict.context("there was more than the one datagram")
}

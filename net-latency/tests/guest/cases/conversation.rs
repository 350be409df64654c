//! Conversations that are older than the tool.

use anyhow::{Result, ensure};
use net_latency::inside::memory;

use super::Case;
use crate::{
    net::{Path, Version},
    oracle,
    peers::Pair,
    tool::{Backend, Launch, Scratch, Sink},
};

pub(crate) const CASES: &[Case] = &[
    ("sockets_opened_before", sockets_opened_before),
    ("bytes_from_before", bytes_from_before),
    ("memory_of_fine_stages", memory_of_fine_stages),
    (BY_FENTRY_ALONE, by_fentry_alone),
];

/// Where the default backend takes kprobes too. Elsewhere all other cases are by fentry alone.
pub(crate) const BY_FENTRY_ALONE: &str = "by_fentry_alone";

const ROUNDS: u32 = 500;
const LEN: u32 = 200;

/// Maps take no more than the documents say, with fine stages too. The ring buffer is not among them.
fn memory_of_fine_stages(backend: Backend) -> Result<()> {
    const MOST: u64 = 20 << 20;
    let tool = Launch::new(backend).args(&["--stages", "fine"]).start()?;
    let maps = memory::of(format!("/proc/{}", tool.pid()).as_ref())?.maps;
    let outcome = tool.stop()?;
    println!("{backend}::memory_of_fine_stages: {} KiB", maps >> 10);
    ensure!(maps > MOST / 2 && maps <= MOST, outcome.fault(format_args!("maps of {} KiB", maps >> 10), []));
    Ok(())
}

/// An incident's connections are older than the tool.
fn sockets_opened_before(backend: Backend) -> Result<()> {
    for path in [Path::loopback(Version::V4)?, Path::veth(Version::V6)?] {
        let mut pair = Pair::connect(&path)?;
        pair.converse(10, LEN)?;
        let tool = Launch::new(backend).start()?;
        pair.converse(ROUNDS, LEN)?;
        let outcome = tool.stop()?;
        for conversation in oracle::check(&outcome, &[&pair])? {
            conversation.expect_rounds(&outcome, ROUNDS as usize, LEN)?;
        }
    }
    Ok(())
}

/// Bytes that came before tracing began get no line and no invented stamps; they are counted, the kernel
/// side's log tells of them, and the lines of what follows are in step.
fn bytes_from_before(backend: Backend) -> Result<()> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    pair.client.ask("write 200")?;
    let tool = Launch::new(backend).args(&["--debug", "--port", &pair.far.port().to_string()]).start()?;
    pair.server.ask("read 200 200 0")?;
    let rounds = 20;
    pair.converse(rounds, 200)?;
    let outcome = tool.stop()?;
    for conversation in oracle::check(&outcome, &[&pair])? {
        conversation.expect_rounds(&outcome, rounds as usize, 200)?;
    }
    let logged = "kernel side: read without a matching segment";
    ensure!(
        outcome.stderr.iter().any(|line| line.contains(logged)),
        outcome.fault(format_args!("stderr lacks {logged:?}"), &[])
    );
    let unseen = outcome.figure("losses.packet_unseen")?;
    ensure!(unseen == 1, outcome.fault(format_args!("{unseen} times bytes from before"), &[]));
    Ok(())
}

/// `--backend fentry` serves too where it is not the default: this kernel's verifier takes all programs.
fn by_fentry_alone(_: Backend) -> Result<()> {
    let mut pair = Pair::connect(&Path::veth(Version::V4)?)?;
    for arguments in [&[][..], &["--stages", "fine", "--control", "--comm", "nl-*"]] {
        let tool = Launch::new(Backend::Fentry).args(arguments).under_load().start()?;
        pair.converse(ROUNDS / 10, LEN)?;
        // Each line has to be right. How many there are is told of the default backend: here a preempted task keeps programs from others.
        oracle::check(&tool.stop()?, &[&pair])?;
    }
    for arguments in [&[][..], &["--stages", "fine", "--by", "process"]] {
        let sink = Sink::Redirected(Scratch::new("counts"));
        let tool = Launch::new(Backend::Fentry).view("hist").args(arguments).sink(sink).start()?;
        pair.converse(ROUNDS / 10, LEN)?;
        let seen = tool.stop()?.figure("seen")?;
        ensure!(seen > 0, "hist {arguments:?} has seen nothing");
    }
    Ok(())
}

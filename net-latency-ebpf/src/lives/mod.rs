//! The kernel side against a kernel that a test makes: packets live as they do on Linux, at random, and their lines have to be true, or
//! absent with a counted reason.
//!
//! [`world`] has a kernel's objects in memory, at places of their own ([`layout`]), and frees and gives them again as SLUB does. [`tcp_in`],
//! [`udp_in`], [`readers`], [`out`] and [`history`] call the hooks as Linux calls the functions, and know the truth ([`truth`]). A history is a list of steps, drawn from a
//! seed ([`choice`]); one that shows a fault is made short, and told.

mod choice;
mod counted;
mod flow;
mod found;
mod found_readers;
mod found_udp;
mod history;
mod journeys;
mod layout;
mod out;
mod processes;
mod reader_truth;
mod readers;
mod service_truth;
mod tcp_in;
mod truth;
mod udp_in;
mod udp_truth;
mod wanted;
mod world;

use std::{
    env,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    vec::Vec,
};

use history::History;

/// Histories that the test runs, if the environment doesn't say.
const HISTORIES: u64 = 20_000;
/// The first seed, likewise.
const FIRST: u64 = 1;

fn from_environment(name: &str, usual: u64) -> u64 {
    env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
fn whatever_is_shown_is_true() {
    let count = from_environment("NET_LATENCY_HISTORIES", HISTORIES);
    let first = from_environment("NET_LATENCY_SEED", FIRST);
    let (next, end) = (AtomicU64::new(first), first + count);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let lines: u64 = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| lines_of_share(&next, end))).collect();
        // Whichever thread finds a fault tells it.
        running.into_iter().map(|thread| thread.join().expect("no history shows a fault")).sum()
    });
    // Histories that show nothing prove nothing.
    assert!(lines >= count / 2, "{lines} lines in {count} histories");
}

/// Runs the next histories as long as there are any, beside other threads: each has a kernel of its own. Returns how many lines they
/// showed.
fn lines_of_share(next: &AtomicU64, end: u64) -> u64 {
    let mut lines = 0;
    loop {
        let seed = next.fetch_add(1, Relaxed);
        if seed >= end {
            return lines;
        }
        match History::draw(seed).run() {
            Ok(more) => lines += more,
            Err(fault) => {
                // One fault is enough: the others stop.
                next.store(end, Relaxed);
                std::eprintln!("seed {seed}: {fault}");
                panic!("seed {seed}, shortened:\n{}", History::draw(seed).shrink().tell());
            }
        }
    }
}

//! The kernel side against a kernel that a test makes: packets live as they do on Linux, at random, and whatever is shown of them has to be
//! true or absent with a counted reason.
//!
//! [`world`] has a kernel's objects in memory, at places of their own ([`layout`]), and frees and gives them again as SLUB does. [`tcp_in`]
//! and [`history`] call the hooks as Linux calls the functions, and know the truth ([`truth`]). A history is a list of steps, drawn from a
//! seed ([`choice`]); one that shows a fault is made short, and told.
mod choice;
mod history;
mod layout;
mod tcp_in;
mod truth;
mod world;

use std::{env, println, time::Instant};

use history::History;

std::thread_local! { static STATS: core::cell::RefCell<[u64; 10]> = const { core::cell::RefCell::new([0; 10]) }; }

/// How many histories a test runs, if the environment doesn't say.
const HISTORIES: u64 = 20_000;
/// The first seed, likewise.
const FIRST: u64 = 1;

fn from_environment(name: &str, usual: u64) -> u64 {
    env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

#[test]
fn whatever_is_shown_is_true() {
    let (count, first) =
        (from_environment("NET_LATENCY_HISTORIES", HISTORIES), from_environment("NET_LATENCY_SEED", FIRST));
    let start = Instant::now();
    for seed in first..first + count {
        let history = History::draw(seed);
        if let Err(fault) = history.run() {
            let short = history.shrink();
            panic!("seed {seed}: {fault}\n{}", short.tell());
        }
    }
    STATS.with(|stats| println!("{:?}", stats.borrow()));
    println!("{count} histories in {:?}", start.elapsed());
}

#[test]
#[ignore = "shows one"]
fn one_history() {
    println!("{}", History::draw(from_environment("NET_LATENCY_SEED", FIRST)).tell());
}

//! What each hook takes of a message: the kernel's own figures of its programs (`bpf_stats_enabled`, Linux 5.1).

use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsFd as _, AsRawFd as _},
};

use anyhow::{Context as _, Result, ensure};
use aya::programs::loaded_programs;

use super::{
    WARM_UP,
    load::{Ends, Load},
    mode::{Mode, Running},
};
use crate::net::Path;

/// The kernel reads its clock for each run of a program if this is set.
const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// What a program has done since it was loaded.
#[derive(Clone, Copy, Default)]
struct Done {
    runs: u64,
    ns: u64,
}

/// Prints for each load what `mode` adds, by hook.
pub(super) fn measure(mode: Mode, loads: &[Load], places: &[(&str, Path)]) -> Result<()> {
    let running = Running::start(mode)?;
    fs::write(SWITCH, "1").context(SWITCH)?;
    for (place, path) in places {
        for load in loads {
            let mut ends = Ends::prepare(*load, path)?;
            ends.play(WARM_UP)?;
            let before = programs()?;
            ends.play(load.messages())?;
            let after = programs()?;
            println!("### {}: {}, {place}\n", mode.name(), load.name());
            table(&before, &after, load.messages());
        }
    }
    fs::write(SWITCH, "0").context(SWITCH)?;
    running.stop()?;
    Ok(())
}

fn table(before: &BTreeMap<String, Done>, after: &BTreeMap<String, Done>, messages: u32) {
    let messages = f64::from(messages);
    println!("| hook | runs per message | instructions per run | per message |\n|---|--:|--:|--:|");
    let mut sum = 0.0;
    for (name, done) in after {
        let earlier = before.get(name).copied().unwrap_or_default();
        let (runs, ns) = ((done.runs - earlier.runs) as f64, (done.ns - earlier.ns) as f64);
        if runs > 0.0 {
            println!("| {name} | {:.2} | {:.0} | {:.0} |", runs / messages, ns / runs, ns / messages);
            sum += ns / messages;
        }
    }
    println!("| all | | | {sum:.0} |\n");
}

/// All that are loaded, by name: a backend may have several of one name, which count together.
fn programs() -> Result<BTreeMap<String, Done>> {
    let mut all: BTreeMap<String, Done> = BTreeMap::new();
    for program in loaded_programs() {
        let program = program?;
        let fd = program.fd()?;
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd()))?;
        let field = |key: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            value.with_context(|| format!("no {key} in {info}"))?.trim().parse::<u64>().context("no number")
        };
        let done = all.entry(program.name_as_str().unwrap_or("?").to_owned()).or_default();
        done.runs += field("run_cnt")?;
        done.ns += field("run_time_ns")?;
    }
    ensure!(!all.is_empty(), "no programs are loaded");
    Ok(all)
}

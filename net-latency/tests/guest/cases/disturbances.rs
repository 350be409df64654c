//! What happens to a machine, or to the tool, while packets pass: it is stopped for a while, a CPU goes and comes back, memory
//! runs out. Afterwards every packet has its place, and nothing is left in the kernel.

use std::{
    env, fs, io,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::signal::Signal;

use super::Case;
use crate::{
    footer::Footer,
    leftovers::Kernel,
    lines::parse,
    net,
    net::Version,
    peers::Pair,
    process::{PATIENCE, until},
    tool::{Backend, Launch, Outcome, Tool},
    verdict::Skipped,
};

pub(crate) const CASES: &[Case] = &[
    ("disturbed_by_a_stop", by_a_stop),
    ("disturbed_by_a_cpu_that_goes", by_a_cpu_that_goes),
    ("disturbed_by_sleep", by_sleep),
    ("disturbed_by_oom", by_oom),
];

/// Set to 1 where a machine that sleeps is woken.
const WOKEN: &str = "NET_LATENCY_WOKEN";

/// Rounds that begin together.
const ROUNDS: u32 = 20;

/// Has a pair converse as long as `meanwhile` takes; returns how many packets that made.
fn beside_traffic(pair: &mut Pair, meanwhile: impl FnOnce() -> Result<()>) -> Result<u64> {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let traffic = scope.spawn(|| -> Result<u64> {
            let mut packets = 0;
            while !is_over.load(Ordering::Relaxed) {
                pair.converse(ROUNDS, 200)?;
                packets += u64::from(ROUNDS) * 4;
            }
            Ok(packets)
        });
        let outcome = meanwhile();
        is_over.store(true, Ordering::Relaxed);
        let packets = traffic.join().map_err(|_| anyhow!("the traffic panicked"))??;
        outcome.map(|()| packets)
    })
}

/// Waits until it has written more lines than can have been on their way.
fn expect_more(tool: &Tool) -> Result<()> {
    tool.expect_written(tool.written()? + 200)
}

/// Fails unless each of the packets has a line or is counted as lost, and all figures add up.
fn expect_exact(outcome: &Outcome, packets: u64) -> Result<u64> {
    let ledger = outcome.ledger()?;
    ensure!(ledger.from_before == 0, outcome.fault("not a whole run's ledger", []));
    let lines = outcome.lines()?;
    ensure!(lines.len() as u64 == ledger.shown, outcome.fault("not as many lines as shown", &lines));
    ensure!(outcome.lost()? == ledger.lost, outcome.fault("two figures of lost lines", &lines));
    // Where everything stands still for a while, TCP sends segments again that are not lost.
    let again = lines.iter().filter(|line| line.is("retrans")).count() as u64;
    outcome.expect_all("packets shown or lost", ledger.shown - again + ledger.lost, packets, &lines)?;
    let most = outcome.allowance().most(packets);
    // It arrives once more too: a duplicate, which may still be waiting.
    ensure!(
        (packets - most..=packets + 2 * again + most).contains(&ledger.seen),
        outcome.fault(format_args!("{} seen, not {packets}", ledger.seen), &lines)
    );
    // The intervals' figures add up, whatever happened in them, and make up the whole run's but for the last.
    let reports = outcome.reports()?.iter().map(Footer::ledger).collect::<Result<Vec<_>>>();
    let reports = reports.map_err(|error| outcome.fault(format_args!("{error:#}"), &lines))?;
    let shown = reports.iter().map(|report| report.shown).sum::<u64>();
    ensure!(
        0 < shown && shown <= ledger.shown,
        outcome.fault(format_args!("{shown} in the intervals, {} in all", ledger.shown), &lines)
    );
    Ok(ledger.lost)
}

/// Fails unless the tool goes on after that disturbance of the machine amid traffic, which it sees before and behind it, and what it
/// says of that is exact.
fn goes_on(backend: Backend, version: Version, disturb: impl FnOnce(&Tool) -> Result<()>) -> Result<()> {
    let before = Kernel::now()?;
    let mut pair = Pair::connect(&net::Path::loopback(version)?)?;
    let mut tool = Launch::new(backend).args(&["--interval", "200ms"]).start()?;
    let packets = beside_traffic(&mut pair, || {
        expect_more(&tool)?;
        disturb(&tool)?;
        expect_more(&tool)
    })?;
    tool.expect_more_reports(2)?;
    let outcome = tool.stop()?;
    before.expect_restored()?;
    expect_exact(&outcome, packets)?;
    Ok(())
}

/// SIGSTOP, and some seconds later SIGCONT: what has come meanwhile waits in the buffer, which is large enough.
fn by_a_stop(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let mut pair = Pair::connect(&net::Path::loopback(Version::V4)?)?;
    let mut tool = Launch::new(backend).args(&["--interval", "200ms", "--buffer", "16M"]).start()?;
    let mut packets = beside_traffic(&mut pair, || expect_more(&tool))?;
    let is_stopped = || -> Result<bool> {
        let status = fs::read_to_string(format!("/proc/{}/status", tool.pid()))?;
        Ok(status.lines().any(|line| line.starts_with("State:\tT")))
    };
    tool.signal(Signal::SIGSTOP)?;
    until(PATIENCE, is_stopped).context("it does not stop")?;
    let written = tool.written()?;
    // Less than the buffer holds, however fast the machine is.
    pair.converse(300, 200)?;
    packets += 300 * 4;
    thread::sleep(Duration::from_secs(2));
    ensure!(is_stopped()? && tool.written()? == written, "it writes while it is stopped");
    tool.signal(Signal::SIGCONT)?;
    packets += beside_traffic(&mut pair, || expect_more(&tool))?;
    // It goes on to do what it does at times.
    tool.expect_more_reports(2)?;
    let outcome = tool.stop()?;
    before.expect_restored()?;
    let lost = expect_exact(&outcome, packets)?;
    ensure!(lost == 0, outcome.fault("lost, though the buffer had room", []));
    Ok(())
}

/// The second CPU, while it exists for the kernel.
struct Cpu(&'static str);

impl Cpu {
    fn set(&self, is_online: bool) -> Result<()> {
        fs::write(self.0, if is_online { "1" } else { "0" })
            .with_context(|| format!("{}: {is_online}", self.0))?;
        let now = fs::read_to_string(self.0)?;
        ensure!((now.trim() == "1") == is_online, "{}: it is {now:?}", self.0);
        Ok(())
    }
}

impl Drop for Cpu {
    fn drop(&mut self) {
        // Whatever failed: the cases that follow want two. When it is online already, nothing happens.
        drop(fs::write(self.0, "1"));
    }
}

/// A CPU goes offline and online again, amid traffic that uses all of them: what it counted stays counted.
fn by_a_cpu_that_goes(backend: Backend) -> Result<()> {
    let cpu = Cpu("/sys/devices/system/cpu/cpu1/online");
    goes_on(backend, Version::V6, |tool| {
        cpu.set(false)?;
        expect_more(tool)?;
        cpu.set(true)
    })
}

/// Suspend to RAM, amid traffic: all tasks are frozen, and the second CPU is off.
fn by_sleep(backend: Backend) -> Result<()> {
    goes_on(backend, Version::V4, |_| suspend())
}

/// Suspends the machine to RAM. QEMU's firmware wakes its first CPU.
pub(super) fn suspend() -> Result<()> {
    let is_woken = env::var_os(WOKEN).is_some_and(|value| value == "1");
    ensure!(is_woken, Skipped("nothing wakes this machine"));
    let slept =
        || -> Result<u32> { Ok(fs::read_to_string("/sys/power/suspend_stats/success")?.trim().parse()?) };
    let earlier = slept()?;
    fs::write("/sys/power/mem_sleep", "deep").context("suspend to RAM")?;
    fs::write("/sys/power/state", "mem").context("suspend")?;
    ensure!(slept()? == earlier + 1, "it has not slept");
    Ok(())
}

/// A memory cgroup, removed with the value.
struct Cgroup {
    path: PathBuf,
    was_enabled: bool,
}

/// Where the unified hierarchy is, and what its file says of controllers.
const CGROUPS: &str = "/sys/fs/cgroup";
const CONTROLLERS: &str = "/sys/fs/cgroup/cgroup.subtree_control";

impl Cgroup {
    fn new(name: &str) -> Result<Self> {
        let was_enabled = fs::read_to_string(CONTROLLERS)?.split_whitespace().any(|name| name == "memory");
        fs::write(CONTROLLERS, "+memory").context("memory cgroups")?;
        let path = Path::new(CGROUPS).join(name);
        fs::create_dir(&path)?;
        Ok(Self { path, was_enabled })
    }

    fn set(&self, file: &str, value: impl ToString) -> io::Result<()> {
        fs::write(self.path.join(file), value.to_string())
    }

    /// How often that has happened in it.
    fn events(&self, name: &str) -> Result<u64> {
        let events = fs::read_to_string(self.path.join("memory.events"))?;
        let count = events.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(count.with_context(|| format!("no {name} in {events}"))?.parse()?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // In use where a case failed before its end; nothing else uses one of this name.
        drop(fs::remove_dir(&self.path));
        if !self.was_enabled {
            drop(fs::write(CONTROLLERS, "-memory"));
        }
    }
}

/// The kernel kills the tool for want of memory, amid traffic: there is no summary then, and the lines that were written are right.
fn by_oom(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let mut pair = Pair::connect(&net::Path::loopback(Version::V4)?)?;
    let mut tool = Launch::new(backend).start()?;
    Kernel::now()?.expect_more_than(&before)?;
    let cgroup = Cgroup::new(&format!("nl-oom-{backend}"))?;
    cgroup.set("cgroup.procs", tool.pid())?;
    let packets = beside_traffic(&mut pair, || {
        expect_more(&tool)?;
        // Its next page is one too many: a page of its file, if no other.
        cgroup.set("memory.max", 0).context("memory.max")?;
        until(PATIENCE, || Ok(!tool.is_running()?)).context("it goes on without memory")
    })?;
    let outcome = tool.wait()?;
    ensure!(outcome.status.signal() == Some(Signal::SIGKILL as i32), outcome.fault("not killed", []));
    ensure!(cgroup.events("oom_kill")? > 0, outcome.fault("killed, but not for want of memory", []));
    before.expect_restored()?;
    let text = outcome.text()?;
    // What it was writing may be torn.
    let lines = parse(&text[..text.rfind('\n').map_or(0, |end| end + 1)])?;
    let is_own = lines.iter().all(|line| pair.owns(line));
    let once = lines.iter().filter(|line| !line.is("retrans")).count() as u64;
    ensure!(
        is_own && 0 < once && once <= packets,
        outcome.fault(format_args!("{} lines of {packets} packets", lines.len()), &lines)
    );
    Ok(())
}

//! What others on the machine try: a user without privileges, and root of a user namespace, as a container without privileges has it. The
//! victim keeps its figures.

use std::{
    collections::BTreeSet,
    fs,
    os::{fd::AsFd, unix::fs::chown},
    path::{Path as FilePath, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, unlinkat},
    path::Arg,
};
use serde_json::Value;

use super::{
    Case,
    export::{LISTEN, Sample, address, get_encoded, in_histograms, samples, scrape, sum},
};
use crate::{
    confine,
    leftovers::Kernel,
    net::{Path, Version},
    peers::{CLIENT, Pair, Peer, SERVER},
    process::{PATIENCE, until, wait},
    tool::{self, Backend, Launch, Scratch, Sink, Tool},
};

pub(crate) const CASES: &[Case] = &[
    ("hostile_names_of_cgroups", cgroup_names),
    ("hostile_ports_hide_no_service", ports),
    ("hostile_names_take_no_series", process_names),
    ("hostile_ports_fill_no_table", full_table),
    ("hostile_namespace_hides_no_service", namespace),
    ("hostile_cgroup_is_no_pod", no_pod),
    ("hostile_scrapers_keep_nobody_out", scrapers),
    ("hostile_starts_leave_nothing", starts),
];

/// The attackers: a user with uid 65534, and the same as root of a user namespace of its own.
const KINDS: [&str; 2] = [confine::NOBODY, confine::USER_NAMESPACE];
const NOBODY: u32 = 65_534;
const LOST: &str = "net_latency_losses_total";
const MIB: u64 = 1 << 20;

fn attacker(kind: &str) -> Result<Peer> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args([confine::ROLE, kind]);
    Peer::spawn_under(b"nl-hostile", command)
}

/// A cgroup that another user may change at will, as systemd delegates them.
struct Delegated(PathBuf);

impl Delegated {
    fn new(name: &str) -> Result<Self> {
        let path = FilePath::new("/sys/fs/cgroup").join(name);
        fs::create_dir(&path)?;
        for file in ["", "cgroup.procs", "cgroup.threads", "cgroup.subtree_control"] {
            let file = if file.is_empty() { path.clone() } else { path.join(file) };
            chown(&file, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(Self(path))
    }

    fn take(&self, peer: &Peer) -> Result<()> {
        Ok(fs::write(self.0.join("cgroup.procs"), peer.pid().to_string())?)
    }

    fn path(&self) -> Result<&str> {
        self.0.to_str().context("ASCII")
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // If it is left, the next one fails, which says more.
        drop(remove(CWD, &self.0));
    }
}

/// Removes a cgroup and those in it, whose paths may be longer than a call takes.
fn remove(directory: impl AsFd, name: impl Arg + Copy) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let own = openat(&directory, name, flags, Mode::empty())?;
    for entry in Dir::read_from(&own)? {
        let entry = entry?;
        let is_other = !matches!(entry.file_name().to_bytes(), b"." | b"..");
        if is_other && entry.file_type() == FileType::Directory {
            remove(&own, entry.file_name())?;
        }
    }
    Ok(unlinkat(&directory, name, AtFlags::REMOVEDIR)?)
}

fn start_export(backend: Backend, arguments: &[&str]) -> Result<Tool> {
    Launch::new(backend).view("export").args(&LISTEN).args(arguments).sink(Sink::Pipe).start()
}

fn figure(samples: &[Sample], name: &str) -> u64 {
    sum(samples, name, &[])
}

/// Long names of nested cgroups: a scrape and the memory have a bound, and the process with most packets has series.
fn cgroup_names(backend: Backend) -> Result<()> {
    const DEPTH: u32 = 70;
    for kind in KINDS {
        let delegated = Delegated::new("nl-delegated")?;
        let mut attacker = attacker(kind)?;
        delegated.take(&attacker)?;
        let tool = start_export(backend, &["--by", "cgroup"])?;
        let address = address(&tool)?;
        let path = Path::loopback(Version::V4)?;
        let mut pair = Pair::connect(&path)?;
        pair.converse(100, 200)?;
        attacker.ask(&format!("hostile nest {} {DEPTH} 230 5", delegated.path()?))?;
        pair.converse(100, 200)?;
        // The names of new ones are looked for every two seconds.
        sleep(Duration::from_secs(6));
        let (_, body) = get_encoded(address, "/metrics", "text/plain;version=0.0.4", "identity")?;
        let bytes = body.len() as u64;
        let samples = samples(body)?;
        let longest = labels(&samples, "cgroup").iter().map(String::len).max().unwrap_or(0);
        let resident = figure(&samples, "process_resident_memory_bytes");
        let groups = labels(&samples, "cgroup").len();
        println!("{kind}: scrape {bytes} bytes, resident {resident} bytes, {groups} groups, label {longest}");
        let is_right = bytes <= 4 * MIB && resident <= 64 * MIB && longest <= 4 * 128 && groups <= 65;
        let outcome = tool.stop()?;
        ensure!(is_right && groups > 32, outcome.fault("no bound, or no attack", []));
        outcome.ledger()?;
        // The scrape itself has some more.
        let victim = in_histograms(&samples, &[("cgroup", "/")]).min(800);
        outcome.expect_all("packets of the one who matters", victim, 800, [])?;
        drop(attacker);
    }
    Ok(())
}

fn labels(samples: &[Sample], name: &str) -> BTreeSet<String> {
    samples.iter().filter_map(|sample| sample.label(name)).map(str::to_owned).collect()
}

/// A slow server among others, while `attack` is going on; that it is the first finding, its PID or port.
fn expect_found(backend: Backend, what: &str, attack: impl Fn(&Pair) -> Result<()>) -> Result<()> {
    const PORT: u16 = 7_777;
    let mut pair = Pair::prepare(&Path::loopback(Version::V4)?, CLIENT, SERVER)?;
    pair.server.ask(&format!("listen {} {PORT}", pair.far.ip()))?;
    pair.far.set_port(PORT);
    let sink = Sink::Redirected(Scratch::new("diagnose"));
    let arguments = ["--threshold", "30ms", "--duration", "10m"];
    let tool = Launch::new(backend).view("diagnose").args(&arguments).sink(sink).start()?;
    pair.open(&Path::loopback(Version::V4)?)?;
    attack(&pair)?;
    // It sleeps before each request that it reads.
    pair.server.tell("serve 80 200 100")?;
    pair.client.tell("request 80 200")?;
    attack(&pair)?;
    pair.finish()?;
    sleep(Duration::from_millis(300));
    let outcome = tool.stop()?;
    let verdict: Value = serde_json::from_str(outcome.text()?)?;
    let first = &verdict["findings"][0];
    println!("{what}: first {}, refused {}", first["sentence"], verdict["seen"]["without_service"]);
    let is_right =
        first["pid"] == pair.server.pid() && first["port"] == PORT && first["cause"] == "reader-late";
    ensure!(is_right, outcome.fault(format_args!("{what}: {verdict}"), []));
    Ok(())
}

/// As many UDP ports of one user as there is no room for.
fn ports(backend: Backend) -> Result<()> {
    for kind in KINDS {
        let attacker = attacker(kind)?;
        let attacker = std::cell::RefCell::new(attacker);
        expect_found(backend, kind, |_| {
            // A user may have each of its ports more packets than the other one.
            attacker.borrow_mut().ask("hostile ports 9000 160 60").map(drop)
        })?;
    }
    Ok(())
}

/// The addresses and ports of the victim in a network namespace of the attacker's own.
fn namespace(backend: Backend) -> Result<()> {
    let attacker = std::cell::RefCell::new(attacker(confine::NETWORK_NAMESPACE)?);
    expect_found(backend, "a namespace", |pair| {
        let (server, client) = (pair.far.port(), pair.near.port());
        attacker.borrow_mut().ask(&format!("hostile twin {server} {client} 100")).map(drop)
    })
}

/// More names of a process than there are series, before the one with most packets has any.
fn process_names(backend: Backend) -> Result<()> {
    /// Series stay for a minute at least.
    const PATIENCE: Duration = Duration::from_secs(120);
    for kind in KINDS {
        let mut attacker = attacker(kind)?;
        let tool = start_export(backend, &["--by", "process"])?;
        let address = address(&tool)?;
        attacker.ask("hostile names 70 5")?;
        let before = scrape(address)?;
        let taken = labels(&before, "process").len();
        ensure!(taken > 64, "{taken} groups: no attack");
        let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
        let begun = Instant::now();
        let names = [pair.client.comm(), pair.server.comm()];
        let have_series =
            |samples: &[Sample]| names.iter().all(|name| in_histograms(samples, &[("process", name)]) > 0);
        until(PATIENCE, || {
            pair.converse(100, 200)?;
            Ok(have_series(&scrape(address)?))
        })
        .context("no series of those who have most packets")?;
        println!("{kind}: series after {:.0} s", begun.elapsed().as_secs_f64());
        attacker.ask("hostile names 70 5")?;
        pair.converse(100, 200)?;
        let samples = scrape(address)?;
        let outcome = tool.stop()?;
        outcome.ledger()?;
        ensure!(have_series(&samples), outcome.fault("they have lost their series", []));
    }
    Ok(())
}

/// More ports than the kernel side's table has room for: those without packets leave it, and keep no others out.
fn full_table(backend: Backend) -> Result<()> {
    const PORT: u16 = 7_778;
    for kind in KINDS {
        let mut attacker = attacker(kind)?;
        let mut pair = Pair::prepare(&Path::loopback(Version::V4)?, CLIENT, SERVER)?;
        pair.server.ask(&format!("listen {} {PORT}", pair.far.ip()))?;
        pair.far.set_port(PORT);
        let tool = start_export(backend, &["--by", "port", "--buckets", "1K", "--series", "1000"])?;
        let address = address(&tool)?;
        let lost = || Ok::<_, anyhow::Error>(sum(&scrape(address)?, LOST, &[("kind", "bucket_table_full")]));
        until(PATIENCE, || {
            attacker.ask("hostile ports 9000 400 1")?;
            Ok(lost()? > 0)
        })
        .context("the table is never full: no attack")?;
        // Until the next looks but one.
        sleep(Duration::from_secs(7));
        pair.open(&Path::loopback(Version::V4)?)?;
        let before = lost()?;
        pair.converse(100, 200)?;
        let samples = scrape(address)?;
        let outcome = tool.stop()?;
        outcome.ledger()?;
        let found = in_histograms(&samples, &[("port", &PORT.to_string())]);
        let after = sum(&samples, LOST, &[("kind", "bucket_table_full")]);
        println!("{kind}: {before} packets lost before, {} later", after - before);
        outcome.expect_all("packets of the one who came later", found, 400, [])?;
    }
    Ok(())
}

/// A cgroup that is named as a pod's, within one of the attacker's own.
fn no_pod(backend: Backend) -> Result<()> {
    const UID: &str = "3d6f9cb0-8e31-4c7a-9f90-2b4e5d7c8fa3";
    let logs = FilePath::new("/var/log/pods").join(format!("shop_victim-0_{UID}"));
    fs::create_dir_all(logs.join("main"))?;
    for kind in KINDS {
        let delegated = Delegated::new("nl-delegated")?;
        let mut attacker = attacker(kind)?;
        delegated.take(&attacker)?;
        let tool = start_export(backend, &["--by", "pod"])?;
        let address = address(&tool)?;
        let uid = UID.replace('-', "_");
        let systemd = format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice");
        for below in [format!("kubepods/besteffort/pod{UID}/{}", "a".repeat(64)), systemd] {
            attacker.ask(&format!("hostile enter {}/{below}", delegated.path()?))?;
        }
        sleep(Duration::from_secs(6));
        let samples = scrape(address)?;
        let outcome = tool.stop()?;
        let posed = in_histograms(&samples, &[("pod", "victim-0")]);
        let host = in_histograms(&samples, &[("pod", "host")]);
        ensure!(posed == 0, outcome.fault(format_args!("{kind}: {posed} packets of a pod"), []));
        outcome.expect_all("packets of the host", host.min(80), 80, [])?;
    }
    fs::remove_dir_all(logs)?;
    Ok(())
}

/// Half requests, and scrapers as fast as they can be.
fn scrapers(backend: Backend) -> Result<()> {
    const FOR: Duration = Duration::from_secs(10);
    for kind in KINDS {
        let mut attackers = (0..4).map(|_| attacker(kind)).collect::<Result<Vec<_>>>()?;
        let tool = start_export(backend, &["--by", "process"])?;
        let address = address(&tool)?;
        for attacker in &mut attackers {
            attacker.ask(&format!("hostile half-requests {address} 10"))?;
        }
        // 40 of them are open. Each real one is answered.
        for number in 0..15 {
            let (head, _) = get_encoded(address, "/healthz", "*/*", "identity")?;
            ensure!(head.starts_with("HTTP/1.1 200 "), "{kind}: number {number}: {head}");
        }
        // What may be spent at once is spent first.
        let pid = tool.pid();
        let mut spend = |seconds: Duration, most: f64| -> Result<(u64, f64, f64)> {
            let (before, begun, mut answered) = (cpu_seconds(pid)?, Instant::now(), 0);
            loop {
                for attacker in &mut attackers {
                    attacker.tell(&format!("hostile scrape {address} 20"))?;
                }
                for attacker in &attackers {
                    answered += attacker.answer()?;
                }
                let spent = cpu_seconds(pid)? - before;
                let elapsed = begun.elapsed();
                if elapsed >= seconds || spent >= most {
                    return Ok((answered, elapsed.as_secs_f64(), spent));
                }
            }
        };
        let first = spend(Duration::from_secs(60), 25.0)?;
        let (answered, elapsed, spent) = spend(FOR, f64::INFINITY)?;
        println!(
            "{kind}: at first {first:?}; then {answered} scrapes in {elapsed:.1} s took {spent:.2} CPU s"
        );
        tool.stop()?;
        ensure!(answered > 0, "no request was answered");
    }
    Ok(())
}

/// What a process has had of the processors. Its own metrics may be those of a while ago.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let behind = stat.rsplit_once(')').context("no name")?.1;
    // utime and stime, in hundredths (`USER_HZ`).
    let ticks = behind.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}

/// Started and ended at any moment, every third by SIGKILL: nothing is left. With `--repeat 34` these are more than 200.
fn starts(backend: Backend) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let [lines, socket] = ["lines", "metrics.sock"].map(|name| folder.path().join(name));
    let said = folder.path().join("said");
    let (lines, socket) = (lines.display().to_string(), format!("unix:{}", socket.display()));
    let before = Kernel::now()?;
    let views: [&[&str]; 3] = [&["-o", &lines], &["hist"], &["export", "--listen", &socket]];
    for number in 0..6u64 {
        // The killed one is another view in each half.
        let view = views[((number + number / 3) % 3) as usize];
        let is_killed = number % 3 == 2;
        let mut command = Command::new(tool::path());
        command.args(view).args(["--backend", &backend.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&said)?);
        let mut child = command.spawn()?;
        // Before all is attached, while it is, and afterwards.
        sleep(Duration::from_millis(number * 400 + u64::from(child.id()) * 37 % 400));
        let signal = if is_killed { Signal::SIGKILL } else { Signal::SIGTERM };
        // It may have ended by then if it can't do anything.
        kill(Pid::from_raw(child.id().try_into()?), signal)?;
        let status = wait(&mut child, PATIENCE)?;
        let is_clean = is_killed || status.code() == Some(0) || status.code().is_none();
        ensure!(is_clean, "{view:?}, {signal}: {status}: {}", fs::read_to_string(&said)?);
        before.expect_restored().with_context(|| format!("{view:?}, {signal}"))?;
    }
    let left: Vec<_> =
        fs::read_dir(folder.path())?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    let is_known =
        |name: &std::ffi::OsString| ["lines", "metrics.sock", "said"].iter().any(|known| name == known);
    ensure!(left.iter().all(is_known), "left: {left:?}");
    Ok(())
}

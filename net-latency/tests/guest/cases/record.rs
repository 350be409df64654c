//! `net-latency record`: on request it writes the packets of before, and it goes on meanwhile.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::{Path as FilePath, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;
use tempfile::TempDir;

use super::{Case, disturbances::suspend, truth::programs};
use crate::{
    confine,
    net::{Path, Version},
    peers::Pair,
    process::{PATIENCE, until},
    tool::{self, Backend, Launch, Scratch, Sink, Tool},
};

pub(crate) const CASES: &[Case] = &[
    ("record_writes_when_told", writes_when_told),
    ("record_writes_for_slow_packets", writes_for_slow_packets),
    ("record_writes_for_failed_connections", writes_for_failed_connections),
    ("record_survives_a_kill_and_a_full_disk", survives),
    ("record_survives_a_failing_disk", survives_a_failing_disk),
    ("record_survives_a_suspend", survives_a_suspend),
    ("record_follows_its_directory", follows_its_directory),
    ("record_packs_real_traffic", packs_real_traffic),
];

const LEN: u32 = 200;

/// A recorder with a directory of its own.
struct Recorder {
    tool: Tool,
    directory: TempDir,
}

impl Recorder {
    fn start(backend: Backend, arguments: &[&str]) -> Result<Self> {
        Self::start_in(tempfile::tempdir()?, backend, arguments)
    }

    fn start_in(directory: TempDir, backend: Backend, arguments: &[&str]) -> Result<Self> {
        let tool = Launch::new(backend)
            .view("record")
            .sink(Sink::Redirected(Scratch::new("stdout")))
            .args(&["-o".to_owned(), directory.path().display().to_string()])
            .args(arguments)
            .start()?;
        Ok(Self { tool, directory })
    }

    /// Waits for N files; the oldest first.
    fn files(&self, count: usize) -> Result<Vec<PathBuf>> {
        until(PATIENCE, || Ok(recordings(self.directory.path())?.len() >= count))
            .with_context(|| format!("there are no {count} recordings"))?;
        recordings(self.directory.path())
    }
}

fn recordings(directory: &FilePath) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "nlr") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The packets of a recording, as JSON has them, and the messages.
fn packets(file: &FilePath) -> Result<Vec<Value>> {
    let output = std::process::Command::new(tool::path())
        .args(["report", "--format", "json", "-o", "-"])
        .arg(file)
        .output()?;
    ensure!(output.status.success(), "{}: {}", file.display(), String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout)?;
    lines.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// How many packets of the conversation came in and went out, at both ends together. A busy machine has some sent again.
fn of(packets: &[Value], pair: &Pair) -> [usize; 2] {
    let port = pair.near.port();
    ["in", "out"].map(|dir| {
        let is_ours = |packet: &&Value| {
            (packet["sport"] == port || packet["dport"] == port)
                && packet["dir"] == dir
                && packet["len"] == LEN
                && !packet["flags"].to_string().contains("retrans")
        };
        packets.iter().filter(is_ours).count()
    })
}

fn connect() -> Result<Pair> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    pair.set_patience(PATIENCE * 3);
    Ok(pair)
}

/// By signal and by HTTP; all packets so far are in the file, those from before and behind its times of writing too.
fn writes_when_told(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 300;
    let arguments = ["--every", "1s", "--keep", "2", "--dump-on", "http", "--listen", "127.0.0.1:9824"];
    let recorder = Recorder::start(backend, &arguments)?;
    let mut pair = connect()?;
    let mut rounds = 0;
    for number in 1..=2 {
        pair.converse(ROUNDS, LEN)?;
        rounds += ROUNDS as usize;
        // Packets finished a moment ago are read by then.
        thread::sleep(Duration::from_millis(1_200));
        recorder.tool.signal(Signal::SIGUSR1)?;
        let files = recorder.files(number)?;
        let found = of(&packets(&files[number - 1])?, &pair);
        // A call that the kernel skipped leaves a stage unknown, and hardly ever a line out.
        ensure!(
            found.iter().all(|count| (2 * rounds - 4..=2 * rounds).contains(count)),
            "{found:?}, not {}",
            2 * rounds
        );
    }
    thread::sleep(Duration::from_millis(1_200));
    let mut stream = TcpStream::connect("127.0.0.1:9824")?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"POST /dump HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(".nlr: "), "{answer}");
    // The oldest goes.
    until(PATIENCE, || Ok(recordings(recorder.directory.path())?.len() == 2)).context("three files stay")?;
    let outcome = recorder.tool.stop()?;
    ensure!(outcome.status.success(), outcome.fault("it did not end well", []));
    ensure!(outcome.lost()? == 0, outcome.fault("packets were lost", []));
    Ok(())
}

/// A stage of so long, and not for others.
fn writes_for_slow_packets(backend: Backend) -> Result<()> {
    let arguments = ["--stages", "fine", "--dump-on", "slower=300ms"];
    let recorder = Recorder::start(backend, &arguments)?;
    let mut pair = connect()?;
    pair.converse(50, LEN)?;
    thread::sleep(Duration::from_millis(300));
    ensure!(recordings(recorder.directory.path())?.is_empty(), "no packet was slow");
    pair.client.ask("write 200")?;
    thread::sleep(Duration::from_millis(400));
    pair.server.ask("read 200 200 0")?;
    let files = recorder.files(1)?;
    let packets = packets(&files[0])?;
    let slow =
        packets.iter().filter(|packet| packet["tcp_app_ns"].as_u64().is_some_and(|ns| ns >= 300_000_000));
    ensure!(slow.clone().count() >= 1, "the slow packet is not in the file");
    ensure!(slow.clone().all(|packet| packet["tcp_wait_ns"].is_u64()), "without its parts");
    ensure!(recorder.tool.stop()?.status.success(), "it did not end well");
    Ok(())
}

/// For one that is refused, and for none that ends well. What it recorded has the packets before.
fn writes_for_failed_connections(backend: Backend) -> Result<()> {
    let mut pair = connect()?;
    let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listening.local_addr()?.port();
    let ports = [pair.near.port(), port].map(|port| port.to_string());
    let arguments = ["--dump-on", "failed=1/s", "--port", &ports[0], "--port", &ports[1]];
    let recorder = Recorder::start(backend, &arguments)?;
    pair.converse(50, LEN)?;
    let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let (mut server, _) = listening.accept()?;
    drop(client);
    ensure!(server.read(&mut [0])? == 0, "nothing was sent");
    drop(server);
    // Longer than the time that is counted together.
    thread::sleep(Duration::from_millis(2_200));
    ensure!(recordings(recorder.directory.path())?.is_empty(), "no connection has failed");
    drop(listening);
    ensure!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err(), "not refused");
    let files = recorder.files(1)?;
    let found = of(&packets(&files[0])?, &pair);
    ensure!(found.iter().all(|count| (96..=100).contains(count)), "{found:?}, not 100");
    ensure!(recorder.tool.stop()?.status.success(), "it did not end well");
    Ok(())
}

/// Files that are left behind are whole or not there, and a full disk ends nothing.
fn survives(backend: Backend) -> Result<()> {
    let recorder = Recorder::start(backend, &["--every", "1s"])?;
    let mut pair = connect()?;
    pair.converse(100, LEN)?;
    thread::sleep(Duration::from_millis(200));
    recorder.tool.signal(Signal::SIGUSR1)?;
    recorder.files(1)?;
    recorder.tool.signal(Signal::SIGUSR1)?;
    recorder.tool.signal(Signal::SIGKILL)?;
    let Recorder { tool, directory } = recorder;
    drop(tool);
    for file in recordings(directory.path())? {
        ensure!(!packets(&file)?.is_empty(), "{} has no packets", file.display());
    }
    // Leftovers of another run, and a file that is cut.
    let left = directory.path().join(".net-latency-20200101T000000.000Z.nlr.1.part");
    fs::write(&left, "of a run that was killed")?;
    let whole = fs::read(&recordings(directory.path())?[0])?;
    let cut = Scratch::new("cut");
    fs::write(cut.path(), &whole[..whole.len() - 9])?;
    let report = std::process::Command::new(tool::path()).arg("report").arg(cut.path()).output()?;
    let said = String::from_utf8(report.stderr)?;
    ensure!(report.status.code() == Some(1) && said.contains("cut off"), "{said}");
    ensure!(!report.stdout.is_empty(), "what could be read is not reported");

    // A file system of 1 MiB, which is full.
    let disk = tempfile::tempdir()?;
    let options = Some("size=1M");
    nix::mount::mount(Some("tmpfs"), disk.path(), Some("tmpfs"), nix::mount::MsFlags::empty(), options)?;
    let outcome = full(backend, disk.path());
    nix::mount::umount2(disk.path(), nix::mount::MntFlags::MNT_DETACH)?;
    outcome?;
    drop(directory);
    Ok(())
}

/// A disk that fails (EIO) has no file, not even a part of one; that is said, and recording goes on.
fn survives_a_failing_disk(backend: Backend) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().display().to_string();
    let backend = backend.to_string();
    let is_over = AtomicBool::new(false);
    let mut pair = connect()?;
    let ended = thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                pair.converse(10, LEN)?;
                thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        });
        let wanted = ["--dump-on", "slower=1us", "--every", "1s", "--duration", "5s", "--footer", "json"];
        let arguments = [&["record", "--backend", &backend, "-o", &path][..], &wanted].concat();
        let ended = tool::run(Some(confine::FAILING_DISK), &arguments);
        is_over.store(true, Ordering::Relaxed);
        let sent: Result<()> = traffic.join().expect("it does not panic");
        sent.and(ended)
    })?;
    let said = &ended.stderr;
    let failed =
        said.lines().filter(|line| line.contains("Input/output error") && line.contains("recording goes on"));
    let failed = failed.count();
    ensure!(failed > 1 && ended.code == Some(0), "{failed} failures are told: {said}");
    ensure!(said.contains(&format!("recordings: 0 written, {failed} failed")), "{said}");
    ensure!(fs::read_dir(directory.path())?.count() == 0, "something is left");
    Ok(())
}

/// The machine sleeps, in which the clock of the stamps stands still. Packets from before it and behind it are in the
/// file, each at the time on the wall at which it came.
fn survives_a_suspend(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 50;
    /// Between two readings of the clocks, on a busy machine.
    const NEAR: TimeDelta = TimeDelta::milliseconds(10);
    let recorder = Recorder::start(backend, &[])?;
    let mut pair = connect()?;
    let mut talk = || -> Result<[DateTime<Utc>; 2]> {
        let begun = Utc::now();
        pair.converse(ROUNDS, LEN)?;
        let ended = Utc::now();
        // All is read by then.
        thread::sleep(Duration::from_millis(1_200));
        Ok([begun, ended])
    };
    let before = talk()?;
    suspend()?;
    let spans = [before, talk()?];
    recorder.tool.signal(Signal::SIGUSR1)?;
    let packets = packets(&recorder.files(1)?[0])?;
    ensure!(recorder.tool.stop()?.status.success(), "it did not end well");
    for [begun, ended] in spans {
        let within = packets.iter().filter(|packet| {
            let time = packet["ts"].as_str().and_then(|time| DateTime::parse_from_rfc3339(time).ok());
            time.is_some_and(|time| time >= begun - NEAR && time <= ended + NEAR)
        });
        let within: Vec<_> = within.cloned().collect();
        let found = of(&within, &pair);
        let all = 2 * ROUNDS as usize;
        ensure!(found.iter().all(|count| (all - 4..=all).contains(count)), "{found:?} of {all}");
    }
    Ok(())
}

/// The directory is renamed: files go where it is by now. One that can't be written to its end leaves nothing. The directory is removed:
/// that is said. Recording goes on, each time.
fn follows_its_directory(backend: Backend) -> Result<()> {
    let parent = tempfile::tempdir()?;
    let [old, new] = ["old", "new"].map(|name| parent.path().join(name));
    fs::create_dir(&old)?;
    let mut tool = Launch::new(backend)
        .view("record")
        .sink(Sink::Redirected(Scratch::new("stdout")))
        .args(&["-o".to_owned(), old.display().to_string(), "--every".to_owned(), "1s".to_owned()])
        .start()?;
    let mut ask = |what: &str, words: [&str; 2]| {
        thread::sleep(Duration::from_millis(1_200));
        tool.signal(Signal::SIGUSR1)?;
        tool.expect_said(what, |lines| {
            lines.iter().any(|line| words.iter().all(|word| line.contains(word)))
        })?;
        Ok::<_, anyhow::Error>(tool.pid())
    };
    let mut pair = connect()?;
    pair.converse(100, LEN)?;
    fs::rename(&old, &new)?;
    let pid = ask("where the file is", [&new.display().to_string(), ".nlr: "])?;
    let files = recordings(&new)?;
    ensure!(files.len() == 1 && of(&packets(&files[0])?, &pair) != [0, 0], "{files:?}");
    let pid = Pid::from_raw(pid.try_into()?).context("a PID")?;
    let limit = |current| prlimit(Some(pid), Resource::Fsize, Rlimit { current, maximum: None });
    limit(Some(512))?;
    ask("why there is no file", ["File too large", "recording goes on"])?;
    ensure!(fs::read_dir(&new)?.count() == 1, "something is left");
    limit(None)?;
    fs::remove_dir_all(&new)?;
    ask("that there is no directory", ["was removed", "recording goes on"])?;
    ensure!(tool.stop()?.status.success(), "it did not end well");
    Ok(())
}

/// Of real servers a packet takes 24 bytes or less in a file, which has what memory has.
/// Bytes that the times of these packets take by themselves, which are long on a busy machine: 16 bits for each, or a byte for seven bits
/// where one is longer.
fn bytes_of_times(packets: &[Value]) -> Result<usize> {
    const STAGES: [[&str; 3]; 2] =
        [["drv_ip_ns", "ip_tcp_ns", "tcp_app_ns"], ["app_tcp_ns", "tcp_ip_ns", "ip_drv_ns"]];
    let mut bytes = 0;
    let mut before = None;
    for packet in packets {
        let at = DateTime::parse_from_rfc3339(packet["ts"].as_str().context("it has a time")?)?;
        let gap = before.replace(at).map_or(TimeDelta::zero(), |before| at - before);
        let [first, second, third] =
            STAGES[usize::from(packet["dir"] == "out")].map(|stage| packet[stage].as_u64().unwrap_or(0));
        let gap = gap.num_nanoseconds().context("it is no longer than centuries")?.unsigned_abs();
        let times = [2 * gap, first, second, third];
        bytes += if times.iter().all(|time| *time < 1 << 16) {
            8
        } else {
            times.iter().map(|time| (time | 1).ilog2() as usize / 7 + 1).sum()
        };
    }
    Ok(bytes)
}

fn packs_real_traffic(backend: Backend) -> Result<()> {
    /// Bytes of a packet beside its times.
    const MOST: f64 = 12.0;
    type Load = fn(&Path) -> Result<()>;
    let loads: [(&str, Load); 2] = [
        ("nginx", |path| programs::ask_nginx(path, 1_000)),
        ("redis", |path| programs::ask_redis(path, &["-c", "50", "-n", "8000"])),
    ];
    for (name, load) in loads {
        let path = Path::veth(Version::V4)?;
        let mut recorder = Recorder::start(backend, &[])?;
        load(&path)?;
        thread::sleep(Duration::from_millis(200));
        recorder.tool.signal(Signal::SIGUSR1)?;
        recorder
            .tool
            .expect_said("what is written", |lines| lines.iter().any(|line| line.contains(".nlr: ")))?;
        let file = &recorder.files(1)?[0];
        let packets = packets(file)?;
        let count = packets.len() as f64;
        let each = fs::metadata(file)?.len() as f64 / count;
        let beside = each - bytes_of_times(&packets)? as f64 / count;
        println!("{name}: {count} packets, {each:.2} bytes each, {beside:.2} beside their times");
        ensure!(
            count > 4_000.0 && beside <= MOST,
            "{name}: {count} packets, {beside} bytes beside their times"
        );
        let outcome = recorder.tool.stop()?;
        ensure!(outcome.lost()? == 0, outcome.fault("packets were lost", []));
    }
    Ok(())
}

fn full(backend: Backend, disk: &FilePath) -> Result<()> {
    let filler = disk.join("filler");
    fs::write(&filler, vec![1; 1 << 20]).or_else(|_| fs::write(&filler, vec![1; 1000 << 10]))?;
    let mut tool = Launch::new(backend)
        .view("record")
        .sink(Sink::Redirected(Scratch::new("stdout")))
        .args(&["-o".to_owned(), disk.display().to_string(), "--every".to_owned(), "1s".to_owned()])
        .start()?;
    let mut pair = connect()?;
    pair.converse(100, LEN)?;
    tool.signal(Signal::SIGUSR1)?;
    tool.expect_said("that the disk is full", |lines| {
        lines.iter().any(|line| line.contains("full") && line.contains("recording goes on"))
    })?;
    ensure!(recordings(disk)?.is_empty() && fs::read_dir(disk)?.count() == 1, "something is left");
    // There is room again.
    fs::remove_file(&filler)?;
    thread::sleep(Duration::from_millis(1_200));
    tool.signal(Signal::SIGUSR1)?;
    until(PATIENCE, || Ok(recordings(disk)?.len() == 1)).context("no file when there is room")?;
    ensure!(of(&packets(&recordings(disk)?[0])?, &pair) != [0, 0], "the packets from before are gone");
    ensure!(tool.stop()?.status.success(), "it did not end well");
    Ok(())
}

//! Numbers that are used again: the next owner of a process's, a thread's or a cgroup's number is another one.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    path::Path as FilePath,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use serde_json::Value;

use super::Case;
use crate::{
    lines::{CPU, Dir, Line},
    net::{Path, Version},
    peers::{self, CHILD, Pair, Peer},
    process::{PATIENCE, until},
    tool::{Backend, Launch, Outcome, Scratch, Sink, Tool},
};

pub(crate) const CASES: &[Case] = &[
    ("reused_pid_of_one_of_two", of_two),
    ("reused_pid_of_one_of_two_in_hist", of_two_in_hist),
    ("reused_pid_of_the_only_one", of_one),
    ("reused_pid_of_the_only_one_in_hist", of_one_in_hist),
    ("reused_pid_of_the_only_one_in_journey", of_one_in_journey),
    ("calls_of_a_reused_pid", of_one_in_calls),
    ("reused_pid_of_others_has_a_row_of_its_own", of_others),
    ("reused_pid_of_a_commands_child", of_a_child),
    ("reused_thread_id_has_no_times", of_a_thread),
    ("reused_cgroup_path_is_another_cgroup", of_a_cgroup),
];

/// What the wanted one does before it ends, the newcomer with its number, and another one that is wanted.
const BEFORE: u32 = 5;
const MESSAGES: u32 = 200;
const AFTER: u32 = 20;
const LEN: u32 = 200;

const NEWCOMER: &str = "nl-newcomer";

fn pair(path: &Path, name: &str) -> Result<Pair> {
    let mut pair = Pair::prepare(path, name.as_bytes(), b"nl-far")?;
    pair.open(path)?;
    Ok(pair)
}

/// Another process gets this number, talks, and ends while its connection is open. Tells its port.
fn newcomer(path: &Path, pid: u32) -> Result<u16> {
    let mut server = Peer::spawn(b"nl-newfar")?;
    let far = path.addresses().1;
    let port = server.ask(&format!("listen {far}"))?;
    let mut client = Peer::spawn_as(NEWCOMER.as_bytes(), pid)?;
    let own = client.ask(&format!("connect {far} {port}"))?;
    server.ask("accept")?;
    server.tell(&format!("serve {MESSAGES} {LEN} 0"))?;
    client.ask(&format!("request {MESSAGES} {LEN}"))?;
    server.answer()?;
    client.end()?;
    Ok(own.try_into()?)
}

fn pids(pairs: &[&Pair]) -> Vec<String> {
    pairs.iter().map(|pair| format!("--pid={}", pair.client.pid())).collect()
}

/// N messages each way of the client of this pair, of which each has a line.
fn expect_talk(outcome: &Outcome, lines: &[Line], pair: &Pair, rounds: u32) -> Result<()> {
    for dir in [Dir::Out, Dir::In] {
        let own = lines.iter().filter(|line| line.dir == dir && pair.owns(line) && line.len == LEN);
        let own = own.filter(|line| line.pid == Some(pair.client.pid()) && !line.is("retrans"));
        outcome.expect_all(format_args!("lines {dir}"), own.count().try_into()?, rounds.into(), lines)?;
    }
    Ok(())
}

fn expect_no_newcomer(outcome: &Outcome, lines: &[Line], port: u16) -> Result<()> {
    let foreign: Vec<_> = lines.iter().filter(|line| [line.sport, line.dport].contains(&port)).collect();
    ensure!(
        foreign.is_empty(),
        outcome.fault(format_args!("{} lines of a newcomer", foreign.len()), foreign)
    );
    Ok(())
}

/// What the first one sends when it ends, the FIN of its connection, is still its own.
fn of_two(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let (mut one, mut other) = (pair(&path, "nl-one")?, pair(&path, "nl-other")?);
    let tool = Launch::new(backend).args(&pids(&[&one, &other])).args(&["--control"]).start()?;
    one.converse(BEFORE, LEN)?;
    one.client.end()?;
    let port = newcomer(&path, one.client.pid())?;
    other.converse(AFTER, LEN)?;
    let outcome = tool.stop()?;
    outcome.ledger()?;
    let lines = outcome.lines()?;
    expect_no_newcomer(&outcome, &lines, port)?;
    expect_talk(&outcome, &lines, &one, BEFORE)?;
    expect_talk(&outcome, &lines, &other, AFTER)?;
    // The FIN has the number behind the last byte, and the last line of that end.
    let last = lines.iter().filter(|line| line.dir == Dir::Out && one.owns(line)).max_by_key(|line| line.ts);
    ensure!(
        last.is_some_and(|line| line.is("control") && line.pid == Some(one.client.pid())),
        outcome.fault("no FIN of its own", &lines)
    );
    Ok(())
}

/// The only page of a `hist`, and the packets of each group.
fn groups(outcome: &Outcome) -> Result<Vec<(Value, u64)>> {
    let page: Value = serde_json::from_str(outcome.text()?.trim())
        .map_err(|error| outcome.fault(format_args!("not one page: {error}"), []))?;
    let mut groups: Vec<(Value, u64)> = Vec::new();
    for row in page["histograms"].as_array().context("no histograms")? {
        if row["stage"] != "total_ns" {
            continue;
        }
        let count = |name: &str| row[name].as_u64().unwrap_or(0);
        let packets = count("count") + count("unknown");
        match groups.iter_mut().find(|(group, _)| *group == row["group"]) {
            Some((_, sum)) => *sum += packets,
            None => groups.push((row["group"].clone(), packets)),
        }
    }
    Ok(groups)
}

fn hist<S: ToString>(backend: Backend, arguments: &[S]) -> Result<Tool> {
    let sink = Sink::Redirected(Scratch::new("hist"));
    Launch::new(backend).view("hist").args(&["--by", "pid"]).args(arguments).sink(sink).start()
}

/// That groups by process are these, each with its name and number and N packets.
fn expect_groups(outcome: &Outcome, wanted: &[(&str, u32, u32)]) -> Result<()> {
    let groups = groups(outcome)?;
    ensure!(
        groups.len() == wanted.len(),
        outcome.fault(format_args!("not the groups {wanted:?}: {groups:?}"), [])
    );
    for (name, pid, packets) in wanted {
        let found = groups.iter().find(|(group, _)| group["process"] == *name && group["pid"] == *pid);
        let found = found.map_or(0, |(_, packets)| *packets);
        outcome.expect_all(format_args!("packets of {name} in {groups:?}"), found, (*packets).into(), [])?;
    }
    Ok(())
}

fn of_two_in_hist(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let (mut one, mut other) = (pair(&path, "nl-one")?, pair(&path, "nl-other")?);
    let tool = hist(backend, &pids(&[&one, &other]))?;
    one.converse(BEFORE, LEN)?;
    one.client.end()?;
    newcomer(&path, one.client.pid())?;
    other.converse(AFTER, LEN)?;
    let outcome = tool.stop()?;
    outcome.ledger()?;
    let wanted = [("nl-one", one.client.pid(), 2 * BEFORE), ("nl-other", other.client.pid(), 2 * AFTER)];
    expect_groups(&outcome, &wanted)
}

/// Between the end of the process and that of the run, which is long here, the newcomer talks.
fn while_stopped(tool: Tool, path: &Path, one: &mut Pair) -> Result<(Outcome, u16)> {
    one.converse(BEFORE, LEN)?;
    tool.signal(Signal::SIGSTOP)?;
    one.client.end()?;
    let port = newcomer(path, one.client.pid())?;
    tool.signal(Signal::SIGCONT)?;
    let outcome = tool.wait()?;
    outcome.expect_code(0)?;
    Ok((outcome, port))
}

fn of_one(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut one = pair(&path, "nl-one")?;
    let tool = Launch::new(backend).args(&pids(&[&one])).start()?;
    let (outcome, port) = while_stopped(tool, &path, &mut one)?;
    let lines = outcome.lines()?;
    expect_no_newcomer(&outcome, &lines, port)?;
    expect_talk(&outcome, &lines, &one, BEFORE)
}

fn of_one_in_hist(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut one = pair(&path, "nl-one")?;
    let tool = hist(backend, &pids(&[&one]))?;
    let (outcome, _) = while_stopped(tool, &path, &mut one)?;
    expect_groups(&outcome, &[("nl-one", one.client.pid(), 2 * BEFORE)])
}

/// No object of that run has the newcomer's name.
fn expect_unnamed(outcome: &Outcome) -> Result<()> {
    let text = outcome.text()?;
    ensure!(text.contains("nl-one"), outcome.fault("nothing of the requested one", []));
    let foreign = text.lines().filter(|line| line.contains(NEWCOMER)).count();
    ensure!(foreign == 0, outcome.fault(format_args!("{foreign} objects of a newcomer"), []));
    Ok(())
}

fn of_one_in_journey(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut one = pair(&path, "nl-one")?;
    let arguments = [&pids(&[&one])[..], &["-n".to_owned(), "1000".to_owned()]].concat();
    let tool = Launch::new(backend).view("journey").args(&arguments).start()?;
    let (outcome, _) = while_stopped(tool, &path, &mut one)?;
    expect_unnamed(&outcome)
}

fn of_one_in_calls(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut one = pair(&path, "nl-one")?;
    let arguments = [&pids(&[&one])[..], &["tcp_sendmsg".to_owned()]].concat();
    let tool = Launch::new(backend).view("calls").args(&arguments).start()?;
    let (outcome, _) = while_stopped(tool, &path, &mut one)?;
    expect_unnamed(&outcome)
}

/// Where everybody is counted, two processes are not one because they have had the same number.
fn of_others(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut one = pair(&path, "nl-one")?;
    let tool = hist(backend, &["--direction", "out"])?;
    one.converse(BEFORE, LEN)?;
    one.client.end()?;
    newcomer(&path, one.client.pid())?;
    let outcome = tool.stop()?;
    outcome.ledger()?;
    let groups = groups(&outcome)?;
    let own = groups.iter().filter(|(group, _)| group["pid"] == one.client.pid());
    let mut own: Vec<_> = own.map(|(group, packets)| (group["process"].as_str(), *packets)).collect();
    own.sort_unstable();
    let names: Vec<_> = own.iter().map(|(name, _)| *name).collect();
    ensure!(names == [Some(NEWCOMER), Some("nl-one")], outcome.fault(format_args!("groups {own:?}"), []));
    outcome.expect_all("packets of the newcomer", own[0].1, MESSAGES.into(), [])?;
    outcome.expect_all("packets of the first", own[1].1, BEFORE.into(), [])
}

/// A peer that the tool runs as its command. It reads and answers by pipes that have names.
struct Parent {
    commands: File,
    answers: BufReader<File>,
    _pipes: [Scratch; 2],
}

impl Parent {
    fn start(backend: Backend) -> Result<(Tool, Self)> {
        let pipes = ["commands", "answers"].map(Scratch::new);
        for pipe in &pipes {
            mkfifo(pipe.path(), Mode::S_IRWXU)?;
        }
        let [input, output] = pipes.each_ref().map(|pipe| pipe.path().display());
        let script = format!(
            "exec {} {} nl-parent < {input} > {output}",
            std::env::current_exe()?.display(),
            peers::ROLE
        );
        let tool = Launch::new(backend).command(&["sh", "-c", &script]).start()?;
        let [input, output] = pipes.each_ref().map(Scratch::path);
        // Each waits for the shell's end of it, in the same order.
        let commands = File::options().write(true).open(input)?;
        let answers = BufReader::new(File::open(output)?);
        Ok((tool, Self { commands, answers, _pipes: pipes }))
    }

    fn ask(&mut self, command: &str) -> Result<u64> {
        writeln!(self.commands, "{command}")?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        let number = answer.trim_end().strip_prefix("ok ");
        Ok(number.with_context(|| format!("{command:?}: {answer:?}"))?.parse()?)
    }
}

/// A child of the command ends, and its number is another child's, which is followed, and then a stranger's, which is not.
fn of_a_child(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let far = path.addresses().1;
    let mut server = Peer::spawn(b"nl-far")?;
    let port = server.ask(&format!("listen {far}"))?;
    let (tool, mut parent) = Parent::start(backend)?;
    parent.ask(&format!("connect {far} {port}"))?;
    server.ask("accept")?;
    let pid = parent.ask(&format!("child write {LEN}"))?;
    // At once, while the kernel still has the first one's task, which it then frees.
    let again = parent.ask(&format!("child-as {pid} write-after 1000 {LEN}"))?;
    ensure!(again == pid, "not the same number: {again}, {pid}");
    let stranger = newcomer(&path, pid.try_into()?)?;
    parent.ask(&format!("write {LEN}"))?;
    server.ask(&format!("read {} {LEN} 0", 3 * LEN))?;
    drop(parent);
    let outcome = tool.wait()?;
    outcome.expect_code(0)?;
    let lines = outcome.lines()?;
    expect_no_newcomer(&outcome, &lines, stranger)?;
    let found: Vec<_> = lines
        .iter()
        .filter(|line| line.dir == Dir::Out && u64::from(line.dport) == port && !line.is("retrans"))
        .map(|line| (line.comm.as_deref(), line.pid.map(u64::from) == Some(pid), line.len))
        .collect();
    let child = (Some(CHILD), true, LEN);
    ensure!(
        found == [child, child, (Some("nl-parent"), false, LEN)],
        outcome.fault(format_args!("not the command's: {found:?}"), &lines)
    );
    Ok(())
}

/// A thread is woken, waits for a CPU, and ends; the next one with its id finds bytes that had come before, and has waited for nothing.
fn of_a_thread(backend: Backend) -> Result<()> {
    const HELD: Duration = Duration::from_millis(300);
    let path = Path::loopback(Version::V4)?;
    let mut pair = pair(&path, "nl-client")?;
    pair.client.ask("pin 0")?;
    let mut late = Peer::spawn(b"nl-late")?;
    let mut hog = Peer::spawn(b"nl-hog")?;
    let port = late.ask(&format!("connect {} {}", pair.far.ip(), pair.far.port()))?;
    pair.server.ask("pin 1")?;
    let tool = Launch::new(backend).args(&["--stages", "fine", "--direction", "in"]).start()?;
    late.ask(&format!("write {LEN}"))?;
    let read = format!("read {LEN} {LEN} 0");
    pair.server.tell(&format!("thread {read}"))?;
    // It is in its call by then.
    std::thread::sleep(Duration::from_millis(300));
    hog.keep_cpu(HELD, || pair.client.ask(&format!("write {LEN}")))?;
    let tid = pair.server.answer()?;
    pair.server.ask("accept")?;
    pair.server.ask(&format!("thread-as {tid} {read}"))?;
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    let of = |port: u16| {
        let mut own = lines.iter().filter(|line| line.sport == port && line.dport == pair.far.port());
        own.next().with_context(|| outcome.fault("a line is missing", &lines))
    };
    let (first, second) = (of(pair.near.port())?, of(port.try_into()?)?);
    ensure!(first.tid == second.tid, outcome.fault("not the same thread id", [first, second]));
    let cpu = |line: &Line| line.fine.map(|parts| Duration::from_nanos(parts[CPU]));
    ensure!(
        cpu(first).is_some_and(|time| time >= HELD),
        outcome.fault("the first thread did not wait for a CPU", [first])
    );
    ensure!(
        cpu(second).is_none_or(|time| time < HELD) && second.cpu_held_by != Some(hog.pid()),
        outcome.fault("the second thread has the first one's times", [second])
    );
    Ok(())
}

/// The run says that the cgroup is gone, shows nothing of another of that name, and ends.
fn of_a_cgroup(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut one = pair(&path, "nl-one")?;
    let mut other = pair(&path, "nl-other")?;
    let place = FilePath::new("/sys/fs/cgroup/nl-reused");
    let enter = |pair: &Pair| -> Result<()> {
        fs::create_dir(place).with_context(|| format!("making {}", place.display()))?;
        Ok(fs::write(place.join("cgroup.procs"), pair.client.pid().to_string())?)
    };
    enter(&one)?;
    let tool = Launch::new(backend).args(&["--cgroup", "nl-reused"]).start()?;
    one.converse(BEFORE, LEN)?;
    tool.signal(Signal::SIGSTOP)?;
    one.client.end()?;
    // The kernel removes it once its last process is gone.
    until(PATIENCE, || Ok(fs::remove_dir(place).is_ok()))?;
    enter(&other)?;
    other.converse(AFTER, LEN)?;
    tool.signal(Signal::SIGCONT)?;
    let outcome = tool.wait()?;
    other.client.end()?;
    until(PATIENCE, || Ok(fs::remove_dir(place).is_ok()))?;
    outcome.expect_code(0)?;
    let lines = outcome.lines()?;
    let foreign = lines.iter().filter(|line| other.owns(line));
    ensure!(foreign.clone().next().is_none(), outcome.fault("lines of another cgroup", foreign));
    expect_talk(&outcome, &lines, &one, BEFORE)?;
    let told = outcome.stderr.iter().filter(|line| line.contains("/sys/fs/cgroup/nl-reused"));
    let told: Vec<_> = told.filter(|line| line.contains("is gone")).collect();
    ensure!(told.len() == 1, outcome.fault(format_args!("told {told:?}"), []));
    Ok(())
}

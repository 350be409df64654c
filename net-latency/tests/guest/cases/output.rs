//! The text form, live output, and names that want to break them.

use std::fs;

use anyhow::{Context as _, Result, bail, ensure};
use chrono::{Datelike as _, NaiveDateTime, TimeDelta, Utc};
use regex_lite::Regex;

use super::Case;
use crate::{
    net::{Path, Version},
    oracle,
    peers::{CLIENT, Pair, SERVER},
    process::{PATIENCE, until},
    tool::{Backend, Launch, Outcome, Scratch, Sink},
};

pub(crate) const CASES: &[Case] = &[
    ("text_form", text_form),
    ("text_is_live", text_is_live),
    ("time_is_local_or_utc", time_is_local_or_utc),
    ("hostile_comm_in_text", hostile_comm_in_text),
    ("hostile_comm_in_json", hostile_comm_in_json),
    ("csv_form", csv_form),
    ("text_with_details", text_with_details),
];

const ROUNDS: u32 = 50;

/// The two forms, `%a %b %e %H:%M:%S` in front.
const FORM: &str = r"(?x)^
    ((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\ (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)
     \ [\ 123][0-9]\ [0-9]{2}:[0-9]{2}:[0-9]{2})
    \ (?:\|I\|\ drv-ip:\ [0-9]+\ us,\ ip-tcp:\ [0-9]+\ us,\ tcp-app:\ [0-9]+\ us\.
    |\|O\|\ app-tcp:\ [0-9]+\ us,\ tcp-ip:\ [0-9]+\ us,\ ip-drv:\ [0-9]+\ us\.)
    \ \|\ Proc\ (.+),\ PID\ ([0-9]+)$";

fn form() -> Result<Regex> {
    Ok(Regex::new(FORM)?)
}

/// A conversation in the text form, each line of it checked; the lines that are its own.
fn shown(backend: Backend, client: &[u8], server: &[u8]) -> Result<(Pair, Outcome)> {
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, client, server)?;
    // By port, so that each line is of this conversation: the text form does not name it.
    let tool = Launch::new(backend).text().args(&["--port", &pair.far.port().to_string()]).start()?;
    pair.open(&path)?;
    pair.converse(ROUNDS, 200)?;
    Ok((pair, tool.stop()?))
}

fn text_form(backend: Backend) -> Result<()> {
    let (pair, outcome) = shown(backend, CLIENT, SERVER)?;
    let (form, text) = (form()?, outcome.text()?);
    let mut counts = [0; 4];
    for line in text.lines() {
        let parts = form.captures(line).with_context(|| format!("not one of the two forms: {line:?}"))?;
        let who = (&parts[2], parts[3].parse::<u32>()?);
        let (client, server) = (pair.client.comm(), pair.server.comm());
        let place = [
            (&*client, pair.client.pid(), "|O|"),
            (&*client, pair.client.pid(), "|I|"),
            (&*server, pair.server.pid(), "|O|"),
            (&*server, pair.server.pid(), "|I|"),
        ];
        let place = place.iter().position(|(comm, pid, dir)| who == (*comm, *pid) && line.contains(dir));
        counts[place.with_context(|| format!("another process: {line:?}"))?] += 1;
    }
    ensure!(text.ends_with('\n'), "the last line is cut");
    for count in counts {
        let what = format_args!("lines of one process, one way, of {counts:?}");
        outcome.expect_all(what, count, ROUNDS.into(), &[])?;
    }
    Ok(())
}

/// A line is in the file that standard output is redirected to while the tool still runs.
fn text_is_live(backend: Backend) -> Result<()> {
    let mut tool = Launch::new(backend).text().sink(Sink::Redirected(Scratch::new("text"))).start()?;
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    pair.converse(1, 200)?;
    let (form, file) = (form()?, tool.file()?.to_owned());
    until(PATIENCE, || {
        let text = fs::read_to_string(&file)?;
        Ok(text.lines().filter(|line| form.is_match(line)).count() >= 4)
    })
    .context("the lines of one round do not come while the tool runs")?;
    ensure!(tool.is_running()?, "the tool has ended by itself");
    tool.stop()?;
    Ok(())
}

fn time_is_local_or_utc(backend: Backend) -> Result<()> {
    // A zone whose offset is no whole number of hours; POSIX counts westwards.
    const ZONE: &str = "NLT-5:30";
    let offset = TimeDelta::minutes(330);
    for (arguments, offset) in [(&[][..], offset), (&["--utc"][..], TimeDelta::zero())] {
        for text in [true, false] {
            let mut launch = Launch::new(backend).timezone(ZONE).args::<&str>(arguments);
            if text {
                launch = launch.text();
            }
            let tool = launch.start()?;
            let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
            pair.converse(5, 200)?;
            let outcome = tool.stop()?;
            if text {
                expect_local(&outcome, offset)?;
            } else {
                let lines = outcome.lines()?;
                let seconds = i32::try_from(offset.num_seconds())?;
                let other = lines.iter().filter(|line| line.ts.offset().local_minus_utc() != seconds);
                ensure!(other.clone().next().is_none(), outcome.fault("wrong offset in ts", other));
                ensure!(!lines.is_empty(), outcome.fault("no lines", &[]));
            }
        }
    }
    Ok(())
}

/// The times in text are those of the run, in the zone that is `offset` from UTC.
fn expect_local(outcome: &Outcome, offset: TimeDelta) -> Result<()> {
    let (start, end) = (outcome.span.0.naive_utc() + offset, outcome.span.1.naive_utc() + offset);
    // Text shows whole seconds.
    let start = start - TimeDelta::seconds(1);
    let form = form()?;
    let mut lines = 0;
    for line in outcome.text()?.lines() {
        let parts = form.captures(line).with_context(|| format!("not one of the two forms: {line:?}"))?;
        let time = NaiveDateTime::parse_from_str(
            &format!("{} {}", (Utc::now().naive_utc() + offset).year(), &parts[1]),
            "%Y %a %b %e %H:%M:%S",
        )?;
        ensure!(time >= start && time <= end, "not between {start} and {end}: {line:?}");
        lines += 1;
    }
    ensure!(lines > 0, outcome.fault("no lines", &[]));
    Ok(())
}

/// Colour, a quote, a line break, a separator and a bell; then a C1 control and a byte that is no UTF-8.
const HOSTILE: [&[u8]; 2] = [b"\x1b[31m\"x\"\n,\t\x07|", b"\xc2\x9b31m\xff\\\r{}'"];

fn hostile_comm_in_text(backend: Backend) -> Result<()> {
    let [client, server] = HOSTILE;
    let (pair, outcome) = shown(backend, client, server)?;
    let text = outcome.text()?;
    let lines: Vec<_> = text.lines().collect();
    ensure!(
        lines.len() == ROUNDS as usize * 4,
        outcome.fault(format_args!("{} lines, not one per packet", lines.len()), &[])
    );
    let pids = [pair.client.pid(), pair.server.pid()];
    for line in lines {
        ensure!(!line.chars().any(char::is_control), "a control character in {line:?}");
        let parts = form()?.captures(line).with_context(|| format!("not one of the two forms: {line:?}"))?;
        ensure!(pids.contains(&parts[3].parse()?), "another process: {line:?}");
    }
    Ok(())
}

fn hostile_comm_in_json(backend: Backend) -> Result<()> {
    let [client, _] = HOSTILE;
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, client, b"{\"pid\": 1}\r\x7f")?;
    let tool = Launch::new(backend).start()?;
    pair.open(&path)?;
    pair.converse(ROUNDS, 200)?;
    let outcome = tool.stop()?;
    // That each line names its process exactly is part of every check.
    for conversation in oracle::check(&outcome, &[&pair])? {
        conversation.expect_rounds(&outcome, ROUNDS as usize, 200)?;
    }
    Ok(())
}

/// The columns, as the interface has them.
const COLUMNS: &str = "ts,dir,proto,ipver,pid,tid,comm,saddr,sport,daddr,dport,len,seq,segs,drv_ip_ns,ip_tcp_ns,\
    tcp_app_ns,ip_udp_ns,udp_app_ns,app_tcp_ns,tcp_ip_ns,app_udp_ns,udp_ip_ns,ip_drv_ns,total_ns,ifname,netns,mark,\
    cpu,flags,first_send_age_ns,last_drv_ip_ns,ns_pid,process,\
    rtt_ns,dsacks,netns_name,container";

/// A reader of CSV finds a record for each packet, whatever the processes' names are.
fn csv_form(backend: Backend) -> Result<()> {
    let [client, server] = HOSTILE;
    let path = Path::loopback(Version::V6)?;
    let mut pair = Pair::prepare(&path, client, server)?;
    let tool = Launch::new(backend).csv().args(&["--port", &pair.far.port().to_string()]).start()?;
    pair.open(&path)?;
    pair.converse(ROUNDS, 200)?;
    let outcome = tool.stop()?;
    let text = outcome.text()?;
    ensure!(
        text.lines().count() == ROUNDS as usize * 4 + 1,
        outcome.fault("not a line for each packet", &[])
    );
    let control = |c: char| c.is_control() && c != '\n';
    ensure!(!text.chars().any(control), "a control character");
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names: Vec<_> = reader.headers()?.iter().map(str::to_owned).collect();
    ensure!(names.join(",") == COLUMNS, "columns {names:?}");
    let place = |name: &str| names.iter().position(|this| this == name);
    let mut counts = [0; 4];
    for record in reader.records() {
        let record = record?;
        let field = |name| place(name).and_then(|at| record.get(at)).context("no such column");
        let number = |name| {
            field(name).and_then(|text| text.parse::<u64>().with_context(|| format!("{name} {text:?}")))
        };
        let is_in = match field("dir")? {
            "in" => true,
            "out" => false,
            dir => bail!("direction {dir:?}"),
        };
        let is_request =
            (number("sport")?, number("dport")?) == (pair.near.port().into(), pair.far.port().into());
        let peer = if is_request == is_in { &pair.server } else { &pair.client };
        ensure!(number("pid")? == u64::from(peer.pid()), "another process: {record:?}");
        // As escaped as in text, but for invalid UTF-8 (and the comma, which is quoted).
        let comm = if peer.pid() == pair.client.pid() {
            "\\x1b[31m\"x\"\\x0a,\\x09\\x07|"
        } else {
            "\\xc2\\x9b31m\u{fffd}\\x5c\\x0d{}'"
        };
        ensure!((field("comm")?, field("process")?) == (comm, comm), "named otherwise: {record:?}");
        ensure!((number("len")?, number("ipver")?) == (200, 6), "another packet: {record:?}");
        ensure!((field("proto")?, field("flags")?) == ("tcp", ""), "another packet: {record:?}");
        ensure!(field("saddr")? == "::1" && field("ifname")? == "lo", "another packet: {record:?}");
        let own = if is_in {
            ["drv_ip_ns", "ip_tcp_ns", "tcp_app_ns"]
        } else {
            ["app_tcp_ns", "tcp_ip_ns", "ip_drv_ns"]
        };
        let sum = own.into_iter().map(number).sum::<Result<u64>>()?;
        ensure!(number("total_ns")? == sum, "total is not the sum of the stages: {record:?}");
        for name in &names[14..24] {
            ensure!(own.contains(&name.as_str()) || field(name)?.is_empty(), "{name} in {record:?}");
        }
        counts[usize::from(is_in) * 2 + usize::from(is_request)] += 1;
    }
    ensure!(counts == [ROUNDS; 4], outcome.fault(format_args!("{counts:?} packets"), &[]));
    Ok(())
}

/// `-v` puts the rest behind the PID, for the same packets.
fn text_with_details(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let tool = Launch::new(backend).text().args(&["-v", "--port", &pair.far.port().to_string()]).start()?;
    pair.open(&path)?;
    pair.converse(ROUNDS, 200)?;
    let outcome = tool.stop()?;
    let (form, text) = (form()?, outcome.text()?);
    let mut counts = [0; 2];
    for line in text.lines() {
        let (plain, details) = line.split_once(" | tid ").with_context(|| format!("no details: {line:?}"))?;
        let parts = form.captures(plain).with_context(|| format!("not one of the two forms: {line:?}"))?;
        let (tid, rest) = details.split_once(" | ").context("nothing but a thread")?;
        ensure!(tid == &parts[3], "a process of one thread: {line:?}");
        let request = format!("flow {} > {} | len 200 | seq ", pair.near, pair.far);
        let reply = format!("flow {} > {} | len 200 | seq ", pair.far, pair.near);
        let is_request = rest.starts_with(&request);
        ensure!(is_request || rest.starts_with(&reply), "another packet: {line:?}");
        for part in [" | segs 1 | total ", " us | dev lo | netns ", " | cpu "] {
            ensure!(rest.contains(part), "{part:?} is missing: {line:?}");
        }
        counts[usize::from(is_request)] += 1;
    }
    ensure!(counts == [ROUNDS * 2; 2], outcome.fault(format_args!("{counts:?} packets"), &[]));
    Ok(())
}

//! What a server's thread did between reading a request and writing the answer, with `--stages fine`, against its own clocks. xtask gives
//! these tests a guest whose clock counts instructions.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use super::{Check, Evidence, Scenario, Theme, programs::Server};
use crate::{
    lines::{Dir, Line},
    net::{Path, Version},
    peers::processor,
    process::PATIENCE,
    tool::Scratch,
};

pub(crate) const THEME: Theme = Theme {
    name: "service",
    arguments: &["--stages", "fine"],
    scenarios: &[
        Scenario { name: "server_sleeps", play: || alone(7801, sleeps, asleep) },
        Scenario { name: "server_works", play: || alone(7802, works, at_work) },
        Scenario { name: "server_needs_a_cpu", play: needs_a_cpu },
        Scenario { name: "server_reads_and_writes_in_two_threads", play: two_threads },
        Scenario { name: "server_forks", play: forks },
        Scenario { name: "server_of_datagrams_sleeps", play: datagrams },
    ],
};

const ROUNDS: usize = 12;
/// How long the first request and its answer are. Those of each round are one byte longer, so that a line says which round it is of.
const LEN: usize = 100;
const TIME: Duration = Duration::from_millis(20);
/// Of the time that its own clock says, a figure may differ by N percent.
const PERCENT: u64 = 1;

/// What a server's thread says itself of an answer, ns.
#[derive(Clone, Copy, Debug)]
struct Own {
    all: u64,
    cpu: u64,
}

impl Own {
    /// Of this work of the current thread.
    fn of(work: impl FnOnce()) -> Result<Self> {
        let cpu = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime));
        let (start, before) = (Instant::now(), cpu()?);
        work();
        let cpu = cpu()?.saturating_sub(before);
        Ok(Self { all: start.elapsed().as_nanos().try_into()?, cpu: cpu.as_nanos().try_into()? })
    }
}

/// What the tool says of it, ns.
#[derive(Clone, Debug)]
struct Told {
    all: u64,
    cpu: u64,
    wait: u64,
    sleep: u64,
    call: Option<String>,
}

impl Told {
    /// Of a line that says it, whose parts are all of it then.
    fn of(line: &Line) -> Result<Option<Self>> {
        let value: Value = serde_json::from_str(&line.raw)?;
        let [all, cpu, wait, sleep] = ["service_ns", "service_cpu_ns", "service_wait_ns", "service_sleep_ns"]
            .map(|field| value.get(field).with_context(|| format!("{field} is missing")));
        let (all, cpu, wait, sleep) = (all?.as_u64(), cpu?.as_u64(), wait?.as_u64(), sleep?.as_u64());
        let call = value["service_syscall"].as_str().map(str::to_owned);
        let Some((((all, cpu), wait), sleep)) = all.zip(cpu).zip(wait).zip(sleep) else {
            ensure!(
                all.or(cpu).or(wait).or(sleep).is_none() && call.is_none(),
                "only some are known: {}",
                line.raw
            );
            return Ok(None);
        };
        ensure!(all == cpu + wait + sleep, "the parts are not all of it: {}", line.raw);
        Ok(Some(Self { all, cpu, wait, sleep, call }))
    }
}

fn sleeps() {
    thread::sleep(TIME);
}

fn works() {
    let end = Instant::now() + TIME;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn median(all: impl Iterator<Item = u64>) -> u64 {
    let mut all: Vec<_> = all.collect();
    all.sort_unstable();
    all[all.len() / 2]
}

/// How much what the tool says of most answers differs from what the server says, which is so long.
fn expect_alike(what: &str, rounds: &[(Told, Own)], of: impl Fn(&Told, &Own) -> (u64, u64)) -> Result<()> {
    let typical = median(rounds.iter().map(|(told, own)| of(told, own).1));
    let differs = median(rounds.iter().map(|(told, own)| {
        let (told, own) = of(told, own);
        told.abs_diff(own)
    }));
    let most = typical * PERCENT / 100;
    println!("{what}: {typical} ns, of which the tool's differs by {differs}; at most {most}");
    ensure!(differs <= most, "{what} differs by {differs} of {typical} ns: {rounds:?}");
    Ok(())
}

fn asleep(rounds: &[(Told, Own)]) -> Result<()> {
    expect_alike("asleep", rounds, |told, own| (told.sleep + told.wait, own.all.saturating_sub(own.cpu)))?;
    let least = TIME.as_nanos().try_into()?;
    for (told, _) in rounds {
        // Its clock runs from the call on, and it has a CPU a little longer.
        ensure!(told.sleep + told.cpu >= least, "it slept for longer: {told:?}");
        let call = told.call.as_deref();
        ensure!(matches!(call, Some("nanosleep" | "clock_nanosleep")), "another call: {told:?}");
    }
    Ok(())
}

fn at_work(rounds: &[(Told, Own)]) -> Result<()> {
    expect_alike("on a CPU", rounds, |told, own| (told.cpu, own.cpu))
}

/// The first transmissions of what a server at this port answered.
fn first_sent<'a>(evidence: &'a Evidence<'_>, port: u16) -> Vec<&'a Line> {
    let is_answer =
        |line: &&Line| line.dir == Dir::Out && line.sport == port && line.len > 0 && !line.is("retrans");
    evidence.lines.iter().filter(is_answer).collect()
}

/// Those of N rounds, and the round of each: all of them, but for what may be missing.
fn answers<'a>(evidence: &'a Evidence<'_>, port: u16, count: usize) -> Result<Vec<(usize, &'a Line)>> {
    let all = evidence.lines.iter().filter(|line| [line.sport, line.dport].contains(&port));
    let fault = |what: &str| evidence.outcome.fault(what, all.clone());
    let round = |line: &'a Line| Some((usize::try_from(line.len).ok()?.checked_sub(LEN)?, line));
    let of_rounds: Option<Vec<_>> = first_sent(evidence, port).into_iter().map(round).collect();
    let of_rounds = of_rounds.ok_or_else(|| fault("an answer of no round"))?;
    let is_in_order = of_rounds.is_sorted_by(|(before, _), (round, _)| before < round);
    ensure!(
        is_in_order && of_rounds.iter().all(|(round, _)| *round < count),
        fault("answers of other rounds")
    );
    let found = of_rounds.len().try_into()?;
    let rounds: Vec<_> = of_rounds.iter().map(|(round, _)| *round).collect();
    let what = format!("answers, {rounds:?},");
    evidence.outcome.expect_all(&what, found, count.try_into()?, all)?;
    Ok(of_rounds)
}

/// All answers but those of skipped calls have it, and `is` says of them what has to be so.
fn check(port: u16, owns: Vec<Own>, is: impl FnOnce(&[(Told, Own)]) -> Result<()> + Send + 'static) -> Check {
    Box::new(move |evidence| {
        let answers = answers(evidence, port, owns.len())?;
        let lines = || answers.iter().map(|(_, line)| *line);
        let told: Vec<_> =
            answers.iter().map(|(round, line)| Ok((*round, Told::of(line)?))).collect::<Result<_>>()?;
        let rounds = told.into_iter().filter_map(|(round, told)| Some((told?, owns[round])));
        let rounds: Vec<_> = rounds.collect();
        let most = evidence.outcome.allowance().most(answers.len().try_into()?);
        ensure!(
            u64::try_from(answers.len() - rounds.len())? <= most,
            evidence.outcome.fault(format_args!("{} of them are known", rounds.len()), lines())
        );
        for (told, own) in &rounds {
            // From its read to its own clock, and from that to its call, it is a little longer.
            ensure!(told.all >= own.all, "shorter than its own clock says: {told:?} {own:?}");
        }
        is(&rounds).map_err(|wrong| evidence.outcome.fault(wrong, lines()))
    })
}

/// A client that asks N times, and waits for the answers.
fn ask(stream: &mut TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    for round in 0..ROUNDS {
        let mut bytes = vec![1; LEN + round];
        stream.write_all(&bytes)?;
        stream.read_exact(&mut bytes)?;
    }
    Ok(())
}

/// What a thread comes to.
fn joined<T>(thread: thread::JoinHandle<Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

/// A connection to a server at this port of this machine, both ends.
fn connection(port: u16) -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    let client = TcpStream::connect(("127.0.0.1", port))?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    Ok((client, server))
}

/// A server with one thread, which does `work` for each answer.
fn alone(port: u16, work: fn(), is: fn(&[(Told, Own)]) -> Result<()>) -> Result<Check> {
    let (mut client, mut server) = connection(port)?;
    let owns = thread::spawn(move || serve(&mut server, work));
    ask(&mut client)?;
    Ok(check(port, joined(owns)?, is))
}

fn serve(stream: &mut TcpStream, mut work: impl FnMut()) -> Result<Vec<Own>> {
    let mut owns = Vec::new();
    for round in 0..ROUNDS {
        let mut request = vec![0; LEN + round];
        stream.read_exact(&mut request)?;
        owns.push(Own::of(&mut work)?);
        stream.write_all(&request)?;
    }
    Ok(owns)
}

/// A server that wakes a real-time task on its CPU before it answers.
fn needs_a_cpu() -> Result<Check> {
    const PORT: u16 = 7803;
    let (mut client, mut server) = connection(PORT)?;
    let (wake, woken) = mpsc::channel();
    let (ready, is_ready) = mpsc::channel();
    let hog = thread::spawn(move || {
        processor::pin(0)?;
        processor::first()?;
        ready.send(())?;
        while woken.recv().is_ok() {
            works();
        }
        Ok(())
    });
    let owns = thread::spawn(move || {
        processor::pin(0)?;
        is_ready.recv()?;
        serve(&mut server, || {
            // If the receiver has gone, the reason is told below.
            let _ = wake.send(());
        })
    });
    ask(&mut client)?;
    let owns = joined(owns)?;
    joined(hog)?;
    Ok(check(PORT, owns, |rounds| {
        expect_alike("waiting", rounds, |told, own| (told.wait, own.all.saturating_sub(own.cpu)))?;
        let least = median(rounds.iter().map(|(told, _)| told.wait));
        ensure!(u128::from(least) * 2 >= TIME.as_nanos(), "it waited for {least} ns: {rounds:?}");
        Ok(())
    }))
}

/// One thread reads, another one writes.
fn two_threads() -> Result<Check> {
    const PORT: u16 = 7804;
    let (mut client, mut reader) = connection(PORT)?;
    let mut writer = reader.try_clone()?;
    let (hand_over, requests) = mpsc::channel();
    let reads = thread::spawn(move || {
        for round in 0..ROUNDS {
            let mut request = vec![0; LEN + round];
            reader.read_exact(&mut request)?;
            hand_over.send(request)?;
        }
        Ok(())
    });
    let writes = thread::spawn(move || {
        for request in requests {
            writer.write_all(&request)?;
        }
        Ok(())
    });
    ask(&mut client)?;
    joined(reads)?;
    joined(writes)?;
    Ok(Box::new(|evidence| {
        let answers = answers(evidence, PORT, ROUNDS)?;
        for (_, line) in &answers {
            ensure!(Told::of(line)?.is_none(), evidence.outcome.fault("that can't be known", [*line]));
        }
        let counted = evidence.outcome.footer()?.figure("unknown_stages.other_thread")?;
        let most = evidence.outcome.allowance().most(answers.len().try_into()?);
        ensure!(counted + most >= ROUNDS as u64, "{counted} of {ROUNDS} are counted");
        Ok(())
    }))
}

/// A process for each connection, which has another one make the answer and waits for that.
fn forks() -> Result<Check> {
    const PORT: u16 = 8081;
    let path = Path::loopback(Version::V4)?;
    let root = Scratch::new("forks");
    let programs = root.path().join("cgi-bin");
    std::fs::create_dir_all(&programs)?;
    let program = programs.join("slow");
    std::fs::write(&program, "#!/bin/sh\nsleep 0.02\necho 'Content-type: text/plain'\necho\necho x\n")?;
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let directory = root.path().display().to_string();
    let server = Server::start(&path, PORT, "/bin/httpd", &["-f", "-p", "8081", "-h", &directory])?;
    for _ in 0..ROUNDS {
        let mut stream = TcpStream::connect(("127.0.0.1", PORT))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /cgi-bin/slow HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
    drop(server);
    std::fs::remove_dir_all(root.path())?;
    Ok(Box::new(|evidence| {
        let lines = first_sent(evidence, PORT);
        let told: Vec<_> = lines.iter().map(|line| Told::of(line)).collect::<Result<_>>()?;
        let known: Vec<_> =
            told.into_iter().zip(&lines).filter_map(|(told, line)| Some((told?, line))).collect();
        let most = evidence.outcome.allowance().most(lines.len().try_into()?);
        ensure!(
            known.len() as u64 + most >= ROUNDS as u64,
            evidence.outcome.fault(format_args!("{} of {ROUNDS} are known", known.len()), lines.clone())
        );
        let least = TIME.as_nanos().try_into()?;
        for (told, line) in &known {
            let is_asleep = told.sleep + told.cpu >= least && told.call.is_some();
            ensure!(
                is_asleep,
                evidence.outcome.fault(format_args!("it waits for a pipe: {told:?}"), [**line])
            );
        }
        Ok(())
    }))
}

/// A server of UDP.
fn datagrams() -> Result<Check> {
    const PORT: u16 = 7805;
    let server = UdpSocket::bind(("127.0.0.1", PORT))?;
    let client = UdpSocket::bind(("127.0.0.1", 0))?;
    let owns = thread::spawn(move || {
        let mut owns = Vec::new();
        for round in 0..ROUNDS {
            let mut request = vec![0; LEN + round];
            let (len, from) = server.recv_from(&mut request)?;
            owns.push(Own::of(sleeps)?);
            server.send_to(&request[..len], from)?;
        }
        Ok(owns)
    });
    client.set_read_timeout(Some(PATIENCE))?;
    for round in 0..ROUNDS {
        let mut bytes = vec![1; LEN + round];
        client.send_to(&bytes, ("127.0.0.1", PORT))?;
        client.recv(&mut bytes)?;
    }
    Ok(check(PORT, joined(owns)?, asleep))
}

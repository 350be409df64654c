//! The parties of a system of services: a gateway that asks several of them for each request that it gets, services with a fault
//! each, and who takes their CPU.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd as _,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, setns},
    sys::socket::{setsockopt, sockopt},
};

use super::{milliseconds, processor::schedule};
use crate::{net::on_thread, process::PATIENCE};

/// Bytes of a request.
const REQUEST: usize = 200;

/// Of a reader that reads slowly.
const SMALL_BUFFER: usize = 16_384;

/// What a gateway knows of a service.
struct Backend {
    /// The network namespace to connect from, or `-`.
    from: String,
    to: SocketAddr,
    stream: Option<TcpStream>,
    /// Written to before each request: somebody with a higher priority than the service waits for that.
    hog: Option<File>,
    /// Before each read of an answer. Whoever reads slowly has little room.
    pause: Duration,
}

/// A gateway.
#[derive(Default)]
pub(super) struct Gateway(Vec<Backend>);

impl Backend {
    fn connect(&mut self) -> Result<()> {
        let connect = || {
            if self.from != "-" {
                let namespace = File::open(&self.from)?;
                setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).context("setns")?;
            }
            Ok(TcpStream::connect(self.to)?)
        };
        let stream = on_thread(connect)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        if !self.pause.is_zero() {
            setsockopt(&stream, sockopt::RcvBuf, &SMALL_BUFFER)?;
        }
        self.stream = Some(stream);
        Ok(())
    }
}

impl Gateway {
    pub(super) fn perform(&mut self, client: Option<&TcpStream>, command: &[&str]) -> Result<u64> {
        match command {
            ["knows", from, address, port, pause_ms, hog] => {
                let to = SocketAddr::new(address.parse::<IpAddr>()?, port.parse()?);
                let hog = (*hog != "-").then(|| File::options().write(true).open(hog)).transpose()?;
                let (from, pause) = ((*from).to_owned(), milliseconds(pause_ms)?);
                let mut backend = Backend { from, to, stream: None, hog, pause };
                backend.connect()?;
                self.0.push(backend);
            }
            // Nobody keeps it from asking.
            ["first"] => schedule(libc::SCHED_FIFO, 2)?,
            ["serve", rounds, answer, parts, hog_each, connections] => {
                let client = client.context("nobody is connected")?;
                let way = Way {
                    answer: answer.parse()?,
                    parts: parts.parse()?,
                    is_new_each_time: *connections == "new",
                };
                let hog_each: u32 = hog_each.parse()?;
                for round in 1..=rounds.parse::<u32>()? {
                    self.serve(client, &way, round % hog_each == 0)?;
                }
            }
            _ => bail!("unknown command"),
        }
        Ok(self.0.len() as u64)
    }

    /// Asks all services for one request of the client's, one after the other, and answers.
    fn serve(&mut self, mut client: &TcpStream, way: &Way, has_hog: bool) -> Result<()> {
        let mut request = [0; REQUEST];
        client.read_exact(&mut request)?;
        for backend in &mut self.0 {
            if backend.stream.is_none() {
                backend.connect()?;
            }
            if let Some(hog) = backend.hog.as_mut().filter(|_| has_hog) {
                hog.write_all(b"h")?;
            }
            let stream = backend.stream.as_mut().context("just connected")?;
            for part in request.chunks(REQUEST / way.parts) {
                stream.write_all(part)?;
            }
            way.take_answer(stream, backend.pause)?;
            if way.is_new_each_time {
                backend.stream = None;
            }
        }
        client.write_all(&request)?;
        Ok(())
    }
}

/// How a gateway asks.
struct Way {
    /// Bytes of an answer.
    answer: usize,
    /// Writes of a request.
    parts: usize,
    /// Whether each request has a connection of its own.
    is_new_each_time: bool,
}

impl Way {
    fn take_answer(&self, stream: &mut TcpStream, pause: Duration) -> Result<()> {
        let mut buffer = vec![0; if pause.is_zero() { 65_536 } else { SMALL_BUFFER }];
        let mut left = self.answer;
        while left > 0 {
            if !pause.is_zero() {
                sleep(pause);
            }
            let read = stream.read(&mut buffer)?;
            left = left.checked_sub(read).filter(|_| read > 0).context("not the answer")?;
        }
        Ok(())
    }
}

/// Answers requests, with a fault that lasts for `time`: `late` reads late, `work` answers late, `spin` needs a CPU for
/// that, `halves` writes each answer twice,
/// half of it each time, `new` takes a new connection for each request, `accepts-late` likewise and late, and `well` has none.
pub(super) fn serve(
    listener: Option<&TcpListener>,
    stream: Option<&TcpStream>,
    kind: &str,
    rounds: u32,
    answer: usize,
    time: Duration,
) -> Result<u64> {
    let mut request = [0; REQUEST];
    let answer = vec![b'a'; answer];
    for _ in 0..rounds {
        let accepted = match kind {
            "new" | "accepts-late" => {
                let listener = listener.context("not listening")?;
                if kind == "accepts-late" {
                    poll(&mut [PollFd::new(listener.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
                    sleep(time);
                }
                Some(listener.accept().context("accept")?.0)
            }
            _ => None,
        };
        let mut stream = accepted.as_ref().or(stream).context("not connected")?;
        if kind == "late" {
            poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
            sleep(time);
        }
        stream.read_exact(&mut request)?;
        match kind {
            "work" => sleep(time),
            "spin" => spin(time),
            _ => {}
        }
        let parts = if kind == "halves" { 2 } else { 1 };
        for part in answer.chunks(answer.len() / parts) {
            stream.write_all(part)?;
        }
    }
    Ok(rounds.into())
}

/// Takes the CPU for as long, whenever it is asked to by that pipe.
pub(super) fn hog(pipe: &str, time: Duration) -> Result<u64> {
    let mut pipe = File::open(pipe)?;
    schedule(libc::SCHED_FIFO, 1)?;
    let mut times = 0;
    while pipe.read(&mut [0])? > 0 {
        times += 1;
        spin(time);
    }
    Ok(times)
}

fn spin(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Uses a processor for that part of the time, percent, until it is killed.
pub(super) fn load(percent: u64) -> Result<u64> {
    const PERIOD_MS: u64 = 10;
    loop {
        spin(Duration::from_micros(PERIOD_MS * 10 * percent));
        sleep(Duration::from_micros(PERIOD_MS * 10 * (100 - percent)));
    }
}

/// N requests to a gateway, with a pause after each.
pub(super) fn ask(mut stream: &TcpStream, rounds: u32, pause: Duration) -> Result<u64> {
    let mut message = [b'r'; REQUEST];
    for _ in 0..rounds {
        stream.write_all(&message)?;
        stream.read_exact(&mut message)?;
        sleep(pause);
    }
    Ok(rounds.into())
}

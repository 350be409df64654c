//! Mixed traffic: many connections at a time, of random sizes and paces, each with a log of what it did.

use std::{
    fmt::Write as _,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    thread::{self, sleep},
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::process::PATIENCE;

const MAX_MESSAGE: usize = 64 * 1024;
/// What begins each request: length of the rest, length of the reply, the server's chunk and pause.
const HEADER: usize = 16;

/// Random numbers that a seed repeats (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() >> 32).unwrap_or(0) % end
    }

    /// From 1 to [`MAX_MESSAGE`], small ones as often as large ones.
    fn size(&mut self) -> usize {
        let limit = 1 << self.below(17);
        (limit / 2 + self.below(limit)).clamp(1, MAX_MESSAGE)
    }

    /// How a reader takes its bytes: the most at a time, and a pause before each.
    fn pace(&mut self) -> (usize, Duration) {
        if self.below(8) == 0 {
            (MAX_MESSAGE / 8 + self.below(MAX_MESSAGE), Duration::from_millis(5))
        } else {
            (64 + self.size(), Duration::ZERO)
        }
    }
}

/// What one connection did, seen from the side that opened it.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) near: SocketAddr,
    pub(crate) far: SocketAddr,
    /// Payload bytes there and back; both ends have read all of them.
    pub(crate) sent: u64,
    pub(crate) read: u64,
    /// Before connecting and after closing, ns since 1970.
    pub(crate) opened: i64,
    pub(crate) closed: i64,
}

impl Flow {
    fn write(&self, log: &mut String) -> Result<()> {
        let Self { near, far, sent, read, opened, closed } = self;
        Ok(writeln!(log, "{near} {far} {sent} {read} {opened} {closed}")?)
    }

    /// The flows of a log that [`play`] wrote.
    pub(crate) fn parse_log(log: &str) -> Result<Vec<Self>> {
        let parse = |line: &str| -> Result<Self> {
            let words: Vec<_> = line.split(' ').collect();
            let [near, far, sent, read, opened, closed] = words[..] else { bail!("not a flow: {line:?}") };
            Ok(Self {
                near: near.parse()?,
                far: far.parse()?,
                sent: sent.parse()?,
                read: read.parse()?,
                opened: opened.parse()?,
                closed: closed.parse()?,
            })
        };
        log.lines().map(parse).collect()
    }
}

/// Serves all connections to `address` until the process ends; returns the port.
pub(super) fn serve(address: IpAddr) -> Result<u64> {
    let listener = TcpListener::bind((address, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            thread::spawn(move || {
                if let Err(error) = answer(stream) {
                    eprintln!("a server of mixed traffic: {error:#}");
                }
            });
        }
    });
    Ok(port.into())
}

fn answer(mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let reply = vec![b'r'; MAX_MESSAGE];
    let mut header = [0; HEADER];
    loop {
        match stream.read_exact(&mut header) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        }
        let mut numbers = header.chunks_exact(4).map(|bytes| {
            let number: [u8; 4] = bytes.try_into().unwrap_or_default();
            usize::try_from(u32::from_le_bytes(number)).unwrap_or(0)
        });
        let mut number = || numbers.next().context("a short header");
        let (rest, len, chunk, pause) = (number()?, number()?, number()?, number()?);
        read(&mut stream, rest, chunk, Duration::from_millis(pause.try_into()?))?;
        stream.write_all(&reply[..len])?;
    }
}

fn read(stream: &mut TcpStream, mut bytes: usize, chunk: usize, pause: Duration) -> Result<()> {
    let mut buffer = vec![0; chunk];
    while bytes > 0 {
        if !pause.is_zero() {
            sleep(pause);
        }
        let read = stream.read(&mut buffer[..chunk.min(bytes)])?;
        ensure!(read > 0, "the other end closed");
        bytes -= read;
    }
    Ok(())
}

/// Opens connections to `servers`, `threads` at a time, until the time is over. Writes the log of them to a
/// file and returns their number.
pub(super) fn play(
    seed: u64,
    time: Duration,
    threads: u64,
    servers: &[SocketAddr],
    log: &str,
) -> Result<u64> {
    let deadline = Instant::now() + time;
    let logs: Vec<_> = thread::scope(|scope| {
        let start = |thread: u64| {
            let mut random = Random::new(seed.wrapping_add(thread));
            scope.spawn(move || -> Result<String> {
                let mut log = String::new();
                while Instant::now() < deadline {
                    let server = servers[random.below(servers.len())];
                    connect_and_talk(&mut random, server)?.write(&mut log)?;
                }
                Ok(log)
            })
        };
        let running: Vec<_> = (0..threads).map(start).collect();
        running.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?).collect()
    });
    let all = logs.into_iter().collect::<Result<String>>()?;
    fs::write(log, &all)?;
    Ok(all.lines().count().try_into()?)
}

fn connect_and_talk(random: &mut Random, server: SocketAddr) -> Result<Flow> {
    let opened = now()?;
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(random.below(2) == 0)?;
    let mut flow = Flow { near: stream.local_addr()?, far: server, sent: 0, read: 0, opened, closed: 0 };
    for _ in 0..=random.below(6) {
        let (len, reply) = (random.size(), random.size());
        let (chunk, pause) = random.pace();
        let mut request = vec![b'q'; HEADER + len];
        let numbers = [len, reply, chunk, usize::try_from(pause.as_millis())?];
        for (place, number) in request.chunks_exact_mut(4).zip(numbers) {
            place.copy_from_slice(&u32::try_from(number)?.to_le_bytes());
        }
        let mut rest = request.as_slice();
        while !rest.is_empty() {
            let piece = if random.below(2) == 0 { rest.len() } else { random.size().min(rest.len()) };
            stream.write_all(&rest[..piece])?;
            rest = &rest[piece..];
        }
        let (chunk, pause) = random.pace();
        read(&mut stream, reply, chunk, pause)?;
        flow.sent += u64::try_from(request.len())?;
        flow.read += u64::try_from(reply)?;
    }
    drop(stream);
    flow.closed = now()?;
    Ok(flow)
}

/// ns since 1970.
fn now() -> Result<i64> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos().try_into()?)
}

//! The parties of a system of services: a gateway that calls several of them for each request, services with a fault each, and a process
//! that takes their CPU.

use std::{
    collections::VecDeque,
    fs::File,
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
    thread::{self, sleep},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sched::{CloneFlags, setns},
    sys::{
        prctl,
        signal::{SigHandler, Signal, signal},
        socket::{
            AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, listen, setsockopt,
            socket, sockopt,
        },
    },
    unistd::{ForkResult, fork},
};

use super::{milliseconds, processor::schedule};
use crate::{net::on_thread, process::PATIENCE};

/// Bytes of a request.
const REQUEST: usize = 200;

/// Of a reader that reads slowly.
const SMALL_BUFFER: usize = 16_384;

/// Threads or processes of a server that has several from the start.
const WORKERS: usize = 4;
/// Sockets that are made at once: for four services no more than a process may have.
const SOCKETS: usize = 200;
/// Requests that come at once, and how long later the next ones do; and a buffer that has no room for them.
const CROWD: usize = 60;
const CROWD_EACH: Duration = Duration::from_millis(100);
const LITTLE_ROOM: usize = 4_096;
/// One of N datagrams has no answer if that is the fault, and how long a client waits for it.
const LOST_EACH: usize = 6;
const LOST_AFTER: Duration = Duration::from_millis(1_200);

/// The listening sockets of processes that share a port (`SO_REUSEPORT`): the kernel gives each connection to one of them.
pub(super) fn shards(address: SocketAddr) -> Result<Vec<TcpListener>> {
    let one = || -> Result<TcpListener> {
        let shard = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&shard, sockopt::ReusePort, &true)?;
        // Connections of the service before may wait for their end (TIME-WAIT).
        setsockopt(&shard, sockopt::ReuseAddr, &true)?;
        bind(shard.as_raw_fd(), &SockaddrStorage::from(address))?;
        listen(&shard, Backlog::MAXCONN)?;
        Ok(shard.into())
    };
    (0..WORKERS).map(|_| one()).collect()
}

/// What a gateway knows of a service.
struct Backend {
    /// The network namespace to connect from, or `-`.
    from: String,
    to: SocketAddr,
    /// Sockets of that namespace for connections to come: going there for each would be most of the work.
    sockets: Vec<OwnedFd>,
    /// Those that it takes in turn.
    streams: VecDeque<TcpStream>,
    /// In their place.
    datagrams: Option<UdpSocket>,
    /// Written to before each request: a process with a higher priority than the service waits for that.
    hog: Option<File>,
    /// Before each read of an answer. A slow reader has little room.
    pause: Duration,
}

/// A gateway.
#[derive(Default)]
pub(super) struct Gateway(Vec<Backend>);

impl Backend {
    /// A socket of the namespace.
    fn socket(&mut self, kind: SockType, count: usize) -> Result<OwnedFd> {
        if self.sockets.is_empty() {
            let one = || socket(AddressFamily::Inet, kind, SockFlag::SOCK_CLOEXEC, None);
            self.sockets = on_thread(|| {
                if self.from != "-" {
                    let namespace = File::open(&self.from)?;
                    setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET).context("setns")?;
                }
                Ok((0..count).map(|_| one()).collect::<Result<_, _>>()?)
            })?;
        }
        let socket = self.sockets.pop().context("just made")?;
        connect(socket.as_raw_fd(), &SockaddrStorage::from(self.to)).map(|()| socket).context("connect")
    }

    fn connect(&mut self) -> Result<()> {
        let stream = TcpStream::from(self.socket(SockType::Stream, SOCKETS)?);
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        if !self.pause.is_zero() {
            setsockopt(&stream, sockopt::RcvBuf, &SMALL_BUFFER)?;
        }
        self.streams.push_back(stream);
        Ok(())
    }

    fn connect_datagrams(&mut self) -> Result<()> {
        let socket = UdpSocket::from(self.socket(SockType::Datagram, 1)?);
        socket.set_read_timeout(Some(LOST_AFTER))?;
        self.datagrams = Some(socket);
        Ok(())
    }

    fn ask(&mut self, request: &[u8], way: &Way) -> Result<()> {
        if let Some(socket) = &self.datagrams {
            socket.send(request)?;
            return match socket.recv(&mut vec![0; way.answer]) {
                Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error.into()),
                _ => Ok(()),
            };
        }
        if self.streams.is_empty() {
            self.connect()?;
        }
        let mut stream = self.streams.pop_front().context("just connected")?;
        for part in request.chunks(REQUEST / way.parts) {
            stream.write_all(part)?;
        }
        way.take_answer(&mut stream, self.pause)?;
        if !way.is_new_each_time {
            self.streams.push_back(stream);
        }
        Ok(())
    }
}

impl Gateway {
    pub(super) fn perform(&mut self, client: Option<&TcpStream>, command: &[&str]) -> Result<u64> {
        match command {
            ["knows", from, address, port, pause_ms, hog, connections] => {
                let to = SocketAddr::new(address.parse::<IpAddr>()?, port.parse()?);
                let hog = (*hog != "-").then(|| File::options().write(true).open(hog)).transpose()?;
                let (from, pause) = ((*from).to_owned(), milliseconds(pause_ms)?);
                let mut backend = Backend {
                    from,
                    to,
                    sockets: Vec::new(),
                    streams: VecDeque::new(),
                    datagrams: None,
                    hog,
                    pause,
                };
                match *connections {
                    "datagrams" => backend.connect_datagrams()?,
                    count => (0..count.parse::<usize>()?).try_for_each(|_| backend.connect())?,
                }
                self.0.push(backend);
            }
            // Nothing keeps it from sending requests.
            ["first"] => schedule(libc::SCHED_FIFO, 2)?,
            ["serve", rounds, answer, parts, hog_each, connections] => {
                let client = client.context("no client is connected")?;
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
            if let Some(hog) = backend.hog.as_mut().filter(|_| has_hog) {
                hog.write_all(b"h")?;
            }
            backend.ask(&request, way)?;
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

/// Sends many requests at once by datagrams, and again, and takes what comes back, until it is killed. The service can't interrupt it.
pub(super) fn crowd(to: SocketAddr) -> Result<u64> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(to)?;
    socket.set_nonblocking(true)?;
    schedule(libc::SCHED_FIFO, 1)?;
    loop {
        for _ in 0..CROWD {
            socket.send(&[0; REQUEST])?;
        }
        sleep(CROWD_EACH);
        while socket.recv(&mut [0; REQUEST]).is_ok() {}
    }
}

/// Answers requests, with a fault that lasts for `time`: `late` reads late, `work` answers late, `spin` needs a CPU for that,
/// `halves` writes each answer twice, half of it each time, `accepts-late` takes connections late, `forgets` leaves some without an
/// answer, `overflows` has little room for requests, and `well` has none.
pub(super) struct Service<'a> {
    pub(super) fault: &'a str,
    pub(super) answer: Vec<u8>,
    pub(super) time: Duration,
}

impl Service<'_> {
    /// N requests of that connection, or each of a new one.
    pub(super) fn alone(
        &self,
        listener: Option<&TcpListener>,
        stream: Option<&TcpStream>,
        rounds: u32,
    ) -> Result<u64> {
        for _ in 0..rounds {
            let accepted = match stream {
                Some(_) => None,
                None => Some(self.accept(listener.context("not listening")?)?),
            };
            ensure!(self.answer_one(accepted.as_ref().or(stream).context("one of them")?)?, "no request");
        }
        Ok(rounds.into())
    }

    /// Requests of all who come, until it is killed.
    pub(super) fn serve(&self, listener: &TcpListener, manner: &str) -> Result<u64> {
        let take_all = || -> Result<()> {
            loop {
                self.converse(&self.accept(listener)?)?;
            }
        };
        match manner {
            "threads" => thread::scope(|scope| {
                loop {
                    let stream = self.accept(listener)?;
                    scope.spawn(move || self.converse(&stream).expect("a conversation"));
                }
            }),
            "pool" => thread::scope(|scope| {
                let all: Vec<_> = (0..WORKERS).map(|_| scope.spawn(take_all)).collect();
                all.into_iter().try_for_each(|one| one.join().expect("it ends with an error at most"))
            })
            .map(|()| 0),
            "workers" => {
                (1..WORKERS).try_for_each(|_| fork_off(take_all))?;
                take_all().map(|()| 0)
            }
            "forks" => loop {
                let stream = self.accept(listener)?;
                fork_off(|| self.converse(&stream))?;
            },
            "polls" => self.poll_all(listener),
            _ => bail!("unknown manner"),
        }
    }

    /// A process for each of these sockets, until it is killed.
    pub(super) fn serve_shards(&self, shards: &[TcpListener]) -> Result<u64> {
        let [first, others @ ..] = shards else { bail!("not listening") };
        others.iter().try_for_each(|shard| fork_off(|| self.poll_all(shard).map(drop)))?;
        self.poll_all(first)
    }

    /// Requests by datagrams, until it is killed.
    pub(super) fn answer_datagrams(&self, socket: &UdpSocket) -> Result<u64> {
        let mut request = [0; REQUEST];
        if self.fault == "overflows" {
            setsockopt(socket, sockopt::RcvBuf, &LITTLE_ROOM)?;
        }
        for number in 1.. {
            self.read_late(socket)?;
            let (_, client) = socket.recv_from(&mut request)?;
            self.work();
            if self.fault != "forgets" || number % LOST_EACH > 0 {
                socket.send_to(&self.answer, client)?;
            }
        }
        Ok(0)
    }

    /// One thread for all connections.
    fn poll_all(&self, listener: &TcpListener) -> Result<u64> {
        let mut streams: Vec<TcpStream> = Vec::new();
        loop {
            let mut all = vec![PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
            all.extend(streams.iter().map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLIN)));
            poll(&mut all, PollTimeout::NONE)?;
            let ready: Vec<bool> = all.iter().map(|of| of.any() == Some(true)).collect();
            let mut ended = Vec::new();
            for (stream, _) in streams.iter().zip(&ready[1..]).filter(|(_, ready)| **ready) {
                if !self.answer_one(stream)? {
                    ended.push(stream.as_raw_fd());
                }
            }
            streams.retain(|stream| !ended.contains(&stream.as_raw_fd()));
            if ready[0] {
                streams.push(self.accept(listener)?);
            }
        }
    }

    fn accept(&self, listener: &TcpListener) -> Result<TcpStream> {
        if self.fault == "accepts-late" {
            wait_for(listener)?;
            sleep(self.time);
        }
        let (stream, _) = listener.accept().context("accept")?;
        stream.set_nodelay(self.fault != "halves")?;
        Ok(stream)
    }

    fn converse(&self, stream: &TcpStream) -> Result<()> {
        while self.answer_one(stream)? {}
        Ok(())
    }

    /// Whether there was a request.
    fn answer_one(&self, mut stream: &TcpStream) -> Result<bool> {
        self.read_late(stream)?;
        match stream.read_exact(&mut [0; REQUEST]) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
            read => read?,
        }
        self.work();
        let parts = if self.fault == "halves" { 2 } else { 1 };
        for part in self.answer.chunks(self.answer.len() / parts) {
            stream.write_all(part)?;
        }
        Ok(true)
    }

    fn read_late(&self, socket: &impl AsFd) -> Result<()> {
        if self.fault == "late" {
            wait_for(socket)?;
            sleep(self.time);
        }
        Ok(())
    }

    fn work(&self) {
        match self.fault {
            "work" => sleep(self.time),
            "spin" => spin(self.time),
            _ => {}
        }
    }
}

fn wait_for(socket: &impl AsFd) -> Result<()> {
    poll(&mut [PollFd::new(socket.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
    Ok(())
}

/// Has a child do it, which ends with its parent.
fn fork_off(work: impl FnOnce() -> Result<()>) -> Result<()> {
    // No child is waited for.
    // SAFETY: no function of ours is called at the signal.
    unsafe { signal(Signal::SIGCHLD, SigHandler::SigIgn) }?;
    // SAFETY: this process has one thread, so that no lock can be held in the child for good.
    if let ForkResult::Parent { .. } = unsafe { fork() }? {
        return Ok(());
    }
    let done = prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into).and_then(|()| work());
    // SAFETY: ends the process; what its parent began is not for it to end.
    unsafe { libc::_exit(done.is_err().into()) }
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

/// Requests of a client that does not wait for each answer before it sends the next one.
const PIPELINED: usize = 3;

/// N requests to a gateway: `one` at a time, or some at once, by a call for each (`row`) or by one for all of them (`burst`), with a
/// pause when all answers are read.
pub(super) fn ask(mut stream: &TcpStream, rounds: usize, pause: Duration, manner: &str) -> Result<u64> {
    let at_once = if manner == "one" { 1 } else { PIPELINED };
    let mut messages = [b'r'; REQUEST * PIPELINED];
    for round in (0..rounds).step_by(at_once) {
        let bytes = &mut messages[..REQUEST * at_once.min(rounds - round)];
        let len = if manner == "burst" { bytes.len() } else { REQUEST };
        bytes.chunks(len).try_for_each(|part| stream.write_all(part))?;
        stream.read_exact(bytes)?;
        sleep(pause);
    }
    Ok(u64::try_from(rounds)?)
}

//! The two ends of a conversation, each a process of its own that does what it is told.
//!
//! A peer is this binary again. It reads commands from standard input, one a line, and answers each with
//! one line, `ok …` or `error …`. It ends when its standard input does.

pub(crate) mod alone;
mod calls;
mod crafted;
mod delegate;
mod dying;
mod exchanges;
pub(crate) mod forge;
mod hostile;
mod many;
pub(crate) mod multipath;
mod party;
pub(crate) mod processor;
mod receive;
mod ring;
mod send;
mod tls;
pub(crate) mod traffic;
mod udp;
mod ways;

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    fs,
    io::{self, BufRead as _, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::{
        fd::FromRawFd as _,
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    process::{Child, ChildStdin, Command, ExitCode, Stdio},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::{
    prctl,
    socket::{setsockopt, sockopt},
};

use crate::{
    lines::Line,
    net::{Path, on_thread},
    process::{Lines, PATIENCE, spawn_isolated, until},
};
pub(crate) use delegate::{CHILD, HEIR};
pub(crate) use forge::checksum;

/// First argument of a peer process.
pub(crate) const ROLE: &str = "peer";

/// Name of the process that connects.
pub(crate) const CLIENT: &[u8] = b"nl-client";
/// Name of the process that accepts.
pub(crate) const SERVER: &[u8] = b"nl-server";

/// The peer process as its parent sees it. Killed when dropped.
pub(crate) struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: Lines,
    comm: OsString,
    patience: Duration,
}

impl Peer {
    /// Starts a peer with that name in the calling thread's network namespace.
    pub(crate) fn spawn(comm: &[u8]) -> Result<Self> {
        Self::spawn_by(comm, |command| Ok(command.spawn()?))
    }

    /// Starts a peer with that process id, which is free: its process has ended, and its parent has waited for it.
    pub(crate) fn spawn_as(comm: &[u8], pid: u32) -> Result<Self> {
        let mut found = None;
        until(PATIENCE, || {
            give_next(pid)?;
            found = Some(Self::spawn(comm)?).filter(|peer| peer.pid() == pid);
            Ok(found.is_some())
        })
        .with_context(|| format!("no process gets id {pid}"))?;
        found.context("there is one")
    }

    /// Starts a peer by a program that executes what its arguments end with.
    pub(crate) fn spawn_under(comm: &[u8], mut program: Command) -> Result<Self> {
        program.arg(env::current_exe()?);
        Self::start(comm, program, |command| Ok(command.spawn()?))
    }

    fn spawn_by(comm: &[u8], spawn: impl FnOnce(&mut Command) -> Result<Child>) -> Result<Self> {
        Self::start(comm, Command::new(env::current_exe()?), spawn)
    }

    fn start(
        comm: &[u8],
        mut command: Command,
        spawn: impl FnOnce(&mut Command) -> Result<Child>,
    ) -> Result<Self> {
        let comm = OsStr::from_bytes(comm);
        command.arg(ROLE).arg(comm).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = spawn(&mut command).context("cannot start a peer")?;
        let commands = child.stdin.take().context("stdin is a pipe")?;
        let answers = Lines::follow(child.stdout.take().context("stdout is a pipe")?);
        Ok(Self { child, commands, answers, comm: comm.to_owned(), patience: PATIENCE })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The name, as a JSON line can show it.
    pub(crate) fn comm(&self) -> String {
        self.comm.to_string_lossy().into_owned()
    }

    /// Gives a command without waiting for the answer; [`Self::answer`] does.
    pub(crate) fn tell(&mut self, command: &str) -> Result<()> {
        writeln!(self.commands, "{command}").with_context(|| format!("peer does not take {command:?}"))
    }

    /// The number that answers the oldest command that is not answered yet.
    pub(crate) fn answer(&self) -> Result<u64> {
        let comm = self.comm();
        let line = self.answers.next(self.patience).with_context(|| format!("peer {comm}"))?;
        let line = line.with_context(|| format!("peer {comm} has ended"))?;
        match line.split_once(' ') {
            Some(("ok", number)) => Ok(number.parse()?),
            _ => bail!("peer {comm}: {line}"),
        }
    }

    /// Gives a command and waits for its answer.
    pub(crate) fn ask(&mut self, command: &str) -> Result<u64> {
        self.tell(command)?;
        self.answer().with_context(|| format!("asked to {command:?}"))
    }

    /// This is in a call to receive, by the command `reads`, when `hog` takes CPU 1, which is this one's; `send`, which sends what it waits
    /// for, is done at least `time` before it gets that CPU back. It has `settle` to get into its call.
    pub(crate) fn held_up(
        &mut self,
        reads: &str,
        settle: Duration,
        (hog, time): (&mut Self, Duration),
        send: impl FnOnce() -> Result<()> + Send,
    ) -> Result<()> {
        self.tell(reads)?;
        // It is in its call by then, and not kept from calling by the other one.
        sleep(settle);
        hog.keep_cpu(time, send)?;
        self.answer()?;
        Ok(())
    }

    /// Keeps CPU 1 to itself, from before `work` until at least `time` after it.
    pub(crate) fn keep_cpu<T: Send>(
        &mut self,
        time: Duration,
        work: impl FnOnce() -> Result<T> + Send,
    ) -> Result<T> {
        on_thread(|| {
            // The other one, so that this is not held up too.
            processor::pin(0)?;
            self.tell("hog 1")?;
            until(PATIENCE, || Ok(processor::is_first(self.pid())))?;
            let done = work();
            sleep(time);
            // Any command ends that.
            self.ask("pin 1")?;
            self.answer()?;
            done
        })
    }

    /// How long it may take for an answer.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Kills it and waits for its end.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Fails only when it has ended by itself.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The next process or thread gets this id, unless another one that begins just now does.
fn give_next(id: u32) -> Result<()> {
    let before = id.checked_sub(1).context("no id")?;
    fs::write("/proc/sys/kernel/ns_last_pid", before.to_string()).context("telling the last id")
}

/// A client and a server, connected.
pub(crate) struct Pair {
    pub(crate) client: Peer,
    pub(crate) server: Peer,
    /// The client's address and port.
    pub(crate) near: SocketAddr,
    /// The server's address and port.
    pub(crate) far: SocketAddr,
    /// Whether something of this machine lies between that sends packets on, so that they enter its stack again.
    pub(crate) enters_twice: bool,
}

impl Pair {
    /// Two new peers that are connected over `path`.
    pub(crate) fn connect(path: &Path) -> Result<Self> {
        let mut pair = Self::prepare(path, CLIENT, SERVER)?;
        pair.open(path)?;
        Ok(pair)
    }

    /// Like [`Self::connect`], the server being the first process of a PID namespace of its own.
    pub(crate) fn connect_isolated(path: &Path) -> Result<Self> {
        let server = path.far(|| Peer::spawn_by(SERVER, spawn_isolated))?;
        let mut pair = Self::of(path, path.near(|| Peer::spawn(CLIENT))?, server)?;
        pair.open(path)?;
        Ok(pair)
    }

    /// Two new peers, the server listening, without a connection yet.
    pub(crate) fn prepare(path: &Path, client: &[u8], server: &[u8]) -> Result<Self> {
        Self::of(path, path.near(|| Peer::spawn(client))?, path.far(|| Peer::spawn(server))?)
    }

    fn of(path: &Path, client: Peer, mut server: Peer) -> Result<Self> {
        let (near, far) = path.addresses();
        let port = server.ask(&format!("listen {far}"))?.try_into()?;
        let (near, far) = (SocketAddr::new(near, 0), SocketAddr::new(far, port));
        Ok(Self { client, server, near, far, enters_twice: path.enters_twice() })
    }

    /// Two new peers with IPv6 sockets that are connected over an IPv4 `path`.
    pub(crate) fn connect_mapped(path: &Path) -> Result<Self> {
        let mapped = match path.addresses().1 {
            IpAddr::V4(address) => address.to_ipv6_mapped().into(),
            address @ IpAddr::V6(_) => address,
        };
        let mut pair = Self::prepare(path, CLIENT, SERVER)?;
        pair.far.set_port(pair.server.ask(&format!("listen {mapped}"))?.try_into()?);
        pair.open_by(mapped)?;
        Ok(pair)
    }

    /// Two new peers, of which the client knows the server by another address than its own.
    pub(crate) fn connect_by(path: &Path, address: IpAddr) -> Result<Self> {
        let mut pair = Self::prepare(path, CLIENT, SERVER)?;
        pair.open_by(address)?;
        Ok(pair)
    }

    /// Connects prepared peers.
    pub(crate) fn open(&mut self, path: &Path) -> Result<()> {
        self.open_by(path.addresses().1)
    }

    fn open_by(&mut self, address: IpAddr) -> Result<()> {
        let port = self.client.ask(&format!("connect {address} {}", self.far.port()))?;
        self.near.set_port(port.try_into()?);
        self.server.ask("accept")?;
        Ok(())
    }

    /// `rounds` requests of `len` bytes, each answered by as many bytes, without a pause.
    pub(crate) fn converse(&mut self, rounds: u32, len: u32) -> Result<()> {
        self.begin(rounds, len)?;
        self.finish()
    }

    /// Starts what [`Self::converse`] does.
    pub(crate) fn begin(&mut self, rounds: u32, len: u32) -> Result<()> {
        self.server.tell(&format!("serve {rounds} {len} 0"))?;
        self.client.tell(&format!("request {rounds} {len}"))
    }

    /// Waits for the end of what [`Self::begin`] started.
    pub(crate) fn finish(&self) -> Result<()> {
        self.client.answer().context("requesting")?;
        self.server.answer().context("serving")?;
        Ok(())
    }

    /// How long the whole of a conversation may take.
    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.client.set_patience(patience);
        self.server.set_patience(patience);
    }

    /// Closes both ends, the client's first.
    pub(crate) fn close(&mut self) -> Result<()> {
        self.client.ask("close")?;
        self.server.ask("close")?;
        Ok(())
    }

    /// Whether the packet went from the client to the server.
    pub(crate) fn is_request(&self, line: &Line) -> bool {
        self.near == SocketAddr::new(line.saddr, line.sport)
            && self.far == SocketAddr::new(line.daddr, line.dport)
    }

    /// Whether the packet went from the server to the client.
    pub(crate) fn is_reply(&self, line: &Line) -> bool {
        self.far == SocketAddr::new(line.saddr, line.sport)
            && self.near == SocketAddr::new(line.daddr, line.dport)
    }

    /// Whether the packet is one of this connection's.
    pub(crate) fn owns(&self, line: &Line) -> bool {
        self.is_request(line) || self.is_reply(line)
    }
}

/// The peer process itself.
pub(crate) fn main() -> ExitCode {
    match obey() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peer: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn obey() -> Result<()> {
    let comm = env::args_os().nth(2).context("a peer needs a name")?.into_vec();
    prctl::set_name(&CString::new(comm)?)?;
    let mut role = Role::default();
    if let Some(connection) = env::args_os().nth(3) {
        let descriptor = connection.to_str().context("a descriptor is a number")?.parse()?;
        // SAFETY: the caller that gives the number leaves the descriptor to this program.
        role.stream = Some(unsafe { TcpStream::from_raw_fd(descriptor) });
    }
    for command in io::stdin().lock().lines() {
        let command = command?;
        match role.perform(&command.split(' ').collect::<Vec<_>>()) {
            Ok(number) => println!("ok {number}"),
            Err(error) => println!("error {command:?}: {error:#}"),
        }
    }
    Ok(())
}

/// What a peer holds.
#[derive(Default)]
struct Role {
    listener: Option<TcpListener>,
    stream: Option<TcpStream>,
    many: many::Many,
    gateway: party::Gateway,
    datagrams: Option<UdpSocket>,
    /// Sockets that listen at one port.
    shards: Vec<TcpListener>,
    exchanges: exchanges::Log,
    udp: udp::Udp,
    dying: dying::Dying,
    crafted: crafted::Crafted,
    hostile: hostile::Hostile,
}

impl Role {
    fn perform(&mut self, command: &[&str]) -> Result<u64> {
        match command {
            ["listen", address] => self.perform(&["listen", address, "0"]),
            ["listen", address, port] => {
                self.listen(TcpListener::bind((address.parse::<IpAddr>()?, port.parse()?))?)
            }
            ["listen-multipath", address] => self.listen(multipath::listener(address.parse()?)?),
            ["connect-multipath", address, port] => {
                let stream = multipath::stream((address.parse::<IpAddr>()?, port.parse()?).into())?;
                self.take(stream)
            }
            ["accept"] => {
                let (stream, _) = self.listener.as_ref().context("not listening")?.accept()?;
                self.take(stream)
            }
            ["connect", address, port] => {
                self.take(TcpStream::connect((address.parse::<IpAddr>()?, port.parse()?))?)
            }
            // Inherited by the connections accepted later, whose window follows from it.
            ["transparent"] => {
                setsockopt(self.listener.as_ref().context("not listening")?, sockopt::IpTransparent, &true)?;
                Ok(0)
            }
            ["receive-buffer", bytes] => {
                let listener = self.listener.as_ref().context("not listening")?;
                setsockopt(listener, sockopt::RcvBuf, &bytes.parse()?)?;
                Ok(0)
            }
            ["send-buffer", bytes] => {
                setsockopt(self.stream()?, sockopt::SndBufForce, &bytes.parse()?)?;
                Ok(0)
            }
            ["serve", rounds, len, sleep_ms] => {
                self.serve(rounds.parse()?, len.parse()?, milliseconds(sleep_ms)?)
            }
            ["request", rounds, len] => self.request(rounds.parse()?, len.parse()?),
            ["serve-timed", rounds, len, pause_ms] => {
                let (mut log, pause) = (self.exchanges, milliseconds(pause_ms)?);
                let answered = log.serve(self.stream()?, rounds.parse()?, len.parse()?, pause)?;
                self.exchanges = log;
                Ok(answered)
            }
            ["request-timed", rounds, len] => {
                let mut log = self.exchanges;
                let asked = log.request(self.stream()?, rounds.parse()?, len.parse()?)?;
                self.exchanges = log;
                Ok(asked)
            }
            ["bound", name] => self.exchanges.bound(name),
            ["write", bytes] => {
                let bytes = bytes.parse()?;
                self.stream()?.write_all(&vec![b'w'; bytes])?;
                Ok(bytes.try_into()?)
            }
            ["write-after", ms, bytes] => {
                sleep(milliseconds(ms)?);
                self.perform(&["write", bytes])
            }
            ["write-small", writes] => self.write_small(writes.parse()?),
            ["read", bytes, chunk, sleep_ms] => {
                self.read(bytes.parse()?, chunk.parse()?, milliseconds(sleep_ms)?)
            }
            ["alone", log, plan @ ..] => alone::Plan::parse(plan)?.ask(self.stream()?, log),
            ["serve-traffic", address] => traffic::serve(address.parse()?),
            ["play-traffic", seed, ms, threads, log, servers @ ..] => {
                let servers = servers.iter().map(|server| Ok(server.parse()?)).collect::<Result<Vec<_>>>()?;
                traffic::play(seed.parse()?, milliseconds(ms)?, threads.parse()?, &servers, log)
            }
            ["take", way, bytes, sleep_ms] => {
                sleep(milliseconds(sleep_ms)?);
                receive::take(self.stream()?, way, bytes.parse()?)
            }
            ["pin", cpu] => processor::pin(cpu.parse()?),
            ["hog", cpu] => processor::hog(cpu.parse()?),
            ["map", bytes] => receive::map(self.stream()?, bytes.parse()?),
            ["peek", bytes] => receive::peek(self.stream()?, bytes.parse()?),
            ["give", way, bytes] => send::give(self.stream()?, way, bytes.parse()?),
            // The firewall mark of what it sends.
            ["mark", value] => {
                setsockopt(self.stream()?, sockopt::Mark, &value.parse()?)?;
                Ok(0)
            }
            ["cork", on] => {
                send::cork(self.stream()?, *on == "yes")?;
                Ok(0)
            }
            ["thread", command @ ..] => delegate::thread(self, command),
            ["thread-as", id, command @ ..] => delegate::thread_as(self, id.parse()?, command),
            ["child-as", pid, command @ ..] => delegate::child_as(self, pid.parse()?, command),
            ["named", name, command @ ..] => delegate::named(self, name, command),
            // The process is named as its first thread, which this is.
            ["rename", name] => {
                prctl::set_name(&CString::new(*name)?)?;
                Ok(0)
            }
            ["duplex", messages, len] => delegate::duplex(self.stream()?, messages.parse()?, len.parse()?),
            ["child", command @ ..] => delegate::child(self, command),
            ["pass", command @ ..] => delegate::pass(self, command),
            ["heir", command @ ..] => delegate::heir(self, command),
            ["encrypt", end] => {
                tls::encrypt(self.stream()?, *end == "client")?;
                Ok(0)
            }
            ["delay-small", on] => {
                self.stream()?.set_nodelay(*on == "no")?;
                Ok(0)
            }
            ["needless"] => Ok(tcp_info(self.stream()?)?.tcpi_dsack_dups.into()),
            ["retransmissions"] => Ok(tcp_info(self.stream()?)?.tcpi_total_retrans.into()),
            // Waits until all that was written is acknowledged.
            ["acked"] => {
                let stream = self.stream()?;
                let is_acked = || {
                    let info = tcp_info(stream)?;
                    Ok((info.tcpi_unacked, info.tcpi_notsent_bytes) == (0, 0))
                };
                until(PATIENCE, is_acked)?;
                Ok(0)
            }
            ["round-trip"] => Ok(tcp_info(self.stream()?)?.tcpi_rtt.into()),
            ["reset"] => {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                setsockopt(self.stream()?, sockopt::Linger, &linger)?;
                self.stream = None;
                Ok(0)
            }
            ["pacing-rate", rate] => ways::pace(self.stream()?, rate.parse()?),
            ["forge", offset, bytes] => forge::send(self.stream()?, offset.parse()?, bytes.parse()?),
            ["congestion-control", name] => ways::control_congestion(self.stream()?, name),
            ["write-more", bytes] => ways::write_more(self.stream()?, bytes.parse()?),
            ["fast-queue"] => ways::listen_fast(self.listener.as_ref().context("not listening")?),
            ["connect-with", address, port, bytes] => self
                .take(ways::send_with_syn(SocketAddr::new(address.parse()?, port.parse()?), bytes.parse()?)?),
            ["connect-later", address, port] => {
                self.take(ways::connect_with_first_write(SocketAddr::new(address.parse()?, port.parse()?))?)
            }
            ["data-segments-out"] => Ok(tcp_info(self.stream()?)?.tcpi_data_segs_out.into()),
            // Where a machine stands still for a while, TCP sends again what is not lost.
            ["data-segments-out-once"] => {
                let info = tcp_info(self.stream()?)?;
                Ok((info.tcpi_data_segs_out - info.tcpi_total_retrans).into())
            }
            ["close"] => {
                self.stream = None;
                Ok(0)
            }
            ["write-each", count, bytes] => {
                let message = vec![b'w'; bytes.parse()?];
                for _ in 0..count.parse()? {
                    self.stream()?.write_all(&message)?;
                }
                Ok(0)
            }
            ["socket-calls", threads, rounds] => calls::rounds(threads.parse()?, rounds.parse()?),
            ["socket-mix", threads, rounds] => calls::mix(threads.parse()?, rounds.parse()?),
            ["late-datagram", ms] => calls::wait(milliseconds(ms)?),
            ["gateway", rest @ ..] => self.gateway.perform(self.stream.as_ref(), rest),
            ["ask-gateway", rounds, pause_ms, manner] => {
                party::ask(self.stream()?, rounds.parse()?, milliseconds(pause_ms)?, manner)
            }
            ["listen-shared", address, port] => {
                self.shards = party::shards((address.parse::<IpAddr>()?, port.parse()?).into())?;
                Ok(0)
            }
            ["take-datagrams", address, port] => {
                self.datagrams = Some(UdpSocket::bind((address.parse::<IpAddr>()?, port.parse()?))?);
                Ok(0)
            }
            ["service", fault, answer, ms, manner @ ..] => {
                let service =
                    party::Service { fault, answer: vec![b'a'; answer.parse()?], time: milliseconds(ms)? };
                let (listener, stream) = (self.listener.as_ref(), self.stream.as_ref());
                match manner {
                    ["alone", rounds] => service.alone(listener, stream, rounds.parse()?),
                    ["shards"] => service.serve_shards(&self.shards),
                    ["datagrams"] => {
                        service.answer_datagrams(self.datagrams.as_ref().context("no datagrams")?)
                    }
                    [manner] => service.serve(listener.context("not listening")?, manner),
                    _ => bail!("unknown manner"),
                }
            }
            ["crowd", address, port] => party::crowd((address.parse::<IpAddr>()?, port.parse()?).into()),
            ["load", percent] => party::load(percent.parse()?),
            ["hog-when-asked", pipe, ms] => party::hog(pipe, milliseconds(ms)?),
            ["many", rest @ ..] => self.many.perform(self.listener.as_ref(), rest),
            ["udp", rest @ ..] => self.udp.perform(rest),
            ["crafted", rest @ ..] => self.crafted.perform(self.listener.as_ref(), rest),
            ["hostile", rest @ ..] => self.hostile.perform(rest),
            ["dying", rest @ ..] => self.dying.perform(&self.udp, rest),
            _ => bail!("unknown command"),
        }
    }

    fn listen(&mut self, listener: TcpListener) -> Result<u64> {
        let port = listener.local_addr()?.port();
        self.listener = Some(listener);
        Ok(port.into())
    }

    fn take(&mut self, stream: TcpStream) -> Result<u64> {
        // MPTCP's can't be told before Linux 5.17.
        if stream.set_nodelay(true).is_err_and(|error| error.raw_os_error() != Some(libc::EOPNOTSUPP)) {
            bail!("can't be told not to delay");
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let port = stream.local_addr()?.port();
        self.stream = Some(stream);
        Ok(port.into())
    }

    fn stream(&self) -> Result<&TcpStream> {
        self.stream.as_ref().context("not connected")
    }

    fn serve(&self, rounds: u64, len: usize, pause: Duration) -> Result<u64> {
        let mut stream = self.stream()?;
        let mut message = vec![0; len];
        for _ in 0..rounds {
            if !pause.is_zero() {
                sleep(pause);
            }
            stream.read_exact(&mut message)?;
            stream.write_all(&message)?;
        }
        Ok(rounds)
    }

    fn request(&self, rounds: u64, len: usize) -> Result<u64> {
        let mut stream = self.stream()?;
        let mut message = vec![b'r'; len];
        for _ in 0..rounds {
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
        }
        Ok(rounds)
    }

    fn write_small(&self, writes: u64) -> Result<u64> {
        let mut stream = self.stream()?;
        let message = [b's'; 150];
        let mut bytes = 0;
        for write in 0..writes {
            // What still waits would share a segment with this: for room in the congestion window, which what is sent again takes
            // too, or behind what the device is slow with (TCP small queues).
            let has_room = || {
                let info = tcp_info(stream)?;
                Ok(2 * info.tcpi_unacked < info.tcpi_snd_cwnd && info.tcpi_notsent_bytes == 0)
            };
            until(PATIENCE, has_room)?;
            let len = 50 + write * 37 % 101;
            stream.write_all(&message[..usize::try_from(len)?])?;
            bytes += len;
        }
        Ok(bytes)
    }

    fn read(&self, bytes: u64, chunk: usize, pause: Duration) -> Result<u64> {
        let mut stream = self.stream()?;
        let mut buffer = vec![0; chunk];
        let mut seen = 0;
        while seen < bytes {
            sleep(pause);
            let read = stream.read(&mut buffer)?;
            ensure!(read > 0, "the other end closed after {seen} bytes");
            seen += u64::try_from(read)?;
        }
        Ok(seen)
    }
}

fn milliseconds(text: &str) -> Result<Duration> {
    Ok(Duration::from_millis(text.parse()?))
}

/// What the kernel says itself, to check the tool against. What it does not have yet is 0.
pub(crate) fn tcp_info(stream: &TcpStream) -> Result<libc::tcp_info> {
    let mut bytes = [0; size_of::<libc::tcp_info>()];
    ways::get(stream, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes).context("TCP_INFO")?;
    // SAFETY: integers, of which any bytes are some.
    Ok(unsafe { bytes.as_ptr().cast::<libc::tcp_info>().read_unaligned() })
}

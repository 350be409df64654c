//! Messages that are sent alone: each is answered before the next one goes, and a log says when it went and when its answer was there.
//! Whatever a line says of such a message lies between the two.

use std::{
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream, UdpSocket},
    os::fd::{AsRawFd as _, OwnedFd},
    thread::sleep,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::{
    socket::{
        AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, recv, send,
        setsockopt, socket, sockopt,
    },
    time::{TimeVal, TimeValLike as _},
};

use super::forge::checksum;
use crate::process::PATIENCE;

/// A port that no scenario listens at: `discard`.
const CLOSED: u16 = 9;
/// Of each kind, between two messages.
const STRAYS: u32 = 2;

/// When a message went, and when its answer was there, in ns since 1970.
pub(crate) type Span = (i64, i64);

/// How messages are sent alone.
pub(super) struct Plan {
    pub(super) rounds: u32,
    /// Bytes of a message; a datagram has its number besides.
    pub(super) len: usize,
    /// Before each message.
    pub(super) gap: Duration,
    /// Whether packets that no line takes come before each message.
    pub(super) has_strays: bool,
}

impl Plan {
    pub(super) fn parse(command: &[&str]) -> Result<Self> {
        let [rounds, len, gap_ms, strays] = command else { bail!("not a plan: {command:?}") };
        let gap = Duration::from_millis(gap_ms.parse()?);
        Ok(Self { rounds: rounds.parse()?, len: len.parse()?, gap, has_strays: *strays == "strays" })
    }

    /// Messages by TCP, each answered by as many bytes.
    pub(super) fn ask(&self, mut stream: &TcpStream, log: &str) -> Result<u64> {
        let mut message = vec![b'a'; self.len];
        self.exchange(stream.peer_addr()?.ip(), log, |_| {
            stream.write_all(&message)?;
            Ok(stream.read_exact(&mut message)?)
        })
    }

    /// Datagrams, each answered by one. Their lengths tell them apart.
    pub(super) fn ask_by_datagrams(&self, socket: &UdpSocket, to: SocketAddr, log: &str) -> Result<u64> {
        let mut answer = vec![0; 1 << 16];
        self.exchange(to.ip(), log, |round| {
            let message = vec![b'a'; self.len + round as usize];
            let sent = socket.send_to(&message, to)?;
            ensure!(sent == message.len(), "sent {sent} bytes");
            let (len, _) = socket.recv_from(&mut answer)?;
            ensure!(len >= message.len(), "an answer of {len} bytes to {sent}");
            Ok(())
        })
    }

    fn exchange(&self, with: IpAddr, log: &str, mut message: impl FnMut(u32) -> Result<()>) -> Result<u64> {
        let mut strays = if self.has_strays { Some(Strays::new(with)?) } else { None };
        let mut spans = String::new();
        for round in 0..self.rounds {
            if let Some(strays) = &mut strays {
                strays.send()?;
            }
            sleep(self.gap);
            let start = now()?;
            message(round).with_context(|| format!("message {round}"))?;
            writeln!(spans, "{start} {}", now()?)?;
        }
        fs::write(log, spans)?;
        Ok(self.rounds.into())
    }
}

/// What a log says that was written here.
pub(crate) fn parse_log(log: &str) -> Result<Vec<Span>> {
    let parse = |line: &str| {
        let (start, end) = line.split_once(' ').context("not two times")?;
        Ok((start.parse()?, end.parse()?))
    };
    log.lines().map(parse).collect()
}

fn now() -> Result<i64> {
    Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos().try_into()?)
}

/// Packets that driver and IP have at both ends, and neither TCP nor a UDP socket: their skbs leave stamps behind, at addresses that
/// the next packets' have.
struct Strays {
    with: IpAddr,
    icmp: OwnedFd,
    udp: UdpSocket,
    number: u16,
}

impl Strays {
    fn new(with: IpAddr) -> Result<Self> {
        let (family, protocol) = match with {
            IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
            IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
        };
        let icmp = socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol).context("a raw socket")?;
        setsockopt(&icmp, sockopt::ReceiveTimeout, &TimeVal::seconds(PATIENCE.as_secs().try_into()?))?;
        connect(icmp.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(with, 0)))?;
        let any: IpAddr = if with.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        Ok(Self { with, icmp, udp: UdpSocket::bind((any, 0))?, number: 0 })
    }

    /// The pings come last and are answered, so that the others have come too.
    fn send(&mut self) -> Result<()> {
        for _ in 0..STRAYS {
            self.udp.send_to(b"stray", (self.with, CLOSED))?;
        }
        (0..STRAYS).try_for_each(|_| self.ping())
    }

    fn ping(&mut self) -> Result<()> {
        /// An echo request and its reply.
        const V4: (u8, u8) = (8, 0);
        const V6: (u8, u8) = (128, 129);
        self.number = self.number.wrapping_add(1);
        let (request, reply) = if self.with.is_ipv4() { V4 } else { V6 };
        // Type, code, checksum, which the kernel fills in for IPv6 alone, identifier, number.
        let mut message = vec![request, 0, 0, 0];
        message.extend_from_slice(&std::process::id().to_be_bytes()[2..]);
        message.extend_from_slice(&self.number.to_be_bytes());
        if self.with.is_ipv4() {
            let sum = checksum(&message);
            message[2..4].copy_from_slice(&sum.to_be_bytes());
        }
        send(self.icmp.as_raw_fd(), &message, MsgFlags::empty()).context("a ping")?;
        let mut buffer = [0; 2048];
        loop {
            let len = recv(self.icmp.as_raw_fd(), &mut buffer, MsgFlags::empty()).context("no pong")?;
            // IPv4's raw sockets give the IP header too.
            let header = if self.with.is_ipv4() { usize::from(buffer[0] & 0xf) * 4 } else { 0 };
            let icmp = buffer[..len].get(header..).context("a short packet")?;
            if icmp.first() == Some(&reply) && icmp.get(4..8) == message.get(4..8) {
                return Ok(());
            }
        }
    }
}

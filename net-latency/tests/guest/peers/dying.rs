//! A thread whose datagrams die before a device or a reader has them, and what it sends after each: the next packet gets the skb that
//! the dead one had.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::net::UnixDatagram,
    },
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::socket::{setsockopt, sockopt};

use super::{
    forge::{checksum, datagram},
    udp::Udp,
    ways::set,
};
use crate::process::PATIENCE;

/// Of a datagram that dies on arrival. Short, so that its checksum is looked at before it is queued (`CHECKSUM_BREAK`).
const DEAD: [u8; 40] = [b'd'; 40];
/// Of each UDP-Lite datagram, and each other datagram that follows.
const NEXT: [u8; 50] = [b'n'; 50];
/// ICMP's type of an echo request, ICMPv6's, and the code.
const ECHO: u8 = 8;
const ECHO_V6: u8 = 128;

/// The next packet after a datagram that died.
enum Next {
    /// A message by a socket, to this address.
    Message(UdpSocket, SocketAddr, Vec<u8>),
    /// The reset of one of these connections.
    Resets(Vec<TcpStream>),
}

/// What such a thread holds.
#[derive(Default)]
pub(super) struct Dying {
    next: Option<Next>,
    /// Of UDP-Lite: what sends, and what receives.
    lite: Option<(UdpSocket, UdpSocket)>,
    /// Datagrams on their queues stay there.
    kept: Vec<(UnixDatagram, UnixDatagram)>,
}

impl Dying {
    pub(super) fn perform(&mut self, udp: &Udp, command: &[&str]) -> Result<u64> {
        match command {
            // 0 where the kernel doesn't know the protocol.
            ["next", kind, rest @ ..] => {
                let next = Next::new(kind, rest)?;
                let is_known = next.is_some();
                self.next = next;
                Ok(is_known.into())
            }
            // Multicast to that group, by the device with that address, stays on this machine, and no socket here gets a copy.
            ["keep-here", group, address] => keep_here(udp.socket()?, group.parse()?, address.parse()?),
            // How many calls failed for want of permission, as netfilter's verdict and that of a cgroup's program have it.
            ["send", to, rounds, len, gap_ms] => {
                let (to, len, gap) = (to.parse()?, len.parse()?, Duration::from_millis(gap_ms.parse()?));
                let next = self.next.as_mut().context("nothing follows")?;
                send(udp.socket()?, next, to, rounds.parse()?, len, gap)
            }
            // The receiver's port; 0 where the kernel has no UDP-Lite.
            ["lite", address] => {
                self.lite = lite(address.parse()?)?;
                Ok(match &self.lite {
                    Some((_, receiver)) => receiver.local_addr()?.port().into(),
                    None => 0,
                })
            }
            // Takes the skb that was freed last, and keeps it.
            ["keep-skb"] => self.keep_skb(),
            // Datagrams to that address die on arrival; each is followed by one of UDP-Lite. How long those took at most, ns.
            ["arrive", to, death, rounds, gap_ms] => {
                self.arrive(to.parse()?, death, rounds.parse()?, Duration::from_millis(gap_ms.parse()?))
            }
            _ => bail!("unknown command"),
        }
    }

    fn keep_skb(&mut self) -> Result<u64> {
        let (from, to) = UnixDatagram::pair()?;
        from.send(&DEAD)?;
        self.kept.push((from, to));
        Ok(0)
    }

    fn arrive(&mut self, to: SocketAddr, death: &str, rounds: u64, gap: Duration) -> Result<u64> {
        let (sender, receiver) = self.lite.take().context("no UDP-Lite")?;
        let plain = UdpSocket::bind((unspecified(to.ip()), 0))?;
        let raw = if death == "wrong-checksum" {
            Some(open(to.ip(), libc::SOCK_RAW, libc::IPPROTO_RAW)?)
        } else {
            None
        };
        let there = receiver.local_addr()?;
        let mut bytes = [0; NEXT.len()];
        let mut longest = Duration::ZERO;
        for _ in 0..rounds {
            match &raw {
                None => ensure!(plain.send_to(&DEAD, to)? == DEAD.len(), "a short datagram"),
                Some(raw) => {
                    let (IpAddr::V4(address), SocketAddr::V4(v4)) = (there.ip(), to) else {
                        bail!("IPv4 only")
                    };
                    let from = std::net::SocketAddrV4::new(address, plain.local_addr()?.port());
                    let packet = datagram([from, v4], &DEAD, false)?;
                    raw.send_to(&packet, SocketAddr::new(to.ip(), 0))?;
                }
            }
            if death == "answered" {
                // By ICMP, whose skb was freed after the datagram's.
                self.keep_skb()?;
            }
            sleep(gap);
            let since = Instant::now();
            sender.send_to(&NEXT, there)?;
            ensure!(receiver.recv(&mut bytes)? == NEXT.len(), "another datagram");
            longest = longest.max(since.elapsed());
        }
        self.lite = Some((sender, receiver));
        Ok(longest.as_nanos().try_into()?)
    }
}

impl Next {
    fn new(kind: &str, arguments: &[&str]) -> Result<Option<Self>> {
        let echo = |kind: libc::c_int, to: &str| -> Result<Option<Self>> {
            let to: IpAddr = to.parse()?;
            let (protocol, message) = match to {
                IpAddr::V4(_) => (libc::IPPROTO_ICMP, echo_request(ECHO)),
                IpAddr::V6(_) => (libc::IPPROTO_ICMPV6, echo_request(ECHO_V6)),
            };
            let socket = open(to, kind, protocol)?;
            Ok(Some(Self::Message(socket, SocketAddr::new(to, 0), message)))
        };
        match (kind, arguments) {
            ("ping", [to]) => echo(libc::SOCK_RAW, to),
            // By users whose groups may (`ping_group_range`).
            ("ping-socket", [to]) => echo(libc::SOCK_DGRAM, to),
            ("lite", [to]) => {
                let to: SocketAddr = to.parse()?;
                Ok(known(open(to.ip(), libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE))?
                    .map(|socket| Self::Message(socket, to, NEXT.to_vec())))
            }
            // A whole datagram that UDP knows nothing of.
            ("raw", [from, to]) => {
                let to: std::net::SocketAddrV4 = to.parse()?;
                let packet = datagram([from.parse()?, to], &NEXT, true)?;
                let socket = open((*to.ip()).into(), libc::SOCK_RAW, libc::IPPROTO_RAW)?;
                Ok(Some(Self::Message(socket, SocketAddr::new((*to.ip()).into(), 0), packet)))
            }
            ("reset", [to, count]) => {
                let streams = (0..count.parse()?).map(|_| {
                    let stream = TcpStream::connect(to.parse::<SocketAddr>()?)?;
                    setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
                    Ok(stream)
                });
                Ok(Some(Self::Resets(streams.collect::<Result<_>>()?)))
            }
            _ => bail!("nothing of that kind"),
        }
    }

    /// Takes what has been answered.
    fn drain(&self) -> Result<()> {
        let Self::Message(socket, ..) = self else { return Ok(()) };
        socket.set_nonblocking(true)?;
        loop {
            match socket.recv(&mut [0; 512]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // Of a raw socket with IPPROTO_RAW, which receives nothing.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(socket.set_nonblocking(false)?)
    }

    fn send(&mut self) -> Result<()> {
        match self {
            Self::Message(socket, to, message) => {
                let sent = socket.send_to(message, *to).context("sending what follows")?;
                ensure!(sent == message.len(), "only {sent} bytes");
            }
            Self::Resets(streams) => drop(streams.pop().context("no connection is left")?),
        }
        Ok(())
    }
}

fn send(
    socket: &UdpSocket,
    next: &mut Next,
    to: SocketAddr,
    rounds: u64,
    len: usize,
    gap: Duration,
) -> Result<u64> {
    let message = vec![b'd'; len];
    let mut refused = 0;
    for _ in 0..rounds {
        next.drain()?;
        match socket.send_to(&message, to) {
            Ok(sent) => ensure!(sent == len, "only {sent} bytes"),
            Err(error) if error.kind() == ErrorKind::PermissionDenied => refused += 1,
            Err(error) => return Err(error.into()),
        }
        sleep(gap);
        next.send()?;
    }
    Ok(refused)
}

fn keep_here(socket: &UdpSocket, group: Ipv4Addr, device: Ipv4Addr) -> Result<u64> {
    // The machine has to be in the group, or else `__mkroute_output` does not take the packets for its own.
    socket.join_multicast_v4(&group, &device)?;
    socket.set_multicast_ttl_v4(0)?;
    socket.set_multicast_loop_v4(false)?;
    set(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &device.octets())
}

/// What sends and what receives UDP-Lite.
fn lite(address: IpAddr) -> Result<Option<(UdpSocket, UdpSocket)>> {
    let Some(sender) = known(open(address, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE))? else {
        return Ok(None);
    };
    let receiver = open(address, libc::SOCK_DGRAM, libc::IPPROTO_UDPLITE)?;
    for socket in [&sender, &receiver] {
        let at = nix::sys::socket::SockaddrStorage::from(SocketAddr::new(address, 0));
        nix::sys::socket::bind(socket.as_raw_fd(), &at)?;
    }
    receiver.set_read_timeout(Some(PATIENCE))?;
    Ok(Some((sender, receiver)))
}

/// Nothing where the kernel doesn't know the protocol, as UDP-Lite on Linux 7.3.
fn known(socket: io::Result<UdpSocket>) -> Result<Option<UdpSocket>> {
    match socket {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A socket of any kind, which is read from and written to as one of UDP is.
fn open(address: IpAddr, kind: libc::c_int, protocol: libc::c_int) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: no memory is involved.
    let descriptor = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }.into())
}

fn unspecified(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() }
}

/// The kernel fills in the checksum of ICMPv6, and of a socket that is for pings alone.
fn echo_request(kind: u8) -> Vec<u8> {
    // Type, code, checksum, identifier, sequence number, data.
    let mut message = [&[kind, 0, 0, 0, 0, 1, 0, 1][..], &NEXT].concat();
    let sum = checksum(&message).to_be_bytes();
    message[2..4].copy_from_slice(&sum);
    message
}

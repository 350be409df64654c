//! Segments that a peer could send, made by hand: some as its TCP could send them, others that no TCP sends.

use std::{
    net::{SocketAddr, SocketAddrV4, TcpStream},
    os::fd::AsRawFd as _,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, sendto, socket,
};

use super::ways::{get, set};

// Of linux/tcp.h.
const TCP_REPAIR: libc::c_int = 19;
const TCP_REPAIR_QUEUE: libc::c_int = 20;
const TCP_QUEUE_SEQ: libc::c_int = 21;
const ON: i32 = 1;
const OFF_WITHOUT_PROBE: i32 = -1;
const RECEIVED: i32 = 1;
const SENT: i32 = 2;

const IP_HEADER: usize = 20;
const TCP_HEADER: usize = 20;
/// Two of padding, kind, length, and two numbers.
const TIMESTAMPS: usize = 12;
const TCPOPT_NOP: u8 = 1;
const TCPOPT_TIMESTAMP: [u8; 2] = [8, 10];

// Flags of a segment.
pub(crate) const SYN: u8 = 0x02;
pub(crate) const PSH: u8 = 0x08;
pub(crate) const ACK: u8 = 0x10;

/// A segment of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u8,
    /// `TSval`.
    pub(crate) timestamp: Option<u32>,
    pub(crate) len: usize,
    /// What its bytes are.
    pub(crate) fill: u8,
    pub(crate) has_right_checksum: bool,
}

/// Sends a segment of `len` bytes that begins `offset` bytes behind all that the stream's TCP has sent, which knows nothing of it.
pub(super) fn send(stream: &TcpStream, offset: u32, len: usize) -> Result<u64> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (stream.local_addr()?, stream.peer_addr()?) else {
        bail!("IPv4 only");
    };
    let [received, sent] = numbers(stream)?;
    let segment = Segment {
        seq: sent.wrapping_add(offset),
        ack: received,
        flags: PSH | ACK,
        timestamp: None,
        len,
        fill: b'm',
        has_right_checksum: true,
    };
    let packet = packet([from, to], &segment)?;
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
    // As far as the raw socket knows there are no ports.
    let there = SockaddrIn::from(SocketAddrV4::new(*to.ip(), 0));
    let bytes =
        sendto(raw.as_raw_fd(), &packet, &there, MsgFlags::empty()).context("sending by a raw socket")?;
    ensure!(bytes == packet.len(), "only {bytes} bytes");
    Ok(len.try_into()?)
}

/// The numbers behind the last byte that was received, and behind the last that was sent.
pub(super) fn numbers(stream: &TcpStream) -> Result<[u32; 2]> {
    let number = |queue: i32| -> Result<u32> {
        set(stream, libc::IPPROTO_TCP, TCP_REPAIR_QUEUE, &queue.to_ne_bytes()).context("TCP_REPAIR_QUEUE")?;
        let mut number = [0; 4];
        get(stream, libc::IPPROTO_TCP, TCP_QUEUE_SEQ, &mut number).context("TCP_QUEUE_SEQ")?;
        Ok(u32::from_ne_bytes(number))
    };
    set(stream, libc::IPPROTO_TCP, TCP_REPAIR, &ON.to_ne_bytes()).context("TCP_REPAIR")?;
    let numbers = number(RECEIVED).and_then(|received| Ok([received, number(SENT)?]));
    set(stream, libc::IPPROTO_TCP, TCP_REPAIR, &OFF_WITHOUT_PROBE.to_ne_bytes()).context("TCP_REPAIR")?;
    numbers
}

/// The segment as a whole packet.
pub(crate) fn packet([from, to]: [SocketAddrV4; 2], segment: &Segment) -> Result<Vec<u8>> {
    let options = if segment.timestamp.is_some() { TIMESTAMPS } else { 0 };
    let header = TCP_HEADER + options;
    let mut tcp = Vec::new();
    for port in [from.port(), to.port()] {
        tcp.extend_from_slice(&port.to_be_bytes());
    }
    for number in [segment.seq, segment.ack] {
        tcp.extend_from_slice(&number.to_be_bytes());
    }
    // Length of the header in words, flags, window, checksum (below), urgent pointer.
    let words = u8::try_from(header / 4)?;
    tcp.extend_from_slice(&[words << 4, segment.flags, 0xff, 0xff, 0, 0, 0, 0]);
    if let Some(value) = segment.timestamp {
        tcp.extend_from_slice(&[TCPOPT_NOP; 2]);
        tcp.extend_from_slice(&TCPOPT_TIMESTAMP);
        tcp.extend_from_slice(&value.to_be_bytes());
        tcp.extend_from_slice(&[0; 4]);
    }
    tcp.resize(header + segment.len, segment.fill);
    let protocol = u8::try_from(libc::IPPROTO_TCP)?;
    let sum = checksum(&[&pseudo_header([from, to], protocol, tcp.len().try_into()?)[..], &tcp].concat());
    let sum = if segment.has_right_checksum { sum } else { sum ^ 0x5555 };
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    in_ip([from, to], protocol, &tcp)
}

/// A whole IPv4 packet with a datagram, whose checksum may be wrong.
pub(super) fn datagram([from, to]: [SocketAddrV4; 2], message: &[u8], is_right: bool) -> Result<Vec<u8>> {
    const UDP_HEADER: usize = 8;
    let len = u16::try_from(UDP_HEADER + message.len())?;
    let protocol = u8::try_from(libc::IPPROTO_UDP)?;
    let mut udp = Vec::new();
    for number in [from.port(), to.port(), len, 0] {
        udp.extend_from_slice(&number.to_be_bytes());
    }
    udp.extend_from_slice(message);
    let sum = checksum(&[&pseudo_header([from, to], protocol, len)[..], &udp].concat());
    // 0 would be none.
    let sum = if is_right { sum } else { sum ^ 0x5555 }.max(1);
    udp[6..8].copy_from_slice(&sum.to_be_bytes());
    in_ip([from, to], protocol, &udp)
}

/// What TCP's and UDP's checksums are of besides the segment.
fn pseudo_header([from, to]: [SocketAddrV4; 2], protocol: u8, len: u16) -> Vec<u8> {
    [&from.ip().octets()[..], &to.ip().octets(), &[0, protocol], &len.to_be_bytes()].concat()
}

/// Puts IP's header in front, of which the kernel fills in the checksum.
fn in_ip([from, to]: [SocketAddrV4; 2], protocol: u8, content: &[u8]) -> Result<Vec<u8>> {
    let total = u16::try_from(IP_HEADER + content.len())?;
    // Version and length, type of service, length, id, fragments, TTL, protocol, checksum.
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&total.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.extend_from_slice(&from.ip().octets());
    packet.extend_from_slice(&to.ip().octets());
    packet.extend_from_slice(content);
    Ok(packet)
}

/// RFC 1071.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

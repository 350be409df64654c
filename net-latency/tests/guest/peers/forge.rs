//! Segments that a peer's TCP could send, made by hand: one that joins what it sends again with what comes behind.

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
/// PSH and ACK.
const FLAGS: u8 = 0x18;

/// Sends a segment of `len` bytes that begins `offset` bytes behind all that the stream's TCP has sent, which knows nothing of it.
pub(super) fn send(stream: &TcpStream, offset: u32, len: usize) -> Result<u64> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (stream.local_addr()?, stream.peer_addr()?) else {
        bail!("IPv4 only");
    };
    let [received, sent] = numbers(stream)?;
    let packet = packet([from, to], sent.wrapping_add(offset), received, len)?;
    let raw = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Raw)?;
    // As far as the raw socket knows there are no ports.
    let there = SockaddrIn::from(SocketAddrV4::new(*to.ip(), 0));
    let bytes =
        sendto(raw.as_raw_fd(), &packet, &there, MsgFlags::empty()).context("sending by a raw socket")?;
    ensure!(bytes == packet.len(), "only {bytes} bytes");
    Ok(len.try_into()?)
}

/// The numbers behind the last byte that was received, and behind the last that was sent.
fn numbers(stream: &TcpStream) -> Result<[u32; 2]> {
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

fn packet([from, to]: [SocketAddrV4; 2], seq: u32, ack: u32, len: usize) -> Result<Vec<u8>> {
    let segment = u16::try_from(TCP_HEADER + len)?;
    let mut tcp = Vec::new();
    for port in [from.port(), to.port()] {
        tcp.extend_from_slice(&port.to_be_bytes());
    }
    for number in [seq, ack] {
        tcp.extend_from_slice(&number.to_be_bytes());
    }
    // Length of the header in words, flags, window, checksum (below), urgent pointer.
    tcp.extend_from_slice(&[5 << 4, FLAGS, 0xff, 0xff, 0, 0, 0, 0]);
    tcp.resize(TCP_HEADER + len, b'm');
    let addresses = [from.ip().octets(), to.ip().octets()].concat();
    let protocol = u8::try_from(libc::IPPROTO_TCP)?;
    let pseudo = [&addresses[..], &[0, protocol], &segment.to_be_bytes(), &tcp].concat();
    tcp[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());

    let total = u16::try_from(IP_HEADER + tcp.len())?;
    // Version and length, type of service, length, id, fragments, TTL, protocol, checksum, which the kernel fills in.
    let mut packet = vec![0x45, 0];
    packet.extend_from_slice(&total.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0, 64, protocol, 0, 0]);
    packet.extend_from_slice(&addresses);
    packet.extend_from_slice(&tcp);
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

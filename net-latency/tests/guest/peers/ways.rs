//! Ways of sending that the standard library doesn't know.

use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, connect, send, sendto, socket,
};

/// `TCP_FASTOPEN_CONNECT` of linux/tcp.h.
const TCP_FASTOPEN_CONNECT: libc::c_int = 30;
/// Bytes of every message here.
const FILL: u8 = b'm';

/// Limits the rate at which TCP sends, in bytes per second.
pub(super) fn pace(stream: &TcpStream, rate: u32) -> Result<u64> {
    set(stream, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &rate.to_ne_bytes()).context("SO_MAX_PACING_RATE")
}

pub(super) fn control_congestion(stream: &TcpStream, name: &str) -> Result<u64> {
    set(stream, libc::IPPROTO_TCP, libc::TCP_CONGESTION, name.as_bytes()).context("TCP_CONGESTION")
}

/// Writes bytes that TCP keeps back, since more are said to follow.
pub(super) fn write_more(stream: &TcpStream, bytes: usize) -> Result<u64> {
    let flags = MsgFlags::from_bits_retain(libc::MSG_MORE);
    let sent = send(stream.as_raw_fd(), &vec![FILL; bytes], flags)?;
    ensure!(sent == bytes, "only {sent} bytes of {bytes}");
    Ok(sent.try_into()?)
}

/// Accepts data in a SYN.
pub(super) fn listen_fast(listener: &TcpListener) -> Result<u64> {
    const QUEUE: i32 = 5;
    set(listener, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, &QUEUE.to_ne_bytes()).context("TCP_FASTOPEN")
}

/// Connects by a call that sends as well.
pub(super) fn send_with_syn(to: SocketAddr, bytes: usize) -> Result<TcpStream> {
    let socket = new_socket(to)?;
    let flags = MsgFlags::from_bits_retain(libc::MSG_FASTOPEN);
    let sent = sendto(socket.as_raw_fd(), &vec![FILL; bytes], &SockaddrStorage::from(to), flags)?;
    ensure!(sent == bytes, "only {sent} bytes of {bytes}");
    Ok(socket.into())
}

/// Connects in name; the first write sends the SYN.
pub(super) fn connect_with_first_write(to: SocketAddr) -> Result<TcpStream> {
    let socket = new_socket(to)?;
    set(&socket, libc::IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &1_i32.to_ne_bytes())
        .context("TCP_FASTOPEN_CONNECT")?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(socket.into())
}

fn new_socket(to: SocketAddr) -> Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    Ok(socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?)
}

/// Asks the kernel for an option, which takes as many bytes as it says here.
pub(super) fn get(
    socket: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> Result<usize> {
    let mut len = libc::socklen_t::try_from(value.len())?;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `len` bytes, which is the size of `value`.
    let result = unsafe { libc::getsockopt(socket, level, option, value.as_mut_ptr().cast(), &raw mut len) };
    if result == 0 { Ok(len.try_into()?) } else { Err(io::Error::last_os_error().into()) }
}

pub(super) fn set(socket: impl AsFd, level: libc::c_int, option: libc::c_int, value: &[u8]) -> Result<u64> {
    let len = libc::socklen_t::try_from(value.len())?;
    // SAFETY: the kernel reads `len` bytes of `value`.
    let result =
        unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, value.as_ptr().cast(), len) };
    if result == 0 { Ok(0) } else { Err(io::Error::last_os_error().into()) }
}

//! Sockets of MPTCP, which are used like TCP's.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::Result;
use nix::sys::socket::{Backlog, SockaddrStorage, bind, connect, listen};

/// One that listens at any port.
pub(crate) fn listener(address: IpAddr) -> Result<TcpListener> {
    let socket = socket(address)?;
    bind(socket.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(address, 0)))?;
    listen(&socket, Backlog::new(8)?)?;
    Ok(socket.into())
}

/// One that is connected.
pub(crate) fn stream(server: SocketAddr) -> Result<TcpStream> {
    let socket = socket(server.ip())?;
    connect(socket.as_raw_fd(), &SockaddrStorage::from(server))?;
    Ok(socket.into())
}

fn socket(address: IpAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: the function takes no pointer.
    let descriptor =
        unsafe { libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, libc::IPPROTO_MPTCP) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

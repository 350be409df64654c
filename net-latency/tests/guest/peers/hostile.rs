//! What a user without privileges does to blind the tracer of the machine.

use std::{
    env, fs,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    path::Path,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::{
    prctl,
    socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, setsockopt, socket, sockopt},
};

use crate::process::PATIENCE;

/// What it holds open.
#[derive(Default)]
pub(super) struct Hostile {
    requests: Vec<TcpStream>,
}

impl Hostile {
    pub(super) fn perform(&mut self, command: &[&str]) -> Result<u64> {
        match command {
            ["nest", root, depth, len, packets] => {
                nest(root.as_ref(), depth.parse()?, len.parse()?, packets.parse()?)
            }
            ["enter", cgroup] => enter(cgroup.as_ref()),
            ["ports", first, count, rounds] => ports(first.parse()?, count.parse()?, rounds.parse()?),
            ["names", count, packets] => names(count.parse()?, packets.parse()?),
            ["twin", server, client, rounds] => twin(server.parse()?, client.parse()?, rounds.parse()?),
            ["half-requests", address, count] => self.half_requests(address.parse()?, count.parse()?),
            ["scrape", address, rounds] => scrape(address.parse()?, rounds.parse()?),
            _ => bail!("unknown command"),
        }
    }

    /// Connections that begin a request of the exporter's and never end it.
    fn half_requests(&mut self, address: SocketAddr, count: usize) -> Result<u64> {
        for _ in 0..count {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(b"GET /metrics HTT")?;
            self.requests.push(stream);
        }
        Ok(count.try_into()?)
    }
}

/// A socket that sends datagrams to itself.
struct ToItself(UdpSocket);

impl ToItself {
    fn at(port: u16) -> Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(socket))
    }

    fn send(&self, packets: u32) -> Result<()> {
        let own = self.0.local_addr()?;
        for _ in 0..packets {
            self.0.send_to(b"x", own)?;
            self.0.recv_from(&mut [0; 8])?;
        }
        Ok(())
    }
}

fn enter(cgroup: &Path) -> Result<u64> {
    fs::create_dir_all(cgroup)?;
    fs::write(cgroup.join("cgroup.procs"), "0")?;
    ToItself::at(0)?.send(20)?;
    Ok(20)
}

/// Cgroups in each other below `root`, each with a name of N bytes that don't print, and packets from each.
fn nest(root: &Path, depth: u32, len: usize, packets: u32) -> Result<u64> {
    let back = env::current_dir()?;
    env::set_current_dir(root)?;
    let name = "\x01".repeat(len);
    let socket = ToItself::at(0)?;
    for _ in 0..depth {
        // The whole path is longer than any that a call takes.
        fs::create_dir(&name)?;
        env::set_current_dir(&name)?;
        fs::write("cgroup.procs", "0").context("entering it")?;
        socket.send(packets)?;
    }
    env::set_current_dir(back)?;
    Ok(depth.into())
}

/// Packets at many ports.
fn ports(first: u16, count: u16, rounds: u32) -> Result<u64> {
    let sockets = (first..first + count).map(ToItself::at).collect::<Result<Vec<_>>>()?;
    for _ in 0..rounds {
        sockets.iter().try_for_each(|socket| socket.send(1))?;
    }
    Ok(count.into())
}

/// Packets of a process that has many names, one after the other.
fn names(count: u32, packets: u32) -> Result<u64> {
    let socket = ToItself::at(0)?;
    for number in 0..count {
        prctl::set_name(&std::ffi::CString::new(format!("h{number}"))?)?;
        socket.send(packets)?;
    }
    Ok(count.into())
}

/// A conversation with itself between the addresses and ports of another one in another network namespace.
fn twin(server: u16, client: u16, rounds: u32) -> Result<u64> {
    let at = |port: u16| SockaddrIn::new(127, 0, 0, 1, port);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, server)).context("the same port")?;
    let near = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&near, sockopt::ReuseAddr, &true)?;
    bind(std::os::fd::AsRawFd::as_raw_fd(&near), &at(client)).context("the same port of the client")?;
    connect(std::os::fd::AsRawFd::as_raw_fd(&near), &at(server))?;
    let mut near = TcpStream::from(near);
    let (mut far, _) = listener.accept()?;
    let mut message = [0; 200];
    for _ in 0..rounds {
        near.write_all(&message)?;
        far.read_exact(&mut message)?;
        far.write_all(&message)?;
        near.read_exact(&mut message)?;
    }
    Ok(rounds.into())
}

/// Scrapes as fast as it can; how many were answered.
fn scrape(address: SocketAddr, rounds: u32) -> Result<u64> {
    let mut answered = 0;
    for _ in 0..rounds {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        ensure!(!answer.is_empty(), "no answer");
        answered += u64::from(answer.starts_with(b"HTTP/1.1 200 "));
    }
    Ok(answered)
}

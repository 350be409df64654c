//! What a peer does with UDP sockets.

use std::{
    io,
    net::{IpAddr, SocketAddr, SocketAddrV4, UdpSocket},
    os::fd::AsRawFd as _,
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, setsockopt, socket, sockopt};

use super::alone::Plan;
use crate::process::PATIENCE;

/// More than any datagram holds.
const LARGEST: usize = 1 << 16;

// Of linux/udp.h.
const UDP_CORK: libc::c_int = 1;
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

/// The UDP socket of a peer.
#[derive(Default)]
pub(super) struct Udp(Option<UdpSocket>);

impl Udp {
    pub(super) fn perform(&mut self, command: &[&str]) -> Result<u64> {
        match command {
            ["bind", address] => self.perform(&["bind", address, "0"]),
            ["bind", address, port] => {
                let socket = UdpSocket::bind((address.parse::<IpAddr>()?, port.parse()?))?;
                socket.set_read_timeout(Some(PATIENCE))?;
                let port = socket.local_addr()?.port();
                self.0 = Some(socket);
                Ok(port.into())
            }
            // Several sockets on one port, each of which gets the multicast datagrams.
            ["bind-shared", address, port] => {
                let address = SocketAddrV4::new(address.parse()?, port.parse()?);
                let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
                setsockopt(&socket, sockopt::ReuseAddr, &true)?;
                bind(socket.as_raw_fd(), &SockaddrIn::from(address))?;
                let socket = UdpSocket::from(socket);
                socket.set_read_timeout(Some(PATIENCE))?;
                let port = socket.local_addr()?.port();
                self.0 = Some(socket);
                Ok(port.into())
            }
            ["connect", to] => {
                self.socket()?.connect(to.parse::<SocketAddr>()?)?;
                Ok(0)
            }
            ["join", group] => {
                let group = group.parse().context("group")?;
                self.socket()?.join_multicast_v4(&group, &std::net::Ipv4Addr::LOCALHOST)?;
                Ok(0)
            }
            ["multicast-by-loopback"] => {
                let interface = u32::from(std::net::Ipv4Addr::LOCALHOST).to_be();
                set(self.socket()?, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, interface)
            }
            ["receive-buffer", bytes] => {
                set(self.socket()?, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes.parse()?)
            }
            // Beyond what the administrator allows.
            ["receive-room", bytes] => {
                setsockopt(self.socket()?, sockopt::RcvBufForce, &bytes.parse()?)?;
                Ok(0)
            }
            ["segment", bytes] => set(self.socket()?, libc::IPPROTO_UDP, UDP_SEGMENT, bytes.parse()?),
            ["mark", value] => {
                setsockopt(self.socket()?, sockopt::Mark, &value.parse()?)?;
                Ok(0)
            }
            // Drops all that arrives (`sk_filter`).
            ["refuse"] => refuse(self.socket()?),
            ["merge"] => set(self.socket()?, libc::IPPROTO_UDP, UDP_GRO, 1),
            ["cork", on] => set(self.socket()?, libc::IPPROTO_UDP, UDP_CORK, on.parse()?),
            ["send", count, len] => {
                let message = vec![b'u'; len.parse()?];
                for _ in 0..count.parse()? {
                    let sent = self.socket()?.send(&message)?;
                    ensure!(sent == message.len(), "sent {sent} bytes");
                }
                Ok(0)
            }
            ["send-to", to, count, len] => {
                let (to, message) = (to.parse::<SocketAddr>()?, vec![b'u'; len.parse()?]);
                for _ in 0..count.parse()? {
                    let sent = self.socket()?.send_to(&message, to)?;
                    ensure!(sent == message.len(), "sent {sent} bytes");
                }
                Ok(0)
            }
            ["send-many", count, len] => self.send_many(count.parse()?, len.parse()?),
            ["send-more", len] => self.send_flagged(len.parse()?, libc::MSG_MORE),
            ["peek"] => self.receive(libc::MSG_PEEK).map(|len| len as u64),
            ["receive", count] => {
                let mut bytes = 0;
                for _ in 0..count.parse()? {
                    bytes += self.receive(0)?;
                }
                Ok(bytes as u64)
            }
            // How many datagrams it took for that many bytes.
            ["receive-bytes", bytes] => {
                let (mut seen, mut datagrams) = (0, 0);
                while seen < bytes.parse()? {
                    seen += self.receive(0)?;
                    datagrams += 1;
                }
                Ok(datagrams)
            }
            ["receive-many", count] => self.receive_many(count.parse()?),
            ["receive-all"] => self.receive_all(),
            ["echo", count] => {
                let mut message = vec![0; LARGEST];
                for _ in 0..count.parse()? {
                    let (len, from) = self.socket()?.recv_from(&mut message)?;
                    self.socket()?.send_to(&message[..len], from)?;
                }
                Ok(0)
            }
            ["request-to", to, count, len] => {
                let mut message = vec![b'u'; len.parse()?];
                for _ in 0..count.parse()? {
                    self.socket()?.send_to(&message, to.parse::<SocketAddr>()?)?;
                    self.socket()?.recv_from(&mut message)?;
                }
                Ok(0)
            }
            ["alone", log, to, plan @ ..] => {
                Plan::parse(plan)?.ask_by_datagrams(self.socket()?, to.parse()?, log)
            }
            ["sleep", ms] => {
                sleep(Duration::from_millis(ms.parse()?));
                Ok(0)
            }
            ["close"] => {
                self.0 = None;
                Ok(0)
            }
            _ => bail!("unknown command"),
        }
    }

    pub(super) fn socket(&self) -> Result<&UdpSocket> {
        self.0.as_ref().context("no UDP socket")
    }

    fn send_flagged(&self, len: usize, flags: libc::c_int) -> Result<u64> {
        let message = vec![b'u'; len];
        // SAFETY: the buffer is as long as said.
        let sent =
            unsafe { libc::send(self.socket()?.as_raw_fd(), message.as_ptr().cast(), message.len(), flags) };
        ensure!(sent >= 0, io::Error::last_os_error());
        Ok(sent.try_into()?)
    }

    fn receive(&self, flags: libc::c_int) -> Result<usize> {
        let mut message = vec![0_u8; LARGEST];
        // SAFETY: the buffer is as long as said.
        let received = unsafe {
            libc::recv(self.socket()?.as_raw_fd(), message.as_mut_ptr().cast(), message.len(), flags)
        };
        ensure!(received >= 0, io::Error::last_os_error());
        Ok(received.try_into()?)
    }

    /// Takes the datagrams there, without waiting; returns how many.
    fn receive_all(&self) -> Result<u64> {
        let mut count = 0;
        loop {
            match self.receive(libc::MSG_DONTWAIT) {
                Ok(_) => count += 1,
                Err(error)
                    if error.downcast_ref::<io::Error>().map(io::Error::kind)
                        == Some(io::ErrorKind::WouldBlock) =>
                {
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// One sendmmsg(2) call.
    fn send_many(&self, count: usize, len: usize) -> Result<u64> {
        let mut message = vec![b'u'; len];
        let mut vectors = vec![libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: len }; count];
        let mut headers = headers(&mut vectors);
        // SAFETY: the headers point to live vectors, those to a live buffer.
        let sent =
            unsafe { libc::sendmmsg(self.socket()?.as_raw_fd(), headers.as_mut_ptr(), count.try_into()?, 0) };
        ensure!(usize::try_from(sent) == Ok(count), "{sent} sent: {}", io::Error::last_os_error());
        Ok(count as u64)
    }

    /// recvmmsg(2) until `count` datagrams are there.
    fn receive_many(&self, count: usize) -> Result<u64> {
        let mut seen = 0;
        while seen < count {
            let mut message = vec![0_u8; LARGEST];
            let vector = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: LARGEST };
            let mut vectors = vec![vector; count - seen];
            let mut headers = headers(&mut vectors);
            // SAFETY: the headers point to live vectors, those to a live buffer, which all datagrams share.
            let received = unsafe {
                libc::recvmmsg(
                    self.socket()?.as_raw_fd(),
                    headers.as_mut_ptr(),
                    headers.len().try_into()?,
                    libc::MSG_WAITFORONE,
                    std::ptr::null_mut(),
                )
            };
            ensure!(received > 0, io::Error::last_os_error());
            seen += usize::try_from(received)?;
        }
        Ok(seen as u64)
    }
}

fn refuse(socket: &UdpSocket) -> Result<u64> {
    // `ret #0`: the bytes that are kept.
    let mut filter = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut filter };
    // SAFETY: the program is live, and says how many instructions there are.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    ensure!(result == 0, io::Error::last_os_error());
    Ok(0)
}

fn headers(vectors: &mut [libc::iovec]) -> Vec<libc::mmsghdr> {
    vectors
        .iter_mut()
        .map(|vector| {
            // SAFETY: all zero is a valid header of no message.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header
        })
        .collect()
}

fn set(socket: &UdpSocket, level: libc::c_int, option: libc::c_int, value: u32) -> Result<u64> {
    // SAFETY: the option's value is as long as said.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    ensure!(result == 0, io::Error::last_os_error());
    Ok(0)
}

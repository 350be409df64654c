//! System calls of sockets, each made exactly as often as is said.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem,
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    os::{
        fd::{AsRawFd as _, FromRawFd as _},
        unix::net::UnixStream,
    },
    ptr, thread,
    thread::sleep,
    time::Duration,
};

use anyhow::{Result, ensure};
use nix::{
    sys::socket::{MsgFlags, recvmsg, sendmsg},
    unistd,
};

/// A UDP socket by its descriptor, bound to a port of its own on the loopback device. Four system calls each round:
/// [`Bound::open`] makes three, [`Bound::close`] one.
struct Bound {
    socket: libc::c_int,
    address: libc::sockaddr_in,
}

const LEN: libc::socklen_t = size_of::<libc::sockaddr_in>() as libc::socklen_t;

fn checked(result: libc::ssize_t) -> Result<libc::c_int> {
    ensure!(result >= 0, io::Error::last_os_error());
    Ok(result as libc::c_int)
}

impl Bound {
    fn open() -> Result<Self> {
        // SAFETY: all integers, of which 0 is one.
        let mut address: libc::sockaddr_in = unsafe { mem::zeroed() };
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
        let mut len = LEN;
        // SAFETY: the address is live and as long as is said.
        unsafe {
            let socket = checked(libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0) as libc::ssize_t)?;
            checked(libc::bind(socket, (&raw const address).cast(), LEN) as libc::ssize_t)?;
            checked(libc::getsockname(socket, (&raw mut address).cast(), &raw mut len) as libc::ssize_t)?;
            Ok(Self { socket, address })
        }
    }

    /// Sends one byte to itself.
    fn send(&self) -> Result<()> {
        // SAFETY: the byte and the address are live.
        let sent = unsafe {
            libc::sendto(self.socket, [1u8].as_ptr().cast(), 1, 0, (&raw const self.address).cast(), LEN)
        };
        checked(sent).map(drop)
    }

    fn receive(&self) -> Result<()> {
        let mut byte = [0u8];
        // SAFETY: there is room for the byte; the sender's address is not requested.
        let got = unsafe {
            libc::recvfrom(self.socket, byte.as_mut_ptr().cast(), 1, 0, ptr::null_mut(), ptr::null_mut())
        };
        checked(got).map(drop)
    }

    fn close(self) -> Result<()> {
        // SAFETY: nothing else has it.
        checked(unsafe { libc::close(self.socket) } as libc::ssize_t).map(drop)
    }
}

/// In each of `threads`, `rounds` times: socket, bind, getsockname, sendto, recvfrom, close.
pub(super) fn rounds(threads: u64, rounds: u64) -> Result<u64> {
    let each = move || -> Result<()> {
        for _ in 0..rounds {
            let bound = Bound::open()?;
            bound.send()?;
            bound.receive()?;
            bound.close()?;
        }
        Ok(())
    };
    let all: Vec<_> = (0..threads).map(|_| thread::spawn(each)).collect();
    for one in all {
        one.join().expect("no panic")?;
    }
    Ok(threads * rounds)
}

/// One round in which the datagram comes so late.
pub(super) fn wait(time: Duration) -> Result<u64> {
    let bound = Bound::open()?;
    thread::scope(|scope| {
        scope.spawn(|| {
            sleep(time);
            bound.send()
        });
        bound.receive()
    })?;
    bound.close()?;
    Ok(1)
}

/// In each of `threads`, `rounds` times: most of the system calls that sockets have, some of which fail.
pub(super) fn mix(threads: u64, rounds: u64) -> Result<u64> {
    let each = move || (0..rounds).try_for_each(|_| mixed_round());
    let all: Vec<_> = (0..threads).map(|_| thread::spawn(each)).collect();
    for one in all {
        one.join().expect("no panic")?;
    }
    Ok(threads * rounds)
}

fn mixed_round() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    ensure!(TcpListener::bind(address).is_err(), "two sockets listen at one port");
    let mut client = TcpStream::connect(address)?;
    // SAFETY: the peer's address is not requested; the descriptor is new, and nothing else has it.
    let mut server = unsafe {
        let taken = libc::accept(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut());
        TcpStream::from_raw_fd(checked(taken as libc::ssize_t)?)
    };
    drop(TcpStream::connect(address)?);
    drop(listener.accept()?);
    client.set_nodelay(true)?;
    ensure!(client.nodelay()? && client.take_error()?.is_none(), "it was told not to delay");
    ensure!(server.peer_addr()? == client.local_addr()?, "another client");

    // By the system calls of sockets, those of files, and those that take messages.
    let mut bytes = [0; 8];
    for _ in 0..3 {
        client.write_all(&bytes)?;
        server.read_exact(&mut bytes)?;
    }
    for _ in 0..2 {
        ensure!(unistd::write(&server, &bytes)? == bytes.len(), "a short write");
        ensure!(unistd::read(&client, &mut bytes)? == bytes.len(), "a short read");
    }
    ensure!(server.write_vectored(&[IoSlice::new(b"ve"), IoSlice::new(b"ctors")])? == 7, "a short write");
    let (mut first, mut second) = ([0; 3], [0; 4]);
    ensure!(
        client.read_vectored(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)])? == 7,
        "a short read"
    );
    let (one, other) = UnixStream::pair()?;
    for _ in 0..4 {
        let sent = sendmsg::<()>(one.as_raw_fd(), &[IoSlice::new(b"msg")], &[], MsgFlags::empty(), None)?;
        let mut pieces = [IoSliceMut::new(&mut bytes)];
        let got = recvmsg::<()>(other.as_raw_fd(), &mut pieces, None, MsgFlags::empty())?.bytes;
        ensure!(sent == 3 && got == 3, "a short message");
    }

    // Nothing is there, and nothing is open by that number.
    client.set_nonblocking(true)?;
    ensure!(client.read(&mut bytes).is_err(), "bytes from nowhere");
    // SAFETY: the byte is live.
    let sent = unsafe { libc::send(-1, [1u8].as_ptr().cast(), 1, 0) };
    ensure!(sent == -1, "sent through no socket");
    client.shutdown(Shutdown::Both)?;
    drop(listener);
    ensure!(TcpStream::connect(address).is_err(), "connected without a listener");
    Ok(())
}

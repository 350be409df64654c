//! The ways in which an application takes bytes from a TCP socket.

use std::{
    io::{self, IoSliceMut, Read as _},
    net::TcpStream,
    os::fd::AsRawFd as _,
    ptr,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    fcntl::{SpliceFFlags, splice},
    sys::socket::{MsgFlags, MultiHeaders, recv, recvmmsg, recvmsg},
    unistd::pipe,
};

use super::ring::{By, Ring};

/// Takes exactly N bytes in the named way, with as many calls as that needs.
pub(super) fn take(stream: &TcpStream, way: &str, bytes: usize) -> Result<u64> {
    let mut call: Box<dyn FnMut(usize) -> Result<usize>> = match way {
        "read" => Box::new(|len| Ok((&*stream).read(&mut vec![0; len])?)),
        "recv" => Box::new(|len| flagged(stream, len, MsgFlags::empty())),
        "recv-truncated" => Box::new(|len| discard(stream, len)),
        "recv-all" => Box::new(|len| flagged(stream, len, MsgFlags::MSG_WAITALL)),
        "recvmsg" => Box::new(|len| scattered(stream, len)),
        "recvmmsg" => Box::new(|len| several(stream, len)),
        "splice" => Box::new(|len| through_pipe(stream, len)),
        "zerocopy" => Box::new(|len| {
            let found = zero_copy(stream, len)?;
            // What can't be mapped is to be received otherwise, says the kernel.
            let copied =
                if found.to_copy == 0 { 0 } else { flagged(stream, found.to_copy, MsgFlags::MSG_WAITALL)? };
            Ok(found.mapped + copied)
        }),
        "ring" | "ring-worker" => {
            let mut ring = Ring::new(if way == "ring" { By::Submitter } else { By::Worker })?;
            Box::new(move |len| ring.receive(stream, &mut vec![0; len]))
        }
        _ => bail!("no such way"),
    };
    let mut taken = 0;
    while taken < bytes {
        let now = call(bytes - taken)?;
        ensure!(now > 0, "the other end closed after {taken} bytes");
        taken += now;
    }
    ensure!(taken == bytes, "{taken} bytes, more than were requested");
    Ok(taken.try_into()?)
}

/// Looks at N bytes and leaves them where they are.
pub(super) fn peek(stream: &TcpStream, bytes: usize) -> Result<u64> {
    let seen = flagged(stream, bytes, MsgFlags::MSG_PEEK | MsgFlags::MSG_WAITALL)?;
    ensure!(seen == bytes, "{seen} bytes seen");
    Ok(seen.try_into()?)
}

/// Takes N bytes without copying where the kernel can, and says how many that were.
pub(super) fn map(stream: &TcpStream, bytes: usize) -> Result<u64> {
    // All shall be there, for one call to have the choice.
    peek(stream, bytes)?;
    let found = zero_copy(stream, bytes)?;
    if found.mapped < bytes {
        take(stream, "recv", bytes - found.mapped)?;
    }
    Ok(found.mapped.try_into()?)
}

fn flagged(stream: &TcpStream, len: usize, flags: MsgFlags) -> Result<usize> {
    Ok(recv(stream.as_raw_fd(), &mut vec![0; len], flags)?)
}

/// TCP counts bytes as received without a place to put them (`MSG_TRUNC` in tcp(7)).
fn discard(stream: &TcpStream, len: usize) -> Result<usize> {
    // SAFETY: with this flag the kernel writes nothing, and takes no address to be valid.
    let taken = unsafe { libc::recv(stream.as_raw_fd(), ptr::null_mut(), len, libc::MSG_TRUNC) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error().into())
}

fn scattered(stream: &TcpStream, len: usize) -> Result<usize> {
    let mut buffer = vec![0; len];
    // Pieces that no segment of the cases is as large as.
    let mut pieces: Vec<_> = buffer.chunks_mut(70).map(IoSliceMut::new).collect();
    Ok(recvmsg::<()>(stream.as_raw_fd(), &mut pieces, None, MsgFlags::empty())?.bytes)
}

/// For TCP, `recvmmsg` is nothing but several `recvmsg` in one.
fn several(stream: &TcpStream, len: usize) -> Result<usize> {
    const PIECE: usize = 200;
    let mut buffer = vec![0; len];
    let mut messages: Vec<_> = buffer.chunks_mut(PIECE).map(|piece| [IoSliceMut::new(piece)]).collect();
    let mut headers = MultiHeaders::<()>::preallocate(messages.len(), None);
    let received =
        recvmmsg(stream.as_raw_fd(), &mut headers, messages.iter_mut(), MsgFlags::MSG_WAITFORONE, None)?;
    Ok(received.map(|message| message.bytes).sum())
}

fn through_pipe(stream: &TcpStream, len: usize) -> Result<usize> {
    let (out, into) = pipe()?;
    let moved = splice(stream, None, &into, None, len, SpliceFFlags::empty())?;
    drop(into);
    let mut bytes = Vec::new();
    std::fs::File::from(out).read_to_end(&mut bytes)?;
    ensure!(bytes.len() == moved, "{} bytes in the pipe, not {moved}", bytes.len());
    Ok(moved)
}

/// What `TCP_ZEROCOPY_RECEIVE` did.
struct ZeroCopied {
    /// Bytes that are in the mapping.
    mapped: usize,
    /// Bytes that come next and don't fill pages.
    to_copy: usize,
}

/// The beginning of `struct tcp_zerocopy_receive` (linux/tcp.h), which every kernel has.
#[repr(C)]
struct ZeroCopyReceive {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
}

fn zero_copy(stream: &TcpStream, len: usize) -> Result<ZeroCopied> {
    const PAGE: usize = 4096;
    let size = len.next_multiple_of(PAGE);
    let fd = stream.as_raw_fd();
    // SAFETY: a new mapping; nothing else refers to its memory.
    let pages = unsafe { libc::mmap(ptr::null_mut(), size, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    ensure!(pages != libc::MAP_FAILED, "mmap of a socket: {}", io::Error::last_os_error());
    let mut request = ZeroCopyReceive { address: pages as u64, length: len.try_into()?, recv_skip_hint: 0 };
    let mut request_len = libc::socklen_t::try_from(size_of::<ZeroCopyReceive>())?;
    // SAFETY: the kernel reads and writes the request, whose size it is told, and fills the mapping, which
    // is there till the end of this function.
    let result = unsafe {
        libc::getsockopt(
            fd,
            libc::IPPROTO_TCP,
            libc::TCP_ZEROCOPY_RECEIVE,
            (&raw mut request).cast(),
            &raw mut request_len,
        )
    };
    let error = io::Error::last_os_error();
    // SAFETY: mapped above, and used no more.
    unsafe { libc::munmap(pages, size) };
    if result != 0 {
        return Err(error).context("TCP_ZEROCOPY_RECEIVE");
    }
    let (mapped, to_copy) = (request.length.try_into()?, request.recv_skip_hint.try_into()?);
    Ok(ZeroCopied { mapped, to_copy })
}

//! The ways in which an application gives bytes to a TCP socket.

use std::{
    fs::File,
    io::{self, IoSlice, Write as _},
    net::TcpStream,
    os::fd::{AsFd as _, AsRawFd as _},
    thread,
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    fcntl::{SpliceFFlags, splice},
    sys::{
        sendfile::sendfile64,
        socket::{MsgFlags, send, sendmsg},
    },
    unistd::pipe,
};

use super::ring::{By, Ring};

/// Parts of one `writev`, of which many make a segment.
const PARTS: usize = 100;

/// Gives exactly N bytes in the named way, with as many calls as that needs.
pub(super) fn give(stream: &TcpStream, way: &str, bytes: usize) -> Result<u64> {
    let message = vec![b'g'; bytes];
    let mut call: Box<dyn FnMut(usize) -> Result<usize>> = match way {
        "send" => Box::new(|at| flagged(stream, &message[at..], MsgFlags::empty())),
        "send-more" => {
            Box::new(|at| flagged(stream, &message[at..], MsgFlags::from_bits_retain(libc::MSG_MORE)))
        }
        "send-zerocopy" => {
            set_option(stream, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)?;
            return zero_copy(stream, bytes);
        }
        "writev" => Box::new(|at| {
            let rest = &message[at..];
            let parts: Vec<_> = rest.chunks(rest.len().div_ceil(PARTS)).map(IoSlice::new).collect();
            Ok((&*stream).write_vectored(&parts)?)
        }),
        "sendmsg" => Box::new(|at| {
            let rest = &message[at..];
            let parts: Vec<_> = rest.chunks(rest.len().div_ceil(PARTS)).map(IoSlice::new).collect();
            Ok(sendmsg::<()>(stream.as_raw_fd(), &parts, &[], MsgFlags::empty(), None)?)
        }),
        "sendfile" => {
            let file = file_of(&message)?;
            Box::new(move |at| {
                let mut offset = at.try_into()?;
                Ok(sendfile64(stream, &file, Some(&mut offset), bytes - at)?)
            })
        }
        "splice" => return through_pipe(stream, &message),
        "ring" | "ring-worker" => {
            let mut ring = Ring::new(if way == "ring" { By::Submitter } else { By::Worker })?;
            Box::new(move |at| ring.send(stream, &message[at..]))
        }
        _ => bail!("no such way"),
    };
    let mut given = 0;
    while given < bytes {
        given += call(given)?;
    }
    Ok(given.try_into()?)
}

/// Lets TCP hold back segments that are not full, or go on (`TCP_CORK`).
pub(super) fn cork(stream: &TcpStream, on: bool) -> Result<()> {
    set_option(stream, libc::IPPROTO_TCP, libc::TCP_CORK, on.into())
}

fn flagged(stream: &TcpStream, message: &[u8], flags: MsgFlags) -> Result<usize> {
    Ok(send(stream.as_raw_fd(), message, flags)?)
}

/// Sends pages of this process itself. They are whole pages, so that their receiver can map them.
fn zero_copy(stream: &TcpStream, bytes: usize) -> Result<u64> {
    const PAGE: usize = 4096;
    let memory = vec![b'z'; bytes + PAGE];
    let start = memory.as_ptr().align_offset(PAGE);
    let message = &memory[start..start + bytes];
    let mut given = 0;
    while given < bytes {
        given += flagged(stream, &message[given..], MsgFlags::from_bits_retain(libc::MSG_ZEROCOPY))?;
    }
    Ok(given.try_into()?)
}

fn through_pipe(stream: &TcpStream, message: &[u8]) -> Result<u64> {
    let (out, into) = pipe()?;
    let mut into = File::from(into);
    // A pipe holds less than the message.
    thread::scope(|scope| {
        let filling = scope.spawn(move || into.write_all(message));
        let mut given = 0;
        while given < message.len() {
            let now = splice(&out, None, stream, None, message.len() - given, SpliceFFlags::empty())?;
            ensure!(now > 0, "the pipe ended after {given} bytes");
            given += now;
        }
        filling.join().map_err(|_| anyhow::anyhow!("the filling thread panicked"))??;
        Ok(given.try_into()?)
    })
}

/// A file in memory, which has pages that can be sent.
fn file_of(message: &[u8]) -> Result<File> {
    let mut file = tempfile::tempfile().context("a file to send")?;
    file.write_all(message)?;
    Ok(file)
}

fn set_option(stream: &TcpStream, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> Result<()> {
    let len = libc::socklen_t::try_from(size_of_val(&value))?;
    // SAFETY: the value is a number whose size is told.
    let result =
        unsafe { libc::setsockopt(stream.as_fd().as_raw_fd(), level, name, (&raw const value).cast(), len) };
    ensure!(result == 0, "option {name} of level {level}: {}", io::Error::last_os_error());
    Ok(())
}

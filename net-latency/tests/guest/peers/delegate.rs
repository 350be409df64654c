//! Others who use a peer's connection in its place: threads, children, heirs.

use std::{
    env,
    ffi::CString,
    io::{IoSlice, IoSliceMut, Read as _, Write as _},
    net::TcpStream,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
    process::{Command, Stdio, id},
    thread,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::{
        prctl,
        socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, fork, gettid},
};

use super::{ROLE, Role, give_next};
use crate::process::{PATIENCE, until};

/// Name of a child of a peer.
pub(crate) const CHILD: &str = "nl-child";
/// Name of a program that a peer executes.
pub(crate) const HEIR: &str = "nl-heir";

/// A thread of this process performs the command. Answers with its id.
pub(super) fn thread(role: &mut Role, command: &[&str]) -> Result<u64> {
    let work = || {
        role.perform(command)?;
        Ok(gettid().as_raw().try_into()?)
    };
    thread::scope(|scope| scope.spawn(work).join()).map_err(|_| anyhow!("the thread panicked"))?
}

/// [`thread()`] with this id, which is free.
pub(super) fn thread_as(role: &mut Role, id: u32, command: &[&str]) -> Result<u64> {
    let mut answer = None;
    until(PATIENCE, || {
        give_next(id)?;
        let work =
            || if gettid().as_raw().cast_unsigned() == id { Some(role.perform(command)) } else { None };
        answer =
            thread::scope(|scope| scope.spawn(work).join()).map_err(|_| anyhow!("the thread panicked"))?;
        Ok(answer.is_some())
    })?;
    answer.context("no thread has this id")?
}

/// A thread of this process that takes this name performs the command. Answers with its id.
pub(super) fn named(role: &mut Role, name: &str, command: &[&str]) -> Result<u64> {
    let name = CString::new(name)?;
    let work = || {
        prctl::set_name(&name)?;
        role.perform(command)?;
        Ok(gettid().as_raw().try_into()?)
    };
    thread::scope(|scope| scope.spawn(work).join()).map_err(|_| anyhow!("the thread panicked"))?
}

/// This thread writes while another one reads, as many messages each. Answers with the reader's id.
pub(super) fn duplex(stream: &TcpStream, messages: usize, len: usize) -> Result<u64> {
    let (mut from, mut to) = (stream, stream);
    thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut message = vec![0; len];
            for _ in 0..messages {
                from.read_exact(&mut message)?;
            }
            Ok(gettid().as_raw().try_into()?)
        });
        for _ in 0..messages {
            to.write_all(&vec![b'd'; len])?;
        }
        reader.join().map_err(|_| anyhow!("the reader panicked"))?
    })
}

/// A child that has inherited the connection performs the command and ends. Answers with its PID.
pub(super) fn child(role: &mut Role, command: &[&str]) -> Result<u64> {
    in_child(|| role.perform(command))
}

/// [`child`] with this process id, which is free.
pub(super) fn child_as(role: &mut Role, pid: u32, command: &[&str]) -> Result<u64> {
    let mut last = 0;
    until(PATIENCE, || {
        give_next(pid)?;
        last = in_child(|| if id() == pid { role.perform(command) } else { Ok(0) })?;
        Ok(last == u64::from(pid))
    })?;
    Ok(last)
}

/// Another process gets the connection as a message, performs the command and ends. Answers with its PID.
pub(super) fn pass(role: &mut Role, command: &[&str]) -> Result<u64> {
    let (from, to) = UnixStream::pair()?;
    let connection = [role.stream()?.as_raw_fd()];
    let rights = [ControlMessage::ScmRights(&connection)];
    sendmsg::<()>(from.as_raw_fd(), &[IoSlice::new(b"!")], &rights, MsgFlags::empty(), None)?;
    in_child(|| {
        // What it has inherited is none of its business.
        role.stream = None;
        let (mut byte, mut space) = ([0], nix::cmsg_space!(RawFd));
        let mut pieces = [IoSliceMut::new(&mut byte)];
        let message = recvmsg::<()>(to.as_raw_fd(), &mut pieces, Some(&mut space), MsgFlags::empty())?;
        let Some(ControlMessageOwned::ScmRights(connections)) = message.cmsgs()?.next() else {
            bail!("a message without a connection");
        };
        let connection = *connections.first().context("no connection in the message")?;
        // SAFETY: the kernel has just made this descriptor, and nothing else has it.
        role.stream = Some(unsafe { OwnedFd::from_raw_fd(connection) }.into());
        role.perform(command)
    })
}

/// Another program inherits the connection, performs the command and ends. Answers with its PID.
pub(super) fn heir(role: &Role, command: &[&str]) -> Result<u64> {
    let stream = role.stream()?;
    fcntl(stream, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let mut program = Command::new(env::current_exe()?);
    program.arg(ROLE).arg(HEIR).arg(stream.as_raw_fd().to_string());
    let heir = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    fcntl(stream, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    let pid = heir.id();
    writeln!(heir.stdin.as_ref().context("stdin is a pipe")?, "{}", command.join(" "))?;
    let answer = String::from_utf8(heir.wait_with_output()?.stdout)?;
    ensure!(answer.starts_with("ok "), "the heir: {answer}");
    Ok(pid.into())
}

fn in_child(work: impl FnOnce() -> Result<u64>) -> Result<u64> {
    // SAFETY: this process has one thread now, so that no lock can be held in the child for good.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let outcome = prctl::set_name(c"nl-child").map_err(Into::into).and_then(|()| work());
            if let Err(error) = &outcome {
                eprintln!("peer's child: {error:#}");
            }
            // SAFETY: ends the process; what its parent began is not for it to end.
            unsafe { libc::_exit(outcome.is_err().into()) }
        }
        ForkResult::Parent { child } => match waitpid(child, None)? {
            WaitStatus::Exited(_, 0) => Ok(child.as_raw().try_into()?),
            other => bail!("the child ended with {other:?}"),
        },
    }
}

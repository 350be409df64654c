//! Requests and answers, with a log of how long each took: what the tool shows has to lie between two bounds, since the kernel is on
//! its way between the calls.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    os::fd::AsFd as _,
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The shortest and the longest of some times.
#[derive(Clone, Copy, Debug)]
struct Span {
    least: Duration,
    most: Duration,
}

impl Default for Span {
    fn default() -> Self {
        Self { least: Duration::MAX, most: Duration::ZERO }
    }
}

impl Span {
    fn add(&mut self, time: Duration) {
        (self.least, self.most) = (self.least.min(time), self.most.max(time));
    }
}

/// How long exchanges took: within calls that surely are a part of it, and with those that may be.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Log {
    inner: Span,
    outer: Span,
}

impl Log {
    /// Answers requests of `len` bytes, the first after `pause`, and each later than the one before by as much.
    pub(super) fn serve(
        &mut self,
        mut stream: &TcpStream,
        rounds: u32,
        len: usize,
        pause: Duration,
    ) -> Result<u64> {
        *self = Self::default();
        let mut message = vec![0; len];
        for round in 1..=rounds {
            poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
            let before = Instant::now();
            stream.read_exact(&mut message)?;
            let read = Instant::now();
            sleep(pause * round);
            let writes = Instant::now();
            stream.write_all(&message)?;
            self.inner.add(writes - read);
            self.outer.add(before.elapsed());
        }
        Ok(rounds.into())
    }

    /// Asks, and reads the answers.
    pub(super) fn request(&mut self, mut stream: &TcpStream, rounds: u32, len: usize) -> Result<u64> {
        *self = Self::default();
        let mut message = vec![b'r'; len];
        for _ in 0..rounds {
            let before = Instant::now();
            stream.write_all(&message)?;
            poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE)?;
            self.outer.add(before.elapsed());
            stream.read_exact(&mut message)?;
        }
        Ok(rounds.into())
    }

    /// One of the bounds, ns.
    pub(super) fn bound(&self, name: &str) -> Result<u64> {
        let time = match name {
            "shortest-inner" => self.inner.least,
            "longest-inner" => self.inner.most,
            "shortest-outer" => self.outer.least,
            "longest-outer" => self.outer.most,
            _ => bail!("unknown bound"),
        };
        Ok(time.as_nanos().try_into()?)
    }
}

//! Sending and receiving by io_uring.

use std::{net::TcpStream, os::fd::AsRawFd as _};

use anyhow::{Context as _, Result};
use io_uring::{IoUring, opcode, squeue, types::Fd};

/// The task that carries an operation out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// The task that submits it, if it can be done at once; the same task later if not.
    Submitter,
    /// A worker thread that the kernel adds to the process (`IOSQE_ASYNC`).
    Worker,
}

/// A ring of one operation at a time.
pub(super) struct Ring {
    ring: IoUring,
    by: By,
}

impl Ring {
    pub(super) fn new(by: By) -> Result<Self> {
        Ok(Self { ring: IoUring::new(1).context("io_uring_setup")?, by })
    }

    pub(super) fn receive(&mut self, stream: &TcpStream, buffer: &mut [u8]) -> Result<usize> {
        let len = buffer.len().try_into()?;
        let entry = opcode::Recv::new(Fd(stream.as_raw_fd()), buffer.as_mut_ptr(), len).build();
        // SAFETY: the buffer is borrowed until the operation is over.
        unsafe { self.perform(&entry) }
    }

    pub(super) fn send(&mut self, stream: &TcpStream, bytes: &[u8]) -> Result<usize> {
        let len = bytes.len().try_into()?;
        let entry = opcode::Send::new(Fd(stream.as_raw_fd()), bytes.as_ptr(), len).build();
        // SAFETY: the bytes are borrowed until the operation is over.
        unsafe { self.perform(&entry) }
    }

    /// Submits an operation and waits until it is over.
    ///
    /// # Safety
    /// What the operation refers to lives for the time of the call.
    unsafe fn perform(&mut self, entry: &squeue::Entry) -> Result<usize> {
        let flags = match self.by {
            By::Submitter => squeue::Flags::empty(),
            By::Worker => squeue::Flags::ASYNC,
        };
        // SAFETY: the caller's promise; the only way out of this function is past the completion.
        unsafe { self.ring.submission().push(&entry.clone().flags(flags)) }.context("the ring is full")?;
        while self.ring.submit_and_wait(1).is_err_and(|error| error.kind() == std::io::ErrorKind::Interrupted)
        {
        }
        let completion = self.ring.completion().next().context("io_uring_enter did not wait")?;
        let result = completion.result();
        usize::try_from(result).map_err(|_| std::io::Error::from_raw_os_error(-result).into())
    }
}

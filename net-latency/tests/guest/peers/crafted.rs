//! Several connections whose segments another peer makes by hand ([`super::forge`]), and what their reader does meanwhile.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    net::{IpAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    ptr,
    thread::{self, JoinHandle},
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use super::{forge::numbers, ways};
use crate::process::{PATIENCE, until};

/// Of linux/tcp.h.
const TCP_TIMESTAMP: libc::c_int = 24;
const PAGE: usize = 4096;

/// The connections, by number.
#[derive(Default)]
pub(super) struct Crafted {
    streams: Vec<TcpStream>,
    held: Vec<(usize, Held)>,
}

impl Crafted {
    pub(super) fn perform(&mut self, listener: Option<&TcpListener>, command: &[&str]) -> Result<u64> {
        match command {
            ["accept", count] => {
                for _ in 0..count.parse()? {
                    self.streams.push(listener.context("not listening")?.accept()?.0);
                }
                Ok(0)
            }
            ["connect", address, port, count] => {
                for _ in 0..count.parse()? {
                    let stream = TcpStream::connect((address.parse::<IpAddr>()?, port.parse()?))?;
                    stream.set_nodelay(true)?;
                    self.streams.push(stream);
                }
                Ok(0)
            }
            ["port", number] => Ok(self.stream(number)?.local_addr()?.port().into()),
            // Writes, and waits until it is acknowledged. What comes next begins with this number.
            ["write", number, bytes] => {
                let mut stream = self.stream(number)?;
                stream.write_all(&vec![b'w'; bytes.parse()?])?;
                until(PATIENCE, || Ok(super::tcp_info(stream)?.tcpi_unacked == 0))?;
                Ok(numbers(stream)?[1].into())
            }
            ["received", number] => Ok(numbers(self.stream(number)?)?[0].into()),
            // What its next segment has as a timestamp.
            ["clock", number] => {
                let mut clock = [0; 4];
                ways::get(self.stream(number)?, libc::IPPROTO_TCP, TCP_TIMESTAMP, &mut clock)
                    .context("TCP_TIMESTAMP")?;
                Ok(u32::from_ne_bytes(clock).into())
            }
            // Reads the bytes there, N at most, and adds them to a file.
            ["take", number, most, file] => take(self.stream(number)?, most.parse()?, file),
            ["peek", number, most] => {
                Ok(available(self.stream(number)?, &mut vec![0; most.parse()?], libc::MSG_PEEK)? as u64)
            }
            // Keeps what comes out of TCP's hands until it is released; not if there is no byte to look at, which is answered by 0.
            ["hold", number] => {
                let stream = self.stream(number)?;
                if available(stream, &mut [0], libc::MSG_PEEK)? == 0 {
                    return Ok(0);
                }
                let held = Held::new(stream)?;
                self.held.push((number.parse()?, held));
                Ok(1)
            }
            ["release", number] => {
                let number: usize = number.parse()?;
                if let Some(place) = self.held.iter().position(|(held, _)| *held == number) {
                    self.held.remove(place).1.release()?;
                }
                Ok(0)
            }
            ["close", number] => {
                let _closed = self.streams.remove(number.parse()?);
                Ok(0)
            }
            _ => bail!("unknown command"),
        }
    }

    fn stream(&self, number: &str) -> Result<&TcpStream> {
        self.streams.get(number.parse::<usize>()?).context("no such connection")
    }
}

fn take(stream: &TcpStream, most: usize, file: &str) -> Result<u64> {
    let mut bytes = vec![0; most];
    let taken = available(stream, &mut bytes, 0)?;
    let mut file = OpenOptions::new().append(true).create(true).open(file)?;
    file.write_all(&bytes[..taken])?;
    Ok(taken.try_into()?)
}

/// The number of bytes that one call receives; 0 if there are none.
fn available(stream: &TcpStream, bytes: &mut [u8], flags: libc::c_int) -> Result<usize> {
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: the buffer is as long as said.
    let taken = unsafe { libc::recv(stream.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    match usize::try_from(taken) {
        Ok(taken) => Ok(taken),
        Err(_) if io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(_) => Err(io::Error::last_os_error().into()),
    }
}

/// A thread that looks at a socket's first byte, and gets no page to put it into (userfaultfd(2)): it owns the socket meanwhile, and all
/// that comes goes to the socket's backlog.
struct Held {
    faults: File,
    page: usize,
    looks: JoinHandle<Result<()>>,
}

// Of linux/userfaultfd.h.
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_long = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_long = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_long = 0xc020_aa04;
const UFFDIO_REGISTER_MODE_MISSING: u64 = 1;
/// Of `struct uffd_msg`.
const MESSAGE: usize = 32;

impl Held {
    fn new(stream: &TcpStream) -> Result<Self> {
        // SAFETY: no memory is involved.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        ensure!(faults >= 0, "userfaultfd: {}", io::Error::last_os_error());
        // SAFETY: the kernel has just made this descriptor, and nothing else has it.
        let mut faults = File::from(unsafe { OwnedFd::from_raw_fd(faults.try_into()?) });
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping; nothing else refers to its memory.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE, access, flags, -1, 0) };
        ensure!(page != libc::MAP_FAILED, "mmap: {}", io::Error::last_os_error());
        let page = page as usize;
        // Version, wanted features; the kernel says what it can.
        control(&faults, UFFDIO_API, &mut [UFFD_API, 0, 0]).context("UFFDIO_API")?;
        let mut range = [page as u64, PAGE as u64, UFFDIO_REGISTER_MODE_MISSING, 0];
        control(&faults, UFFDIO_REGISTER, &mut range).context("UFFDIO_REGISTER")?;
        let socket = stream.try_clone()?;
        let looks = thread::spawn(move || {
            let place = page as *mut libc::c_void;
            // SAFETY: the page is there until this thread has ended, and nothing else writes to it.
            let seen = unsafe { libc::recv(socket.as_raw_fd(), place, 1, libc::MSG_PEEK) };
            ensure!(seen == 1, "{seen} bytes seen: {}", io::Error::last_os_error());
            Ok(())
        });
        // It waits by now.
        faults.read_exact(&mut [0; MESSAGE]).context("no fault")?;
        Ok(Self { faults, page, looks })
    }

    fn release(self) -> Result<()> {
        let mut range = [self.page as u64, PAGE as u64, 0, 0];
        control(&self.faults, UFFDIO_ZEROPAGE, &mut range).context("UFFDIO_ZEROPAGE")?;
        self.looks.join().map_err(|_| anyhow!("the thread panicked"))??;
        // SAFETY: mapped by `new`, and used no more.
        let result = unsafe { libc::munmap(self.page as *mut libc::c_void, PAGE) };
        ensure!(result == 0, io::Error::last_os_error());
        Ok(())
    }
}

/// An ioctl whose argument is N words.
fn control<const WORDS: usize>(
    faults: &File,
    request: libc::c_long,
    argument: &mut [u64; WORDS],
) -> Result<()> {
    // SAFETY: the number of the request says how long its argument is, which is as long as this.
    let result =
        unsafe { libc::syscall(libc::SYS_ioctl, faults.as_raw_fd(), request, argument.as_mut_ptr()) };
    ensure!(result == 0, io::Error::last_os_error());
    Ok(())
}

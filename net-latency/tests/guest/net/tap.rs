//! Packet sockets beside the IP stack, as DHCP clients and tcpdump have them.

use std::{
    io, mem,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::{
    errno::Errno,
    net::if_::if_nametoindex,
    sys::{
        socket::{MsgFlags, recv, setsockopt, sockopt},
        time::{TimeVal, TimeValLike as _},
    },
};

use super::{FAR, NEAR, Path, Version, places::UPPER};

// Of linux/if_packet.h.
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_FANOUT: libc::c_int = 18;
const PACKET_FANOUT_FLAG_DEFRAG: u32 = 0x8000;
/// After so long a reader looks whether it is to end.
const LOOK_MS: i64 = 100;
/// Of a reader that is slow, before each packet.
const PAUSE: Duration = Duration::from_millis(3);

/// Which packets a packet socket gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taps {
    /// Those of one protocol: it comes behind IP in the list of a packet's receivers, so that IP's handler finds the skb shared.
    Ip(Version),
    /// All: it comes before IP, and makes a clone of its own (`packet_rcv`).
    All,
}

/// What its owner does with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// Reads them, slowly.
    Slow,
    /// Leaves them where they are, as far as there is room; the rest the kernel drops.
    Keeps,
    /// Has a filter that takes none, as that of a DHCP client takes only DHCP.
    Filters,
    /// Has them in whole datagrams, in a group of sockets that get a share each (`PACKET_FANOUT_FLAG_DEFRAG`).
    Defragments,
}

/// A packet socket and its reader.
pub(crate) struct Tap {
    socket: Arc<OwnedFd>,
    end: Arc<AtomicBool>,
    reader: Option<JoinHandle<Result<()>>>,
    manner: Manner,
}

impl Path {
    /// Packet sockets bound to the devices of both ends.
    pub(crate) fn tap(&self, taps: Taps, manner: Manner) -> Result<Vec<Tap>> {
        Ok(vec![self.near(|| Tap::open(NEAR, taps, manner))?, self.far(|| Tap::open(FAR, taps, manner))?])
    }

    /// Packet sockets bound to the devices that stand upon those.
    pub(crate) fn tap_upper(&self, taps: Taps, manner: Manner) -> Result<Vec<Tap>> {
        let open = || Tap::open(UPPER, taps, manner);
        Ok(vec![self.near(open)?, self.far(open)?])
    }
}

impl Tap {
    pub(super) fn open(device: &str, taps: Taps, manner: Manner) -> Result<Self> {
        let protocol = match taps {
            Taps::Ip(Version::V4) => libc::ETH_P_IP,
            Taps::Ip(Version::V6) => libc::ETH_P_IPV6,
            Taps::All => libc::ETH_P_ALL,
        };
        // Without a protocol it gets nothing until it is bound.
        // SAFETY: no pointer is passed.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        ensure!(socket >= 0, "a packet socket: {}", io::Error::last_os_error());
        // SAFETY: the kernel has just made this descriptor, and nothing else has it.
        let socket = Arc::new(unsafe { OwnedFd::from_raw_fd(socket) });
        if manner == Manner::Filters {
            take_none(&socket)?;
        }
        // SAFETY: all of the address are numbers, for which zero is a value.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = u16::try_from(libc::AF_PACKET)?;
        address.sll_protocol = u16::try_from(protocol)?.to_be();
        address.sll_ifindex = if_nametoindex(device)?.try_into()?;
        let len = libc::socklen_t::try_from(size_of_val(&address))?;
        // SAFETY: the address is as long as said.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        ensure!(bound == 0, "binding a packet socket: {}", io::Error::last_os_error());
        if manner == Manner::Defragments {
            let group = std::process::id() & 0xffff;
            option(&socket, libc::SOL_PACKET, PACKET_FANOUT, &(group | PACKET_FANOUT_FLAG_DEFRAG << 16))?;
        }
        setsockopt(&socket, sockopt::ReceiveTimeout, &TimeVal::milliseconds(LOOK_MS))?;
        let end = Arc::new(AtomicBool::new(false));
        let reader = matches!(manner, Manner::Slow | Manner::Defragments).then(|| {
            let (socket, end) = (Arc::clone(&socket), Arc::clone(&end));
            thread::spawn(move || read_slowly(&socket, &end))
        });
        Ok(Self { socket, end, reader, manner })
    }

    /// Ends it. Fails unless it got as many packets, so that IP had company; one with a filter counts none.
    pub(crate) fn finish(mut self, least: u32) -> Result<()> {
        let got = statistics(&self.socket)?;
        self.end.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().map_err(|_| anyhow!("a packet socket's reader panicked"))??;
        }
        ensure!(self.manner == Manner::Filters || got >= least, "the packet socket got only {got} packets");
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

/// Ends packet sockets, each of which got as many packets.
pub(crate) fn finish(taps: Vec<Tap>, least: u32) -> Result<()> {
    taps.into_iter().try_for_each(|tap| tap.finish(least))
}

fn read_slowly(socket: &OwnedFd, end: &AtomicBool) -> Result<()> {
    let mut packet = [0; 2048];
    while !end.load(Ordering::Relaxed) {
        match recv(socket.as_raw_fd(), &mut packet, MsgFlags::empty()) {
            Ok(_) => thread::sleep(PAUSE),
            Err(Errno::EAGAIN) => {}
            // Its device has gone with its namespace.
            Err(Errno::ENETDOWN) => break,
            Err(error) => return Err(error).context("reading from a packet socket"),
        }
    }
    Ok(())
}

/// A filter of one instruction that takes no byte of any packet.
fn take_none(socket: &OwnedFd) -> Result<()> {
    /// `BPF_RET | BPF_K` of linux/bpf_common.h.
    const RETURN: u16 = 0x06;
    let mut program = [libc::sock_filter { code: RETURN, jt: 0, jf: 0, k: 0 }];
    let filter = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
}

fn option<T>(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: &T) -> Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>())?;
    // SAFETY: the value is as long as said, and what a filter points to outlives the call.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    ensure!(result == 0, "an option of a packet socket: {}", io::Error::last_os_error());
    Ok(())
}

/// How many packets it got, those for which there was no room included.
fn statistics(socket: &OwnedFd) -> Result<u32> {
    // struct tpacket_stats: packets, of which N were dropped.
    let mut counts = [0_u32; 2];
    let mut len = libc::socklen_t::try_from(size_of_val(&counts))?;
    // SAFETY: the buffer is as long as said.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            PACKET_STATISTICS,
            counts.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    ensure!(result == 0, "PACKET_STATISTICS: {}", io::Error::last_os_error());
    Ok(counts[0])
}

//! A queue of netfilter's whose packets a program of ours judges (`nfnetlink_queue`).

use std::{
    os::fd::{AsRawFd as _, OwnedFd},
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
    sys::{
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
            sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

use super::{Request, acknowledged};
use crate::peers::checksum;

// Of linux/netfilter/nfnetlink_queue.h and linux/netfilter.h. Numbers in attributes are in network order.
const NFNL_SUBSYS_QUEUE: u16 = 3;
const NFQNL_MSG_PACKET: u16 = 0;
const NFQNL_MSG_VERDICT: u16 = 1;
const NFQNL_MSG_CONFIG: u16 = 2;
const NFQA_PACKET_HDR: u16 = 1;
const NFQA_VERDICT_HDR: u16 = 2;
const NFQA_PAYLOAD: u16 = 10;
const NFQA_CFG_CMD: u16 = 1;
const NFQA_CFG_PARAMS: u16 = 2;
const NFQA_CFG_QUEUE_MAXLEN: u16 = 3;
const NFQA_CFG_MASK: u16 = 4;
const NFQA_CFG_FLAGS: u16 = 5;
const NFQNL_CFG_CMD_BIND: u8 = 1;
const NFQNL_COPY_META: u8 = 1;
const NFQNL_COPY_PACKET: u8 = 2;
const NFQA_CFG_F_GSO: u32 = 1 << 2;
const NF_ACCEPT: u32 = 1;

/// Behind the headers of netlink and nfnetlink.
const ATTRIBUTES: usize = 20;
const IP_HEADER: usize = 20;
const UDP_HEADER: usize = 8;
/// After so long it looks whether it is to end.
const LOOK_MS: i64 = 100;

/// How packets are judged: all of them are accepted in the end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Whether packets that are to be segmented, or that GRO has merged, come whole (`NFQA_CFG_F_GSO`). Else the kernel segments them
    /// before (`nfqnl_enqueue_packet`).
    pub(crate) takes_whole: bool,
    /// For every packet whose number it divides, the first being 1,
    pub(crate) every: u64,
    /// the verdict comes this much later.
    pub(crate) delay: Duration,
    /// By how many bytes it makes a datagram of IPv4 longer.
    pub(crate) grows_by: usize,
}

/// A queue and its judge.
pub(crate) struct Verdicts {
    end: Arc<AtomicBool>,
    judge: Option<JoinHandle<Result<u64>>>,
}

impl Verdicts {
    /// Binds the queue of that number in the calling thread's namespace.
    pub(crate) fn start(number: u16, manner: Manner) -> Result<Self> {
        let netlink = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkNetFilter,
        )?;
        setsockopt(&netlink, sockopt::ReceiveTimeout, &TimeVal::seconds(10))?;
        // A packet for which there is no room is dropped.
        setsockopt(&netlink, sockopt::RcvBufForce, &(16 << 20))?;
        let mut bind = message(NFQNL_MSG_CONFIG, number, libc::NLM_F_ACK);
        // struct nfqnl_msg_config_cmd: the command, padding, a family that no kernel asks for any more.
        bind.attribute(NFQA_CFG_CMD, &[NFQNL_CFG_CMD_BIND, 0, 0, 0]);
        acknowledged(&netlink, &bind.finished()?, 1).context("binding a queue")?;
        let mut configure = message(NFQNL_MSG_CONFIG, number, libc::NLM_F_ACK);
        // struct nfqnl_msg_config_params: bytes to copy, and whether.
        let copy = if manner.grows_by > 0 { NFQNL_COPY_PACKET } else { NFQNL_COPY_META };
        configure.attribute(NFQA_CFG_PARAMS, &[&0xffff_u32.to_be_bytes()[..], &[copy]].concat());
        configure.attribute(NFQA_CFG_QUEUE_MAXLEN, &100_000_u32.to_be_bytes());
        let flags = if manner.takes_whole { NFQA_CFG_F_GSO } else { 0 };
        configure.attribute(NFQA_CFG_MASK, &NFQA_CFG_F_GSO.to_be_bytes());
        configure.attribute(NFQA_CFG_FLAGS, &flags.to_be_bytes());
        acknowledged(&netlink, &configure.finished()?, 1).context("configuring a queue")?;
        setsockopt(&netlink, sockopt::ReceiveTimeout, &TimeVal::milliseconds(LOOK_MS))?;
        let end = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&end);
        let judge = thread::spawn(move || judge(&netlink, number, manner, &is_over));
        Ok(Self { end, judge: Some(judge) })
    }

    /// Ends it, and says how many packets it has judged.
    pub(crate) fn finish(mut self) -> Result<u64> {
        self.end.store(true, Ordering::Relaxed);
        let judge = self.judge.take().context("ended before")?;
        judge.join().map_err(|_| anyhow!("the judge panicked"))?
    }
}

impl Drop for Verdicts {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
    }
}

fn judge(netlink: &OwnedFd, number: u16, manner: Manner, end: &AtomicBool) -> Result<u64> {
    let mut judged = 0;
    let mut buffer = vec![0; 1 << 17];
    while !end.load(Ordering::Relaxed) {
        let len = match recv(netlink.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
            Ok(len) => len,
            Err(Errno::EAGAIN) => continue,
            Err(error) => return Err(error).context("reading from a queue"),
        };
        // A device that goes takes its packets from the queue (`nfqnl_dev_drop`): there is none for the verdict then.
        if refusal(&buffer[..len]) == Some(Errno::ENOENT) {
            continue;
        }
        let (id, payload) = parse(&buffer[..len])?;
        judged += 1;
        if judged % manner.every == 0 {
            thread::sleep(manner.delay);
        }
        let mut verdict = message(NFQNL_MSG_VERDICT, number, 0);
        // struct nfqnl_msg_verdict_hdr: the verdict, and on which packet.
        verdict.attribute(NFQA_VERDICT_HDR, &[NF_ACCEPT.to_be_bytes(), id].concat());
        if manner.grows_by > 0 {
            verdict.attribute(NFQA_PAYLOAD, &grown(payload, manner.grows_by)?);
        }
        send(netlink.as_raw_fd(), &verdict.finished()?, MsgFlags::empty()).context("a verdict")?;
    }
    Ok(judged)
}

/// Why the kernel takes no verdict, if a message says so.
fn refusal(message: &[u8]) -> Option<Errno> {
    // struct nlmsghdr, whose kind is at 4, and struct nlmsgerr, which begins with the error.
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    let error = i32::from_ne_bytes(message.get(16..20)?.try_into().ok()?);
    (i32::from(kind) == libc::NLMSG_ERROR).then(|| Errno::from_raw(-error))
}

/// The number of a packet, and as much of it as is there.
fn parse(message: &[u8]) -> Result<([u8; 4], &[u8])> {
    let half = |at: usize| Some(u16::from_ne_bytes(message.get(at..at + 2)?.try_into().ok()?));
    let kind = half(4).context("no message")?;
    ensure!(kind == NFNL_SUBSYS_QUEUE << 8 | NFQNL_MSG_PACKET, "a message of kind {kind:#x}");
    let (mut id, mut payload) = (None, &message[..0]);
    let mut at = ATTRIBUTES;
    while let (Some(len), Some(kind)) = (half(at), half(at + 2)) {
        let value = message.get(at + 4..at + usize::from(len)).context("an attribute is cut")?;
        match kind {
            NFQA_PACKET_HDR => id = Some(value.get(..4).context("no number")?.try_into()?),
            NFQA_PAYLOAD => payload = value,
            _ => {}
        }
        at += usize::from(len).next_multiple_of(4);
    }
    Ok((id.context("a packet without a number")?, payload))
}

/// A datagram of IPv4 with N bytes more.
fn grown(packet: &[u8], by: usize) -> Result<Vec<u8>> {
    let mut packet = packet.to_vec();
    packet.resize(packet.len() + by, b'g');
    let len = u16::try_from(packet.len())?;
    ensure!(packet.first() == Some(&0x45) && packet.len() > IP_HEADER + UDP_HEADER, "no datagram of IPv4");
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[10..12].fill(0);
    let sum = checksum(&packet[..IP_HEADER]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    let datagram = len - u16::try_from(IP_HEADER)?;
    packet[IP_HEADER + 4..IP_HEADER + 6].copy_from_slice(&datagram.to_be_bytes());
    // No checksum, which IPv4 allows.
    packet[IP_HEADER + 6..IP_HEADER + 8].fill(0);
    Ok(packet)
}

/// A message of a queue.
fn message(kind: u16, number: u16, flags: libc::c_int) -> Request {
    let mut request = Request::with_flags(NFNL_SUBSYS_QUEUE << 8 | kind, libc::NLM_F_REQUEST | flags);
    let [high, low] = number.to_be_bytes();
    // struct nfgenmsg: family, version, resource.
    request.put(&[0, 0, high, low]);
    request
}

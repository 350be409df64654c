//! Network namespaces, veth links and netem, by rtnetlink: the guest has no `ip` or `tc` that can.

mod cards;
mod devices;
mod egress;
mod filter;
mod links;
mod places;
mod qdisc;
pub(crate) mod tap;
pub(crate) mod verdicts;
pub(crate) mod xdp;

pub(crate) use egress::Refused;
pub(crate) use filter::{
    Hook, destination_nat, drop_from, drop_port, drop_sent, forget_rules, queue_port, transparent_proxy,
};
pub(crate) use places::{counter, counter_v6};
use qdisc::Netem;

use std::{
    fs::{self, File},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd},
    process, thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use nix::{
    net::if_::if_nametoindex,
    sched::{CloneFlags, setns, unshare},
    sys::{
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
            sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};

/// The end of the link in the client's namespace.
pub(crate) const NEAR: &str = "nl-near";
/// The end of the link in the server's namespace.
const FAR: &str = "nl-far";

/// Values of `arp_ignore`.
const ALWAYS: &str = "0";
const NEVER: &str = "8";

/// A network namespace, which lives as long as something refers to it.
pub(crate) struct Namespace(File);

impl Namespace {
    fn new() -> Result<Self> {
        on_thread(|| {
            unshare(CloneFlags::CLONE_NEWNET).context("unshare(CLONE_NEWNET)")?;
            probe_for_lost_tails(false)?;
            // Else a router has no address by which to ask for its neighbours for the first three seconds or so, after which it gives up.
            for devices in ["all", "default"] {
                fs::write(format!("/proc/sys/net/ipv6/conf/{devices}/accept_dad"), "0")
                    .context("accept_dad")?;
            }
            Ok(Self(File::open("/proc/thread-self/ns/net")?))
        })
    }

    /// Runs `work` inside. What it starts stays there.
    fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        on_thread(|| {
            setns(self.0.as_fd(), CloneFlags::CLONE_NEWNET).context("setns")?;
            work()
        })
    }
}

/// Whether TCP sends segments again whose ACK comes later than it expects, in the calling thread's namespace. In ours it does not: on a
/// busy machine that would be packets that the tests don't expect.
fn probe_for_lost_tails(on: bool) -> Result<()> {
    let value = if on { "3" } else { "0" };
    fs::write("/proc/sys/net/ipv4/tcp_early_retrans", value).context("tcp_early_retrans")
}

/// Namespaces belong to threads; a short-lived one leaves the caller's alone.
pub(crate) fn on_thread<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(work).join()).map_err(|_| anyhow!("a helper thread panicked"))?
}

/// The IP version of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    V4,
    V6,
}

/// What lies between a client and a server.
pub(crate) enum Between {
    /// Nothing.
    Nothing,
    /// A bridge, or a redirect each way.
    Bridge(Namespace),
    /// Routers, so that packets enter this machine's stack several times and the tool must know.
    Routers(Vec<Namespace>),
}

/// What lies between a client and a server.
pub(crate) enum Path {
    /// A loopback device, the caller's or that of a namespace.
    Loopback { inside: Option<Namespace>, version: Version },
    /// A veth link between two namespaces, or two cards that are wired up.
    Veth { near: Namespace, far: Namespace, version: Version },
    /// Two namespaces and what else there is between them, with addresses of their own.
    Place { near: Namespace, far: Namespace, between: Between, addresses: (IpAddr, IpAddr) },
}

impl Path {
    pub(crate) fn loopback(version: Version) -> Result<Self> {
        set_up("lo")?;
        probe_for_lost_tails(false)?;
        Ok(Self::Loopback { inside: None, version })
    }

    /// The loopback device of a new namespace, for cases that change how TCP works there.
    pub(crate) fn private_loopback(version: Version) -> Result<Self> {
        let inside = Namespace::new()?;
        inside.inside(|| set_up("lo"))?;
        Ok(Self::Loopback { inside: Some(inside), version })
    }

    /// Has the client's TCP probe for a lost tail, as it does unless it is kept from it.
    pub(crate) fn with_tail_loss_probes(self) -> Result<Self> {
        self.near(|| probe_for_lost_tails(true))?;
        Ok(self)
    }

    /// Lets the client's congestion window grow with whatever is acknowledged. Cubic stops at a delay (HyStart), such as a busy
    /// machine makes, and after a pause TCP begins anew.
    pub(crate) fn with_growing_window(self) -> Result<Self> {
        self.near(|| {
            fs::write("/proc/sys/net/ipv4/tcp_congestion_control", "reno")?;
            Ok(fs::write("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "0")?)
        })?;
        Ok(self)
    }

    /// Has the client's TCP send each small write at once, though another one of its packets waits in the device's queue.
    pub(crate) fn without_autocorking(self) -> Result<Self> {
        self.near(|| Ok(fs::write("/proc/sys/net/ipv4/tcp_autocorking", "0")?))?;
        Ok(self)
    }

    /// Keeps the client's TCP from taking for lost what others overtake, before its timer runs out. For connections to come.
    pub(crate) fn without_guesses(self) -> Result<Self> {
        self.near(|| {
            // Not by how many overtake it, nor by how long they do (RACK).
            fs::write("/proc/sys/net/ipv4/tcp_reordering", "127")?;
            Ok(fs::write("/proc/sys/net/ipv4/tcp_recovery", "0")?)
        })?;
        Ok(self)
    }

    /// Keeps the client's TCP from leaving more bytes of a socket in the device's queue, from now on.
    pub(crate) fn limit_queued(&self, bytes: u32) -> Result<()> {
        self.near(|| Ok(fs::write("/proc/sys/net/ipv4/tcp_limit_output_bytes", bytes.to_string())?))
    }

    pub(crate) fn veth(version: Version) -> Result<Self> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        near.inside(|| create_veth(NEAR, FAR, far.0.as_raw_fd()))?;
        Self::linked(near, far, version)
    }

    /// The path between two namespaces that have an end of a link each.
    fn linked(near: Namespace, far: Namespace, version: Version) -> Result<Self> {
        let path = Self::Veth { near, far, version };
        let (near, far) = path.addresses();
        // Both ends up before an address: without a carrier IPv6 would not take it into use at once.
        path.near(|| set_up(NEAR))?;
        path.far(|| set_up(FAR))?;
        path.near(|| add_address(NEAR, near))?;
        path.far(|| add_address(FAR, far))?;
        Ok(path)
    }

    /// Delays what the client's end of a veth link sends.
    pub(crate) fn delay(&self, delay: Duration) -> Result<()> {
        self.near(|| Netem::delay(delay).apply(NEAR))
    }

    /// Delays what the server's end of a veth link sends.
    pub(crate) fn delay_answers(&self, delay: Duration) -> Result<()> {
        self.far(|| Netem::delay(delay).apply(FAR))
    }

    /// Has the client's end of a veth link (IPv4) forget the other's device address, which does not tell it any more: packets wait below IP
    /// until [`Self::tell_neighbour`].
    pub(crate) fn forget_neighbour(&self) -> Result<()> {
        // Questions without an answer are repeated every 20 ms, for 10 s.
        let asks = [("retrans_time_ms", "20"), ("mcast_solicit", "500")];
        self.ask_neighbour(NEVER)?;
        let (_, far) = self.addresses();
        let IpAddr::V4(far) = far else { bail!("{far} has other neighbours") };
        self.near(|| {
            for (setting, value) in asks {
                fs::write(format!("/proc/sys/net/ipv4/neigh/{NEAR}/{setting}"), value).context(setting)?;
            }
            links::forget_neighbour(far, NEAR)
        })
    }

    /// [`Self::forget_neighbour`], but packets are dropped after two questions, which takes some 40 ms (`neigh_invalidate`).
    pub(crate) fn lose_neighbour(&self) -> Result<()> {
        self.forget_neighbour()?;
        self.near(|| {
            // Packets to an own address go by this one.
            set_up("lo")?;
            Ok(fs::write(format!("/proc/sys/net/ipv4/neigh/{NEAR}/mcast_solicit"), "2")?)
        })
    }

    /// Ends that.
    pub(crate) fn tell_neighbour(&self) -> Result<()> {
        self.ask_neighbour(ALWAYS)
    }

    /// When the server's end answers questions for its device address.
    fn ask_neighbour(&self, answers: &str) -> Result<()> {
        self.far(|| Ok(fs::write("/proc/sys/net/ipv4/conf/all/arp_ignore", answers)?))
    }

    /// The client's and the server's address.
    pub(crate) fn addresses(&self) -> (IpAddr, IpAddr) {
        match self {
            Self::Loopback { version: Version::V4, .. } => {
                (Ipv4Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into())
            }
            Self::Loopback { version: Version::V6, .. } => {
                (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into())
            }
            Self::Veth { version: Version::V4, .. } => {
                (Ipv4Addr::new(10, 77, 0, 1).into(), Ipv4Addr::new(10, 77, 0, 2).into())
            }
            Self::Veth { version: Version::V6, .. } => (
                Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1).into(),
                Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2).into(),
            ),
            Self::Place { addresses, .. } => *addresses,
        }
    }

    /// A name of the client's namespace, as long as this lives.
    pub(crate) fn near_namespace(&self) -> String {
        match self {
            Self::Loopback { inside: None, .. } => "/proc/self/ns/net".to_owned(),
            Self::Loopback { inside: Some(near), .. }
            | Self::Veth { near, .. }
            | Self::Place { near, .. } => format!("/proc/{}/fd/{}", process::id(), near.0.as_raw_fd()),
        }
    }

    /// Runs `work` in the client's namespace.
    pub(crate) fn near<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match self {
            Self::Loopback { inside: None, .. } => work(),
            Self::Loopback { inside: Some(near), .. }
            | Self::Veth { near, .. }
            | Self::Place { near, .. } => near.inside(work),
        }
    }

    /// Runs `work` in the server's namespace.
    pub(crate) fn far<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match self {
            Self::Loopback { inside: None, .. } => work(),
            Self::Loopback { inside: Some(far), .. } | Self::Veth { far, .. } | Self::Place { far, .. } => {
                far.inside(work)
            }
        }
    }
}

// Of linux/if_link.h and linux/veth.h, where libc has them not.
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;
const VETH_INFO_PEER: u16 = 1;

fn create_veth(name: &str, peer: &str, peer_namespace: RawFd) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    request.link(0, 0);
    request.attribute(libc::IFLA_IFNAME, name.as_bytes());
    request.nested(libc::IFLA_LINKINFO, |request| {
        request.attribute(IFLA_INFO_KIND, b"veth");
        request.nested(IFLA_INFO_DATA, |request| {
            request.nested(VETH_INFO_PEER, |request| {
                request.link(0, 0);
                request.attribute(libc::IFLA_IFNAME, peer.as_bytes());
                request.attribute(libc::IFLA_NET_NS_FD, &peer_namespace.to_ne_bytes());
            });
        });
    });
    request.perform().context("creating a veth link")
}

pub(crate) fn set_up(name: &str) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWLINK, 0);
    request.link(if_nametoindex(name)?, libc::IFF_UP.try_into()?);
    request.perform().with_context(|| format!("setting {name} up"))
}

fn add_address(name: &str, address: IpAddr) -> Result<()> {
    let (family, prefix, bytes) = match address {
        IpAddr::V4(address) => (libc::AF_INET, 24, address.octets().to_vec()),
        IpAddr::V6(address) => (libc::AF_INET6, 64, address.octets().to_vec()),
    };
    let mut request = Request::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    let flags = u8::try_from(libc::IFA_F_NODAD)?;
    request.put(&[u8::try_from(family)?, prefix, flags, 0]);
    request.put(&if_nametoindex(name)?.to_ne_bytes());
    request.attribute(libc::IFA_LOCAL, &bytes);
    request.attribute(libc::IFA_ADDRESS, &bytes);
    request.perform().with_context(|| format!("giving {name} the address {address}"))
}

/// One rtnetlink request.
struct Request(Vec<u8>);

impl Request {
    fn new(kind: u16, flags: libc::c_int) -> Self {
        Self::with_flags(kind, libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags)
    }

    /// One that the kernel does not acknowledge.
    fn without_answer(kind: u16) -> Self {
        Self::with_flags(kind, libc::NLM_F_REQUEST)
    }

    fn with_flags(kind: u16, flags: libc::c_int) -> Self {
        // struct nlmsghdr: length (set when sent), type, flags, sequence number, port.
        let flags = u16::try_from(flags).unwrap_or(u16::MAX);
        let mut request = Self(vec![0; 4]);
        request.0.extend_from_slice(&kind.to_ne_bytes());
        request.0.extend_from_slice(&flags.to_ne_bytes());
        request.put(&[0; 8]);
        request
    }

    fn put(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Appends a `struct ifinfomsg`.
    fn link(&mut self, index: u32, up: u32) {
        self.put(&[0; 4]);
        self.put(&index.to_ne_bytes());
        // Flags, and which of them to change.
        self.put(&up.to_ne_bytes());
        self.put(&up.to_ne_bytes());
    }

    fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.nested(kind, |request| request.0.extend_from_slice(value));
        self.put(&[]);
    }

    fn nested(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.put(&[0; 4]);
        fill(self);
        let len = u16::try_from(self.0.len() - start).unwrap_or(u16::MAX);
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.0[start + 2..start + 4].copy_from_slice(&kind.to_ne_bytes());
    }

    /// The message, its length set.
    fn finished(mut self) -> Result<Vec<u8>> {
        let len = u32::try_from(self.0.len())?;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        Ok(self.0)
    }

    /// Sends it in the calling thread's namespace and waits for the kernel's answer.
    fn perform(self) -> Result<()> {
        exchange(SockProtocol::NetlinkRoute, &self.finished()?, 1)
    }
}

/// Sends messages in the calling thread's namespace; the kernel has to acknowledge `answers` of them.
fn exchange(protocol: SockProtocol, messages: &[u8], answers: usize) -> Result<()> {
    let netlink = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    setsockopt(&netlink, sockopt::ReceiveTimeout, &TimeVal::seconds(10))?;
    acknowledged(&netlink, messages, answers)
}

/// Sends messages by a socket of one's own; the kernel has to acknowledge `answers` of them.
fn acknowledged(netlink: &OwnedFd, messages: &[u8], answers: usize) -> Result<()> {
    send(netlink.as_raw_fd(), messages, MsgFlags::empty())?;
    for _ in 0..answers {
        let mut answer = [0; 4096];
        let len = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        // struct nlmsgerr after the header: 0, or an errno made negative.
        let Some(code) = answer[..len].get(16..20) else { bail!("netlink answers with {len} bytes") };
        match i32::from_ne_bytes(code.try_into()?) {
            0 => {}
            code => return Err(io::Error::from_raw_os_error(-code).into()),
        }
    }
    Ok(())
}

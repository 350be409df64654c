//! What can lie between a client and a server besides a plain link.

use std::{
    fs,
    io::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::AsRawFd as _,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use super::{
    Between, FAR, NEAR, Namespace, Path, Version, add_address, create_veth,
    devices::{ETHTOOL_GGRO, ETHTOOL_SGRO, ETHTOOL_STSO, offload, set_offload, steer},
    filter::flow_table,
    links::{Kind, create, default_route, enslave, flood, impatient_route, route_by, set_mtu},
    qdisc::{Netem, mirror, redirect},
    set_up,
    tap::{Manner, Tap, Taps},
};

/// The device that stands upon the end of the link.
pub(super) const UPPER: &str = "nl-upper";
/// The ends of links in the namespace between.
const TO_NEAR: &str = "nl-to-near";
const TO_FAR: &str = "nl-to-far";
const BRIDGE: &str = "nl-bridge";
/// A link beside the others, both of whose ends are in the same namespace.
const ASIDE: [&str; 2] = ["nl-aside", "nl-aside-to"];
/// Private keys of the tunnel's ends: any 32 bytes.
const WG_KEYS: [&str; 2] =
    ["AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHl8=", "ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pl8="];
const WG_PORT: u16 = 51820;

/// What `wg` says, of the namespace that the calling thread is in.
fn wg(arguments: &[&str], input: &str) -> Result<String> {
    let mut child = Command::new("/bin/wg")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting wg")?;
    writeln!(child.stdin.take().context("no standard input")?, "{input}")?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "wg {arguments:?}: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

impl Path {
    /// Two links and a bridge that joins them, in a namespace of its own.
    pub(crate) fn bridge(version: Version) -> Result<Self> {
        let (near, between, far) = links()?;
        between.inside(|| {
            create(BRIDGE, Kind::Bridge)?;
            for port in [TO_NEAR, TO_FAR] {
                enslave(port, BRIDGE)?;
                set_up(port)?;
            }
            set_up(BRIDGE)
        })?;
        Self::bridged(near, between, far, version)
    }

    /// Two links, of each of which all that comes is redirected to the other, in a namespace of its own (`tc … action mirred egress redirect`).
    pub(crate) fn redirected(version: Version) -> Result<Self> {
        let (near, between, far) = links()?;
        between.inside(|| {
            for (port, other) in [(TO_NEAR, TO_FAR), (TO_FAR, TO_NEAR)] {
                set_up(port)?;
                redirect(port, other)?;
            }
            Ok(())
        })?;
        Self::bridged(near, between, far, version)
    }

    /// The path between two namespaces that are joined.
    fn bridged(near: Namespace, between: Namespace, far: Namespace, version: Version) -> Result<Self> {
        let addresses = (host(version, 0x77, 1), host(version, 0x77, 2));
        near.inside(|| bring_up(NEAR, addresses.0))?;
        far.inside(|| bring_up(FAR, addresses.1))?;
        Ok(Self::Place { near, far, between: Between::Bridge(between), addresses })
    }

    /// Delays what each end of a veth link receives, by a device of its own that the packets go through first.
    pub(crate) fn delay_received(&self, delay: Duration) -> Result<()> {
        let slow_down = |device: &str| {
            create(UPPER, Kind::Intermediate)?;
            set_up(UPPER)?;
            Netem::delay(delay).apply(UPPER)?;
            redirect(device, UPPER)
        };
        self.near(|| slow_down(NEAR))?;
        self.far(|| slow_down(FAR))
    }

    /// Has the first router send packets of connections on by a table of them, past its IP.
    pub(crate) fn cut_short(&self) -> Result<()> {
        self.between(|| flow_table(&[TO_NEAR, TO_FAR]))
    }

    /// As many routers, one behind the other.
    pub(crate) fn routers(version: Version, count: u8) -> Result<Self> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        let routers = (0..count).map(|_| Namespace::new()).collect::<Result<Vec<_>>>()?;
        let (Some(first), Some(last)) = (routers.first(), routers.last()) else {
            anyhow::bail!("no router");
        };
        // Each link has a net of its own, in which the end nearer to the client is number 1.
        let address = |link: u8, number: u8| host(version, 0x78 + link, number);
        near.inside(|| create_veth(NEAR, TO_NEAR, first.0.as_raw_fd()))?;
        far.inside(|| create_veth(FAR, TO_FAR, last.0.as_raw_fd()))?;
        for two in routers.windows(2) {
            two[0].inside(|| create_veth(TO_FAR, TO_NEAR, two[1].0.as_raw_fd()))?;
        }
        // All ends up before an address, as of a plain link.
        near.inside(|| set_up(NEAR))?;
        far.inside(|| set_up(FAR))?;
        for router in &routers {
            router.inside(|| [TO_NEAR, TO_FAR].into_iter().try_for_each(set_up))?;
        }
        near.inside(|| add_address(NEAR, address(0, 1)))?;
        far.inside(|| add_address(FAR, address(count, 2)))?;
        for (link, router) in (0..count).zip(&routers) {
            router.inside(|| {
                fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
                fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")?;
                add_address(TO_NEAR, address(link, 2))?;
                add_address(TO_FAR, address(link + 1, 1))
            })?;
        }
        // Routes to the ends, over those between.
        let (client, server) = (address(0, 1), address(count, 2));
        near.inside(|| default_route(address(0, 2)))?;
        far.inside(|| default_route(address(count, 1)))?;
        for (link, router) in (0..count).zip(&routers) {
            router.inside(|| {
                if link > 0 {
                    route_by(client, address(link, 1))?;
                }
                if link + 1 < count {
                    route_by(server, address(link + 1, 2))?;
                }
                Ok(())
            })?;
        }
        Ok(Self::Place { near, far, between: Between::Routers(routers), addresses: (client, server) })
    }

    /// A VLAN on a link.
    pub(crate) fn vlan(version: Version) -> Result<Self> {
        Self::upon_veth(version, |below, _, _| create(UPPER, Kind::Vlan { below }))
    }

    /// A GRE tunnel over a link.
    pub(crate) fn gre(version: Version) -> Result<Self> {
        Self::upon_veth(version, |_, local, remote| create(UPPER, Kind::Gre { local, remote }))
    }

    /// A VXLAN tunnel over a link.
    pub(crate) fn vxlan(version: Version) -> Result<Self> {
        Self::upon_veth(version, |_, local, remote| create(UPPER, Kind::Vxlan { local, remote }))
    }

    /// A WireGuard tunnel over a link; `None` where the kernel has no WireGuard.
    pub(crate) fn wireguard(version: Version) -> Result<Option<Self>> {
        if !fs::exists("/sys/module/wireguard")? {
            return Ok(None);
        }
        let path = Self::upon_veth(version, |_, local, remote| {
            let [own, others] = if local < remote { WG_KEYS } else { [WG_KEYS[1], WG_KEYS[0]] };
            create(UPPER, Kind::Wireguard)?;
            let peer = wg(&["pubkey"], others)?;
            let endpoint = format!("{remote}:{WG_PORT}");
            let port = WG_PORT.to_string();
            let own_end = ["set", UPPER, "listen-port", &port, "private-key", "/proc/self/fd/0"];
            let other_end = ["peer", &peer, "endpoint", &endpoint, "allowed-ips", "0.0.0.0/0,::/0"];
            wg(&[own_end, other_end].concat(), own).map(drop)
        })?;
        Ok(Some(path))
    }

    /// A link whose ends are part of a bond each.
    pub(crate) fn bond(version: Version) -> Result<Self> {
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        near.inside(|| create_veth(NEAR, FAR, far.0.as_raw_fd()))?;
        for (namespace, below) in [(&near, NEAR), (&far, FAR)] {
            namespace.inside(|| {
                create(UPPER, Kind::Bond)?;
                enslave(below, UPPER)?;
                set_up(UPPER)
            })?;
        }
        let addresses = (host(version, 0x78, 1), host(version, 0x78, 2));
        near.inside(|| add_address(UPPER, addresses.0))?;
        far.inside(|| add_address(UPPER, addresses.1))?;
        Ok(Self::Place { near, far, between: Between::Nothing, addresses })
    }

    /// A device upon each end of a link, with addresses of their own. `create` gets the end's name and both
    /// ends' addresses, its own first.
    fn upon_veth(
        version: Version,
        create: impl Fn(&str, Ipv4Addr, Ipv4Addr) -> Result<()> + Sync,
    ) -> Result<Self> {
        let Self::Veth { near, far, .. } = Self::veth(Version::V4)? else {
            anyhow::bail!("a veth link is no veth link");
        };
        let below = (Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2));
        near.inside(|| create(NEAR, below.0, below.1))?;
        far.inside(|| create(FAR, below.1, below.0))?;
        let addresses = (host(version, 0x78, 1), host(version, 0x78, 2));
        near.inside(|| set_up(UPPER))?;
        far.inside(|| set_up(UPPER))?;
        near.inside(|| add_address(UPPER, addresses.0))?;
        far.inside(|| add_address(UPPER, addresses.1))?;
        Ok(Self::Place { near, far, between: Between::Nothing, addresses })
    }

    fn is_routed(&self) -> bool {
        matches!(self, Self::Place { between: Between::Routers(_), .. })
    }

    /// Whether packets enter this machine's stack again after something has sent them on.
    pub(crate) fn enters_twice(&self) -> bool {
        matches!(self, Self::Place { between: Between::Routers(_) | Between::Bridge(_), .. })
    }

    /// Delays what the first router or the bridge sends on to the server.
    pub(crate) fn delay_between(&self, delay: Duration) -> Result<()> {
        self.between(|| Netem::delay(delay).apply(TO_FAR))
    }

    /// Loses one packet in N of what the first router sends on to the client, at random.
    pub(crate) fn lose_between(&self, one_in: u32) -> Result<()> {
        self.between(|| Netem::lose(one_in).apply(TO_NEAR))
    }

    /// Gives the bridge one more port, and has it send everything to all of them.
    pub(crate) fn flood(&self) -> Result<()> {
        let Self::Place { between: Between::Bridge(bridge), .. } = self else {
            anyhow::bail!("there is no bridge");
        };
        bridge.inside(|| {
            aside(bridge)?;
            enslave(ASIDE[0], BRIDGE)?;
            flood(BRIDGE)
        })
    }

    /// Sends a copy of all that the server's end of a veth link receives to another device there.
    pub(crate) fn mirror(&self) -> Result<()> {
        let Self::Veth { far, .. } = self else { anyhow::bail!("no veth link") };
        far.inside(|| {
            aside(far)?;
            mirror(FAR, ASIDE[0])
        })
    }

    /// Lets both ends of a veth link send packets of that length.
    pub(crate) fn set_mtu(&self, bytes: u32) -> Result<()> {
        self.near(|| set_mtu(NEAR, bytes))?;
        self.far(|| set_mtu(FAR, bytes))
    }

    /// A packet socket bound to the device by which the first router receives from the client.
    pub(crate) fn tap_between(&self, taps: Taps, manner: Manner) -> Result<Vec<Tap>> {
        Ok(vec![self.between(|| Tap::open(TO_NEAR, taps, manner))?])
    }

    /// Runs `work` in the namespace next to the client's.
    pub(crate) fn between<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        match self {
            Self::Place { between: Between::Bridge(bridge), .. } => bridge.inside(work),
            Self::Place { between: Between::Routers(routers), .. } => {
                routers.first().context("no router")?.inside(work)
            }
            _ => anyhow::bail!("there is no namespace between"),
        }
    }

    /// Lets the client's retransmission timer run down in `rto_min_ms` at the earliest, instead of 200.
    pub(crate) fn with_shortest_timeout(self, rto_min_ms: u32) -> Result<Self> {
        let (near, far) = self.addresses();
        let gateway = self.is_routed().then(|| neighbour(near));
        self.near(|| impatient_route(far, gateway, NEAR, rto_min_ms))?;
        Ok(self)
    }

    /// Lets the client's TCP be patient: however busy the machine is, neither its retransmission timer runs down in a scene nor the one
    /// that ends TCP_CORK and MSG_MORE, which takes as long (`tcp_probe0_base`).
    pub(crate) fn patient(self) -> Result<Self> {
        self.with_shortest_timeout(10_000)
    }

    /// Has the client's end send single segments and the server's merge them; false if this kernel's veth
    /// can't do the latter: before Linux 5.13 it merges only for an XDP program, and has the feature set,
    /// as all devices do that do nothing about it.
    pub(crate) fn merge(&self) -> Result<bool> {
        self.near(|| set_offload(NEAR, ETHTOOL_STSO, false))?;
        self.far(|| {
            let is_set_anyway = offload(FAR, ETHTOOL_GGRO)?;
            set_offload(FAR, ETHTOOL_SGRO, true)?;
            Ok(!is_set_anyway)
        })
    }

    /// How many packets the client's end has handed over.
    pub(crate) fn packets_from_near(&self) -> Result<u64> {
        // After the name: 8 columns for received packets, then bytes and packets sent.
        const COLUMN: usize = 9;
        let table = self.near(|| Ok(fs::read_to_string("/proc/thread-self/net/dev")?))?;
        let line = table.lines().find_map(|line| line.trim_start().strip_prefix(NEAR)?.strip_prefix(':'));
        let count = line.context("no such device")?.split_ascii_whitespace().nth(COLUMN);
        Ok(count.context("too few columns")?.parse()?)
    }

    /// Has the CPUs of `mask` receive what the server's end receives.
    pub(crate) fn steer(&self, mask: &str) -> Result<()> {
        self.far(|| steer(FAR, mask))
    }
}

/// A link aside, in the calling thread's namespace, which is this one.
fn aside(here: &Namespace) -> Result<()> {
    create_veth(ASIDE[0], ASIDE[1], here.0.as_raw_fd())?;
    ASIDE.into_iter().try_for_each(set_up)
}

/// Two links that meet in a namespace between.
fn links() -> Result<(Namespace, Namespace, Namespace)> {
    let (near, between, far) = (Namespace::new()?, Namespace::new()?, Namespace::new()?);
    near.inside(|| create_veth(NEAR, TO_NEAR, between.0.as_raw_fd()))?;
    far.inside(|| create_veth(FAR, TO_FAR, between.0.as_raw_fd()))?;
    Ok((near, between, far))
}

fn bring_up(name: &str, address: IpAddr) -> Result<()> {
    set_up(name)?;
    add_address(name, address)
}

/// The address of the router beside the client's.
fn neighbour(client: IpAddr) -> IpAddr {
    match client {
        IpAddr::V4(client) => Ipv4Addr::from_bits(client.to_bits() + 1).into(),
        IpAddr::V6(client) => Ipv6Addr::from_bits(client.to_bits() + 1).into(),
    }
}

fn host(version: Version, net: u8, number: u8) -> IpAddr {
    match version {
        Version::V4 => Ipv4Addr::new(10, net, 0, number).into(),
        Version::V6 => Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, 0, number.into()).into(),
    }
}

/// A counter of the calling thread's namespace, from the table `file` of its `/proc/net`.
pub(crate) fn counter(file: &str, group: &str, name: &str) -> Result<u64> {
    let counters = fs::read_to_string(format!("/proc/thread-self/net/{file}"))?;
    let mut lines = counters.lines().filter_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    let (names, values) = (lines.next().context("no such group")?, lines.next().context("no values")?);
    let position = names.split(' ').position(|known| known == name);
    let position = position.with_context(|| format!("this kernel has no counter {name}"))?;
    Ok(values.split(' ').nth(position).context("fewer values than names")?.parse()?)
}

/// A counter of the table of IPv6, which has one a line.
pub(crate) fn counter_v6(name: &str) -> Result<u64> {
    let counters = fs::read_to_string("/proc/thread-self/net/snmp6")?;
    let value = counters.lines().find_map(|line| line.strip_prefix(name));
    Ok(value.with_context(|| format!("this kernel has no counter {name}"))?.trim().parse()?)
}

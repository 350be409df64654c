//! The system: a client, a gateway, and services behind it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::stat::Mode,
    unistd::{Pid, mkfifo},
};

use serde_json::Value;

use super::{Fault, Incident, MOST_SERVICES};
use crate::{
    net::{
        Hook, Path, Version, destination_nat, queue_port,
        verdicts::{Manner as Verdict, Verdicts},
    },
    peers::Peer,
    process::{PATIENCE, until},
    tool::Scratch,
};

/// Where the services are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Where {
    /// All on one host, by its loopback device.
    OneHost,
    /// Each behind a link of its own.
    Links,
    /// Each behind a bridge.
    Bridges,
    /// Each behind a router, which gives it another address.
    Nat,
}

/// How a service takes its requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Manner {
    /// One thread, one connection.
    Alone,
    /// One thread that polls all connections.
    Polls,
    /// A thread for each connection.
    Threads,
    /// Some threads that accept.
    Pool,
    /// A process for each connection.
    Forks,
    /// Some processes that accept.
    Workers,
    /// Some processes with a listening socket each, at one port.
    Shards,
    /// By UDP.
    Datagrams,
}

/// How the client asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Asks {
    /// One request at a time.
    One,
    /// Some at once, each by a call.
    Row,
    /// By one call.
    Burst,
}

/// How the gateway asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Connections {
    /// By one connection to each service.
    One,
    /// By several, in turn.
    Several,
    /// By a new one for each request.
    New,
}

/// Which service calls which.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) services: usize,
    /// One behind the other; the last one asks the services.
    pub(super) gateways: usize,
    pub(super) manner: Manner,
    pub(super) connections: Connections,
    pub(super) asks: Asks,
}

impl Asks {
    pub(super) const ALL: [Self; 3] = [Self::One, Self::Row, Self::Burst];

    /// As a peer is told.
    fn told(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Row => "row",
            Self::Burst => "burst",
        }
    }
}

impl Manner {
    pub(super) const ALL: [Self; 8] = [
        Self::Alone,
        Self::Polls,
        Self::Threads,
        Self::Pool,
        Self::Forks,
        Self::Workers,
        Self::Shards,
        Self::Datagrams,
    ];
    /// Those by TCP.
    pub(super) const OF_STREAMS: &[Self] = Self::ALL.split_at(7).0;

    /// As a peer is told.
    fn told(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Polls => "polls",
            Self::Threads => "threads",
            Self::Pool => "pool",
            Self::Forks => "forks",
            Self::Workers => "workers",
            Self::Shards => "shards",
            Self::Datagrams => "datagrams",
        }
    }
}

/// Requests of the client's.
const ROUNDS: u32 = 60;
/// Of slow readers, whose answers take long.
const FEW_ROUNDS: u32 = 20;
/// Bytes of an answer, if nothing else is needed, and of a gateway's.
const ANSWER: usize = 400;
const FROM_GATEWAY: usize = 200;
/// Of which the window takes several round trips.
const LONG_ANSWER: usize = 256 * 1024;
/// Several times what a slow reader has room for.
const UNREAD_ANSWER: usize = 256 * 1024;
/// Of several full segments, which are acknowledged at once.
const FULL_ANSWER: usize = 8_000;
/// Of what a router with losses loses.
const ONE_IN: u32 = 10;
/// What a service works for an answer, ms, and what its quota lets it work in 100 ms: 5.
const SPIN_MS: u64 = 4;
const QUOTA: &str = "5000 100000";
/// Requests from one stall to the next.
const STALL_EACH: u32 = 20;
/// Their names begin as the tool is told where the gateway is to be elsewhere.
const NAMES: [&str; MOST_SERVICES] = ["svc-orders", "svc-search", "svc-users", "svc-stock"];
/// The address by which a service is asked for behind a router that translates it.
const APPARENT: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
/// The gateway that asks them.
const GATEWAY: &str = "gateway";
/// Connections of a gateway to a service, if it has several.
const SEVERAL: &str = "3";
/// Ports outside the ephemeral range: the first is the gateway's.
const PORT: u16 = 7_000;

pub(super) struct System {
    client: Peer,
    /// From the one that the client asks to the one that asks the services.
    gateways: Vec<Peer>,
    services: Vec<Service>,
    /// Takes the CPU when it is told to, by that pipe.
    _hog: Option<(Peer, Scratch)>,
    /// Others that use the processors, and the services.
    _tenants: Vec<Peer>,
    /// Removed behind its processes.
    _quota: Option<Quota>,
}

struct Service {
    peer: Peer,
    _judge: Option<Verdicts>,
    /// Its namespaces and links live as long.
    _path: Path,
}

impl System {
    /// Sets it up, with what makes the fault.
    pub(super) fn open(incident: &Incident) -> Result<Self> {
        let Incident { fault, place, ms, ref hit, load, shape, .. } = *incident;
        let Shape { manner, connections, .. } = shape;
        let host = Path::loopback(Version::V4)?;
        let (mut client, mut gateway) = (Peer::spawn(b"shop")?, Peer::spawn(GATEWAY.as_bytes())?);
        let pipe = Scratch::new("pipe");
        let mut hog = None;
        if matches!(fault, Fault::LosesCpu | Fault::Stalls) {
            mkfifo(pipe.path(), Mode::S_IRWXU)?;
            let mut peer = Peer::spawn(b"batch")?;
            peer.tell(&format!("hog-when-asked {} {ms}", pipe.path().display()))?;
            hog = Some(peer);
        }
        if let Some(peer) = hog.as_ref().filter(|_| fault == Fault::LosesCpu) {
            pin(peer)?;
        }
        let quota = (fault == Fault::Quota).then(Quota::new).transpose()?;
        let (mut services, mut tenants) = (Vec::new(), Vec::new());
        for (number, name) in NAMES.into_iter().take(shape.services).enumerate() {
            let path = match place {
                Where::OneHost => Path::loopback(Version::V4)?,
                Where::Bridges => Path::bridge(Version::V4)?,
                // Packets are to be lost behind the service's device.
                Where::Links if fault == Fault::Loss => Path::routers(Version::V4, 1)?,
                Where::Links => Path::veth(Version::V4)?,
                Where::Nat => Path::routers(Version::V4, 1)?,
            };
            let mut peer = path.far(|| Peer::spawn(name.as_bytes()))?;
            let (address, port) = (path.addresses().1, port(number)?);
            let apparent = if place == Where::Nat { translate(&path)? } else { address };
            let listen = match manner {
                Manner::Datagrams => "take-datagrams",
                Manner::Shards => "listen-shared",
                _ => "listen",
            };
            let count = match connections {
                _ if manner == Manner::Datagrams => "datagrams",
                Connections::Several => SEVERAL,
                Connections::One => "1",
                Connections::New => "0",
            };
            peer.ask(&format!("{listen} {address} {port}"))?;
            let is_hit = hit.contains(&number);
            let pause = if fault == Fault::SlowReader && is_hit { ms } else { 0 };
            let from = if place == Where::OneHost { "-".to_owned() } else { path.near_namespace() };
            let asks_hog = fault == Fault::LosesCpu && is_hit || fault == Fault::Stalls && number == 0;
            let hog = if asks_hog { pipe.path().display().to_string() } else { "-".to_owned() };
            gateway.ask(&format!("gateway knows {from} {apparent} {port} {pause} {hog} {count}"))?;
            if (manner, connections) == (Manner::Alone, Connections::One) {
                peer.ask("accept")?;
                if fault == Fault::Halves && is_hit {
                    peer.ask("delay-small yes")?;
                }
            }
            if is_hit {
                disturb(fault, &path, Duration::from_millis(ms))?;
                if let Some(quota) = &quota {
                    quota.add(&peer)?;
                }
                if fault == Fault::LosesCpu {
                    pin(&peer)?;
                }
                if fault == Fault::Overflows {
                    let mut crowd = path.near(|| Peer::spawn(b"crowd"))?;
                    crowd.tell(&format!("crowd {apparent} {port}"))?;
                    tenants.push(crowd);
                }
            }
            let judge = (fault == Fault::Judges && is_hit).then(|| judge(&path, port, ms)).transpose()?;
            services.push(Service { peer, _judge: judge, _path: path });
        }
        let address: IpAddr = host.addresses().1;
        let mut gateways = vec![gateway];
        for number in 1..=shape.gateways {
            let port = PORT + 1 - u16::try_from(number)?;
            gateways[0].ask(&format!("listen {address} {port}"))?;
            if number == shape.gateways {
                client.ask(&format!("connect {address} {port}"))?;
                gateways[0].ask("accept")?;
            } else {
                let mut before = Peer::spawn(format!("edge-{number}").as_bytes())?;
                before.ask(&format!("gateway knows - {address} {port} 0 - 1"))?;
                gateways[0].ask("accept")?;
                gateways.insert(0, before);
            }
        }
        for _ in 0..if load > 0 { processors()? } else { 0 } {
            let mut tenant = Peer::spawn(b"tenant")?;
            tenant.tell(&format!("load {load}"))?;
            tenants.push(tenant);
        }
        let hog = hog.map(|hog| (hog, pipe));
        Ok(Self { client, gateways, services, _hog: hog, _tenants: tenants, _quota: quota })
    }

    /// Has requests go through it.
    pub(super) fn play(&mut self, incident: &Incident) -> Result<()> {
        let Incident { fault, ms, ref hit, rounds, shape, .. } = *incident;
        let Shape { manner, connections, .. } = shape;
        let answer = match fault {
            Fault::SlowReader => UNREAD_ANSWER,
            Fault::SlowStart => LONG_ANSWER,
            Fault::Wire | Fault::Loss => FULL_ANSWER,
            _ => ANSWER,
        };
        let rounds = match fault {
            Fault::SlowReader => FEW_ROUNDS,
            _ if rounds > 0 => rounds,
            _ => ROUNDS,
        };
        for (number, service) in self.services.iter_mut().enumerate() {
            let kind = match fault {
                _ if !hit.contains(&number) => "well",
                Fault::AcceptsLate => "accepts-late",
                Fault::ReadsLate => "late",
                Fault::Works => "work",
                Fault::Quota | Fault::Spins => "spin",
                Fault::Halves => "halves",
                Fault::Forgets => "forgets",
                Fault::Overflows => "overflows",
                _ => "well",
            };
            let ms = if fault == Fault::Quota { SPIN_MS } else { ms };
            let manner = match manner {
                Manner::Alone => format!("alone {rounds}"),
                manner => manner.told().to_owned(),
            };
            service.peer.tell(&format!("service {kind} {answer} {ms} {manner}"))?;
        }
        let parts = if fault == Fault::Reorder { 8 } else { 1 };
        let hog_each = if fault == Fault::Stalls { STALL_EACH } else { 1 };
        let connections = if connections == Connections::New { "new" } else { "old" };
        let [edges @ .., gateway] = &mut self.gateways[..] else { bail!("no gateway") };
        if fault == Fault::LosesCpu {
            gateway.ask("gateway first")?;
        }
        gateway.tell(&format!("gateway serve {rounds} {answer} {parts} {hog_each} {connections}"))?;
        for edge in edges {
            edge.tell(&format!("gateway serve {rounds} {FROM_GATEWAY} 1 1 old"))?;
        }
        self.client.ask(&format!("ask-gateway {rounds} 5 {}", shape.asks.told()))?;
        self.gateways.iter().try_for_each(|gateway| gateway.answer().map(drop))?;
        if manner == Manner::Alone {
            self.services.iter().try_for_each(|service| service.peer.answer().map(drop))?;
        }
        Ok(())
    }
}

/// Whether the finding is about that service, or about who waits for it if that is where the fault shows.
pub(super) fn is_of(finding: &Value, number: usize, fault: Fault) -> bool {
    let process = if fault == Fault::Forgets { GATEWAY } else { NAMES[number] };
    finding["process"] == process && port(number).is_ok_and(|port| finding["port"] == port)
}

fn port(number: usize) -> Result<u16> {
    Ok(PORT + 1 + u16::try_from(number)?)
}

/// A cgroup whose quota is used up by a few answers, removed with the value.
struct Quota(PathBuf);

impl Quota {
    fn new() -> Result<Self> {
        const ROOT: &str = "/sys/fs/cgroup";
        fs::write(format!("{ROOT}/cgroup.subtree_control"), "+cpu").context("CPU cgroups")?;
        let path = std::path::Path::new(ROOT).join("svc.slice");
        fs::create_dir(&path).context("a cgroup")?;
        let quota = Self(path);
        fs::write(quota.0.join("cpu.max"), QUOTA).context("cpu.max")?;
        Ok(quota)
    }

    fn add(&self, peer: &Peer) -> Result<()> {
        fs::write(self.0.join("cgroup.procs"), peer.pid().to_string()).context("cgroup.procs")
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // Empty once its processes, which are killed before, have gone.
        drop(until(PATIENCE, || Ok(fs::remove_dir(&self.0).is_ok())));
    }
}

/// Has the router on the way give the service another address, and returns that.
fn translate(path: &Path) -> Result<IpAddr> {
    let (_, IpAddr::V4(real)) = path.addresses() else { bail!("not IPv4") };
    path.between(|| destination_nat(APPARENT, real))?;
    Ok(APPARENT.into())
}

fn processors() -> Result<usize> {
    Ok(std::thread::available_parallelism()?.get())
}

/// Keeps a process on the last processor.
fn pin(peer: &Peer) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(processors()? - 1)?;
    let pid = Pid::from_raw(peer.pid().try_into()?);
    Ok(sched_setaffinity(pid, &cpus)?)
}

/// A program that judges what comes for that port, each packet for so long, ms.
fn judge(path: &Path, port: u16, ms: u64) -> Result<Verdicts> {
    const QUEUE: u16 = 7;
    let delay = Duration::from_millis(ms);
    path.far(|| {
        let judge = Verdicts::start(QUEUE, Verdict { takes_whole: true, every: 1, delay, grows_by: 0 })?;
        queue_port(Hook::In, port, QUEUE)?;
        Ok(judge)
    })
}

/// Gives a link its fault.
fn disturb(fault: Fault, path: &Path, time: Duration) -> Result<()> {
    match fault {
        Fault::Queue => path.delay_answers(time),
        Fault::Wire | Fault::SlowStart => path.delay(time),
        Fault::Reorder => path.reorder(time),
        Fault::Loss => path.lose_between(ONE_IN),
        _ => Ok(()),
    }
}

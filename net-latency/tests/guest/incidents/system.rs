//! The system: a client, a gateway, and services behind it.

use std::{fs, net::IpAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use nix::{
    sched::{CpuSet, sched_setaffinity},
    sys::stat::Mode,
    unistd::{Pid, mkfifo},
};

use super::{Fault, Incident, SERVICES};
use crate::{
    net::{Path, Version},
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
}

/// Requests of the client's.
const ROUNDS: u32 = 60;
/// Of slow readers, whose answers take long.
const FEW_ROUNDS: u32 = 20;
/// Bytes of an answer, if nothing else is needed.
const ANSWER: usize = 400;
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
const NAMES: [&[u8]; SERVICES] = [b"svc-orders", b"svc-search", b"svc-users"];
/// Ports that the kernel gives out to nobody: the first is the gateway's.
const PORT: u16 = 7_000;

pub(super) struct System {
    client: Peer,
    gateway: Peer,
    services: Vec<Service>,
    /// Takes the CPU when it is told to, by that pipe.
    _hog: Option<(Peer, Scratch)>,
    /// Others that use the processors.
    _tenants: Vec<Peer>,
    /// Removed behind its processes.
    _quota: Option<Quota>,
}

struct Service {
    peer: Peer,
    path: Path,
}

impl System {
    /// Sets it up, with what makes the fault.
    pub(super) fn open(incident: &Incident) -> Result<Self> {
        let Incident { fault, place, ms, ref hit, load, .. } = *incident;
        let host = Path::loopback(Version::V4)?;
        let (mut client, mut gateway) = (Peer::spawn(b"shop")?, Peer::spawn(b"gateway")?);
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
        let mut services = Vec::new();
        for (number, name) in NAMES.into_iter().enumerate() {
            let path = match place {
                Where::OneHost => Path::loopback(Version::V4)?,
                // What is lost is to be lost behind the service's device.
                Where::Links if fault == Fault::Loss => Path::routers(Version::V4, 1)?,
                Where::Links => Path::veth(Version::V4)?,
            };
            services.push(Service { peer: path.far(|| Peer::spawn(name))?, path });
            let Service { peer, path } = services.last_mut().context("just pushed")?;
            let (address, port) = (path.addresses().1, PORT + 1 + u16::try_from(number)?);
            peer.ask(&format!("listen {address} {port}"))?;
            let is_hit = hit.contains(&number);
            let pause = if fault == Fault::SlowReader && is_hit { ms } else { 0 };
            let from = if place == Where::Links { path.near_namespace() } else { "-".to_owned() };
            let asks_hog = fault == Fault::LosesCpu && is_hit || fault == Fault::Stalls && number == 0;
            let hog = if asks_hog { pipe.path().display().to_string() } else { "-".to_owned() };
            gateway.ask(&format!("gateway knows {from} {address} {port} {pause} {hog}"))?;
            if !fault.has_new_connections() {
                peer.ask("accept")?;
                if fault == Fault::Halves && is_hit {
                    peer.ask("delay-small yes")?;
                }
            }
            if is_hit {
                disturb(fault, path, Duration::from_millis(ms))?;
                if let Some(quota) = &quota {
                    quota.add(peer)?;
                }
                if fault == Fault::LosesCpu {
                    pin(peer)?;
                }
            }
        }
        let address: IpAddr = host.addresses().1;
        gateway.ask(&format!("listen {address} {PORT}"))?;
        client.ask(&format!("connect {address} {PORT}"))?;
        gateway.ask("accept")?;
        let mut tenants = Vec::new();
        for _ in 0..if load > 0 { processors()? } else { 0 } {
            let mut tenant = Peer::spawn(b"tenant")?;
            tenant.tell(&format!("load {load}"))?;
            tenants.push(tenant);
        }
        let hog = hog.map(|hog| (hog, pipe));
        Ok(Self { client, gateway, services, _hog: hog, _tenants: tenants, _quota: quota })
    }

    /// PIDs of the services that have the fault.
    pub(super) fn hit(&self, incident: &Incident) -> impl Iterator<Item = u32> {
        self.services[incident.hit.clone()].iter().map(|service| service.peer.pid())
    }

    /// Has requests go through it.
    pub(super) fn play(&mut self, incident: &Incident) -> Result<()> {
        let Incident { fault, ms, ref hit, rounds, .. } = *incident;
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
                Fault::AcceptsLate if hit.contains(&number) => "accepts-late",
                _ if fault.has_new_connections() => "new",
                _ if !hit.contains(&number) => "well",
                Fault::ReadsLate => "late",
                Fault::Works => "work",
                Fault::Quota => "spin",
                Fault::Halves => "halves",
                _ => "well",
            };
            let ms = if fault == Fault::Quota { SPIN_MS } else { ms };
            service.peer.tell(&format!("service {kind} {rounds} {answer} {ms}"))?;
        }
        let parts = if fault == Fault::Reorder { 8 } else { 1 };
        let hog_each = if fault == Fault::Stalls { STALL_EACH } else { 1 };
        let connections = if fault.has_new_connections() { "new" } else { "old" };
        if fault == Fault::LosesCpu {
            self.gateway.ask("gateway first")?;
        }
        self.gateway.tell(&format!("gateway serve {rounds} {answer} {parts} {hog_each} {connections}"))?;
        self.client.ask(&format!("ask-gateway {rounds} 5"))?;
        self.gateway.answer()?;
        for service in &self.services {
            service.peer.answer()?;
        }
        Ok(())
    }
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

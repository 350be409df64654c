//! Every filter on the same traffic: what fits is shown, all of it, and the rest is counted as others'.

use std::{
    fs,
    net::SocketAddr,
    path::{Path as FilePath, PathBuf},
    sync::Mutex,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;

use super::Case;
use crate::{
    lines::{Dir, Line, Proto},
    net::{NEAR, Path, Version},
    peers::{Pair, Peer},
    tool::{Backend, Launch, Outcome},
};

pub(crate) const CASES: &[Case] = &[
    ("select_names", names),
    ("select_names_of_threads_and_processes", either_name),
    ("select_cgroup", cgroup),
    ("select_hosts", hosts),
    ("select_interface_and_protocol", interface_and_protocol),
    ("select_namespaces_and_version", namespaces_and_version),
    ("select_named_namespace_and_container", named_places),
    ("select_mark", mark),
    ("select_all_kinds_at_once", all_kinds_at_once),
    ("select_none", none),
    ("select_slow", slow),
    ("select_sample", sample),
];

const ROUNDS: u32 = 20;
const LEN: u32 = 200;

/// Two processes that send each other requests and replies.
struct Talk {
    proto: Proto,
    client: Peer,
    server: Peer,
    near: SocketAddr,
    far: SocketAddr,
}

/// One of the four kinds of packets of a talk.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    is_request: bool,
    dir: Dir,
}

impl Kind {
    const ALL: [Self; 4] = [
        Self { is_request: true, dir: Dir::Out },
        Self { is_request: true, dir: Dir::In },
        Self { is_request: false, dir: Dir::Out },
        Self { is_request: false, dir: Dir::In },
    ];

    /// Whether the client gave or took the packet.
    fn is_clients(self) -> bool {
        self.is_request == (self.dir == Dir::Out)
    }
}

impl Talk {
    fn by_tcp(path: &Path, name: &str) -> Result<Self> {
        let mut pair = Pair::prepare(path, name.as_bytes(), format!("{name}-far").as_bytes())?;
        pair.open(path)?;
        let Pair { client, server, near, far, .. } = pair;
        Ok(Self { proto: Proto::Tcp, client, server, near, far })
    }

    fn by_udp(path: &Path, name: &str) -> Result<Self> {
        let mut client = path.near(|| Peer::spawn(name.as_bytes()))?;
        let mut server = path.far(|| Peer::spawn(format!("{name}-far").as_bytes()))?;
        let (near, far) = path.addresses();
        let near = SocketAddr::new(near, client.ask(&format!("udp bind {near}"))?.try_into()?);
        let far = SocketAddr::new(far, server.ask(&format!("udp bind {far}"))?.try_into()?);
        Ok(Self { proto: Proto::Udp, client, server, near, far })
    }

    /// Rounds of a request and a reply; the server of a TCP connection sleeps before it reads.
    fn talk(&mut self, rounds: u32, sleep_ms: u32) -> Result<()> {
        let (serve, request) = match self.proto {
            Proto::Tcp => (format!("serve {rounds} {LEN} {sleep_ms}"), format!("request {rounds} {LEN}")),
            Proto::Udp => {
                (format!("udp echo {rounds}"), format!("udp request-to {} {rounds} {LEN}", self.far))
            }
        };
        self.server.tell(&serve)?;
        self.client.ask(&request)?;
        self.server.answer()?;
        Ok(())
    }

    fn has(&self, kind: Kind, line: &Line) -> bool {
        let (from, to) = if kind.is_request { (self.near, self.far) } else { (self.far, self.near) };
        let ends = (SocketAddr::new(line.saddr, line.sport), SocketAddr::new(line.daddr, line.dport));
        line.proto == self.proto && line.dir == kind.dir && ends == (from, to)
    }
}

/// All talks. Made once, since none of the runs changes anything about them.
struct Town {
    /// TCP over IPv4's loopback; the client's packets have the mark 0x11; in cgroup nl-town/a.
    one: Talk,
    /// TCP over IPv4's veth; in cgroup nl-town/a/b.
    two: Talk,
    /// TCP over IPv6's veth; in cgroup nl-town/c.
    three: Talk,
    /// UDP over IPv4's loopback; the client's packets have the mark 0x21.
    four: Talk,
    /// UDP over the link of the third; in cgroup nl-town/docker-ID.scope.
    five: Talk,
    _paths: [Path; 3],
}

const CGROUPS: &str = "/sys/fs/cgroup";
/// As Docker names those of its containers.
const CONTAINER: &str = "docker-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef.scope";
const SHORT_ID: &str = "0123456789ab";
static TOWN: Mutex<Option<Town>> = Mutex::new(None);

impl Town {
    fn found() -> Result<Self> {
        let paths = [Path::loopback(Version::V4)?, Path::veth(Version::V4)?, Path::veth(Version::V6)?];
        let mut town = Self {
            one: Talk::by_tcp(&paths[0], "nl-one")?,
            two: Talk::by_tcp(&paths[1], "nl-two")?,
            three: Talk::by_tcp(&paths[2], "nl-three")?,
            four: Talk::by_udp(&paths[0], "nl-four")?,
            five: Talk::by_udp(&paths[2], "nl-five")?,
            _paths: paths,
        };
        town.one.client.ask(&format!("mark {}", 0x11))?;
        town.four.client.ask(&format!("udp mark {}", 0x21))?;
        for (talk, cgroup) in
            [(&town.one, "a"), (&town.two, "a/b"), (&town.three, "c"), (&town.five, CONTAINER)]
        {
            let place = FilePath::new(CGROUPS).join("nl-town").join(cgroup);
            fs::create_dir_all(&place).with_context(|| format!("making {}", place.display()))?;
            fs::write(place.join("cgroup.procs"), talk.client.pid().to_string())?;
        }
        Ok(town)
    }

    fn talks(&mut self) -> [&mut Talk; 5] {
        [&mut self.one, &mut self.two, &mut self.three, &mut self.four, &mut self.five]
    }

    /// Traces all talks with the arguments.
    fn trace(&mut self, backend: Backend, arguments: &[String], rounds: u32) -> Result<Outcome> {
        let tool = Launch::new(backend).args(arguments).start()?;
        for talk in self.talks() {
            talk.talk(rounds, 0)?;
        }
        let outcome = tool.stop()?;
        outcome.ledger()?;
        Ok(outcome)
    }
}

fn with_town<T>(work: impl FnOnce(&mut Town) -> Result<T>) -> Result<T> {
    let mut town = TOWN.lock().map_err(|_| anyhow!("another case panicked"))?;
    if town.is_none() {
        *town = Some(Town::found()?);
    }
    work(town.as_mut().context("just founded")?)
}

/// A run with the arguments shows exactly the kinds of packets for which `fits` holds, by talk from 1 to 5.
fn expect(
    backend: Backend,
    arguments: impl FnOnce(&Town) -> Vec<String>,
    fits: impl Fn(usize, Kind) -> bool,
) -> Result<Outcome> {
    with_town(|town| {
        let arguments = arguments(town);
        let outcome = town.trace(backend, &arguments, ROUNDS)?;
        let lines = outcome.lines()?;
        let mut shown = 0;
        for (number, talk) in (1..).zip(town.talks()) {
            for kind in Kind::ALL {
                let own: Vec<_> = lines.iter().filter(|line| talk.has(kind, line)).collect();
                shown += own.len();
                let count = own.iter().filter(|line| !line.is("retrans")).count();
                let wanted = if fits(number, kind) { ROUNDS as usize } else { 0 };
                let what = || format!("{count} lines of talk {number} {}, not {wanted}", kind.dir);
                ensure!(count == wanted, outcome.fault(format_args!("{arguments:?}: {}", what()), own));
                let pid = Some(if kind.is_clients() { talk.client.pid() } else { talk.server.pid() });
                let other = own.iter().find(|line| line.pid != pid || line.len != LEN);
                ensure!(other.is_none(), outcome.fault("not that process', or not whole", other.copied()));
            }
        }
        ensure!(shown == lines.len(), outcome.fault(format_args!("{arguments:?}: foreign lines"), &lines));
        Ok(outcome)
    })
}

fn words(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}

fn names(backend: Backend) -> Result<()> {
    // As many as there can be, of which two fit.
    let globs = ["nl-on?", "nl-on", "*e[ed]", "nl-four-fa", "five", "?", "nl-o*x", "[!n]*"];
    let arguments = |_: &Town| globs.map(|glob| format!("--comm={glob}")).to_vec();
    let outcome = expect(backend, arguments, |talk, kind| [1, 3].contains(&talk) && kind.is_clients())?;
    // All packets of the others are accounted for: those of clients two, four, five and of all servers.
    let others = outcome.ledger()?.filtered;
    let least = u64::from(ROUNDS) * (5 * 4 - 2 * 2);
    ensure!(others >= least, outcome.fault(format_args!("{others} of others, not {least}"), []));
    Ok(())
}

/// A name is a process's, or a thread's. Of a wanted process all threads are shown, of others those that are.
fn either_name(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V4)?;
    let mut pairs = [&b"nl-search"[..], b"nl-other"].map(|name| Pair::prepare(&path, b"nl-curl", name));
    for pair in &mut pairs {
        pair.as_mut().map_err(|error| anyhow!("{error:#}"))?.open(&path)?;
    }
    let arguments = ["--comm=nl-search", "--comm=tagged-?", "--comm=nl-nobod[y]"];
    let tool = Launch::new(backend).args(&arguments).start()?;
    let mut wanted = Vec::new();
    for (pair, is_wanted) in pairs.iter_mut().flatten().zip([true, false]) {
        let (pid, port) = (pair.server.pid(), pair.far.port());
        for (thread, is_named) in [("pool-7", false), ("tagged-1", true), ("", false)] {
            pair.client.ask(&format!("write {LEN}"))?;
            let read = format!("read {LEN} {LEN} 0");
            let tid = match thread {
                "" => {
                    pair.server.ask(&read)?;
                    pid
                }
                name => u32::try_from(pair.server.ask(&format!("named {name} {read}"))?)?,
            };
            if is_wanted || is_named {
                wanted.push((port, Some(pid), Some(tid)));
            }
        }
    }
    let outcome = tool.stop()?;
    let lines = outcome.lines()?;
    let found: Vec<_> = lines.iter().map(|line| (line.dport, line.pid, line.tid)).collect();
    ensure!(found == wanted, outcome.fault(format_args!("not {wanted:?}"), &lines));
    // In their order; threads that are to come match as well.
    let expected = ["nl-nobod[y]", "tagged-?"].map(|glob| {
        format!("net-latency: no process or thread matches --comm {glob} now; one that starts later will")
    });
    let told: Vec<_> = outcome.stderr.iter().filter(|line| line.contains("--comm")).collect();
    ensure!(told.iter().copied().eq(&expected), outcome.fault(format_args!("told {told:?}"), []));
    Ok(())
}

/// A cgroup with one below it, and a process in each.
fn cgroup(backend: Backend) -> Result<()> {
    let arguments = |_: &Town| words(&["--cgroup", "nl-town/a"]);
    expect(backend, arguments, |talk, kind| [1, 2].contains(&talk) && kind.is_clients()).map(drop)
}

/// One address and one network, of both versions.
fn hosts(backend: Backend) -> Result<()> {
    let arguments =
        |_: &Town| words(&["--host", "10.77.0.2", "--host", "fd00:77::/120", "--host", "127.0.0.2"]);
    expect(backend, arguments, |talk, _| [2, 3, 5].contains(&talk)).map(drop)
}

fn interface_and_protocol(backend: Backend) -> Result<()> {
    let arguments = |_: &Town| words(&["--interface", "lo", "--proto", "udp"]);
    expect(backend, arguments, |talk, _| talk == 4).map(drop)
}

/// Of three namespaces the packets of one version: one is wanted by process, two by path.
fn namespaces_and_version(backend: Backend) -> Result<()> {
    let arguments = |town: &Town| {
        let path = |peer: &Peer| format!("--netns=/proc/{}/ns/net", peer.pid());
        let process = format!("--netns={}", town.three.client.pid());
        vec![process, path(&town.two.server), path(&town.one.client), "-6".to_owned()]
    };
    expect(backend, arguments, |talk, kind| [3, 5].contains(&talk) && kind.is_clients()).map(drop)
}

/// A name of a network namespace, as `ip netns attach` gives it. It goes with the value.
struct Named(PathBuf);

impl Named {
    /// Names that of a process.
    fn new(name: &str, pid: u32) -> Result<Self> {
        let directory = FilePath::new("/run/netns");
        fs::create_dir_all(directory)?;
        let named = Self(directory.join(name));
        fs::write(&named.0, "")?;
        let (namespace, none) = (format!("/proc/{pid}/ns/net"), None::<&str>);
        mount(Some(&*namespace), &named.0, none, MsFlags::MS_BIND, none).context("naming a namespace")?;
        Ok(named)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        // A name that stays is the next case's fault to tell.
        let _unmounted = umount2(&self.0, MntFlags::MNT_DETACH);
        drop(fs::remove_file(&self.0));
    }
}

/// A namespace by the name that `ip netns` would give it, and a container by its id. Lines have both, and the device's name in there.
fn named_places(backend: Backend) -> Result<()> {
    const NAME: &str = "nl-blue";
    let named = with_town(|town| Named::new(NAME, town.three.client.pid()))?;
    let by_namespace = |_: &Town| words(&["--netns", NAME]);
    let outcome = expect(backend, by_namespace, |talk, kind| [3, 5].contains(&talk) && kind.is_clients())?;
    drop(named);
    have_names(&outcome, |line| [Some(NAME), (line.proto == Proto::Udp).then_some(SHORT_ID), Some(NEAR)])?;
    let by_container = |_: &Town| words(&["--container", &SHORT_ID[..6]]);
    let outcome = expect(backend, by_container, |talk, kind| talk == 5 && kind.is_clients())?;
    // The namespace has lost its name, and shows the devices' still.
    have_names(&outcome, |_| [None, Some(SHORT_ID), Some(NEAR)])
}

/// The names of a line's namespace, container and device.
fn have_names(outcome: &Outcome, expected: impl Fn(&Line) -> [Option<&'static str>; 3]) -> Result<()> {
    for line in outcome.lines()? {
        let value: Value = serde_json::from_str(&line.raw)?;
        let found = ["netns_name", "container", "ifname"].map(|name| value[name].as_str());
        ensure!(found == expected(&line), outcome.fault(format_args!("names {found:?}"), [&line]));
    }
    Ok(())
}

/// The mark of the sender's socket, which loopback leaves to the receiver.
fn mark(backend: Backend) -> Result<()> {
    let arguments = |_: &Town| words(&["--mark", "0x10/0xf0", "--interface", "lo", "-4"]);
    let outcome = expect(backend, arguments, |talk, kind| talk == 1 && kind.is_request)?;
    let lines = outcome.lines()?;
    let other = lines.iter().find(|line| line.mark != 0x11);
    ensure!(other.is_none(), outcome.fault("another mark", other));
    Ok(())
}

/// Kinds are joined by "and", values of one kind by "or".
fn all_kinds_at_once(backend: Backend) -> Result<()> {
    let arguments = |town: &Town| {
        let mut arguments = words(&["--host", "127.0.0.0/8", "--host", "10.77.0.1", "--proto", "tcp", "-4"]);
        arguments.extend(words(&["--direction", "out", "--comm", "nl-*", "--cgroup", "/nl-town"]));
        arguments.extend(words(&["--interface", "lo", "--interface", "nl-near", "--mark", "0/0x20"]));
        arguments
            .extend([&town.one, &town.four, &town.five].map(|talk| format!("--port={}", talk.far.port())));
        for talk in [&town.one, &town.two, &town.four] {
            arguments.push(format!("--netns={}", talk.client.pid()));
            arguments.push(format!("--pid={}", talk.client.pid()));
        }
        arguments
    };
    expect(backend, arguments, |talk, kind| talk == 1 && kind.is_clients() && kind.dir == Dir::Out).map(drop)
}

/// Each of two conditions fits something, both together nothing.
fn none(backend: Backend) -> Result<()> {
    let arguments = |town: &Town| words(&["--comm", "nl-one", "--pid", &town.two.client.pid().to_string()]);
    let outcome = expect(backend, arguments, |_, _| false)?;
    ensure!(outcome.ledger()?.shown == 0, outcome.fault("something is shown", []));
    Ok(())
}

/// The server's reads are late; what else is shown must have been slow as well.
fn slow(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 3;
    // The server's pause begins before the client sends, which may itself be late.
    const LATE_MS: u32 = 1_000;
    const LIMIT_NS: u64 = 300_000_000;
    with_town(|town| {
        let tool = Launch::new(backend).args(&["--slower", "300ms"]).start()?;
        town.one.talk(ROUNDS, LATE_MS)?;
        let outcome = tool.stop()?;
        outcome.ledger()?;
        let lines = outcome.lines()?;
        let requests = Kind { is_request: true, dir: Dir::In };
        let late = lines.iter().filter(|line| town.one.has(requests, line));
        ensure!(late.count() == ROUNDS as usize, outcome.fault("not all that was slow is shown", &lines));
        let is_slow =
            |line: &Line| line.stages.iter().chain([&line.total]).flatten().any(|&ns| ns >= LIMIT_NS);
        let quick = lines.iter().filter(|line| !is_slow(line));
        ensure!(quick.clone().next().is_none(), outcome.fault("not slow", quick));
        ensure!(outcome.ledger()?.filtered > 0, outcome.fault("nothing was quick", []));
        Ok(())
    })
}

/// One packet in four, by chance.
fn sample(backend: Backend) -> Result<()> {
    const ROUNDS: u32 = 50;
    const ALL: f64 = (ROUNDS * 5 * 4) as f64;
    with_town(|town| {
        let outcome = town.trace(backend, &words(&["--sample", "1/4"]), ROUNDS)?;
        let lines = outcome.lines()?;
        let talks = town.talks();
        let is_known =
            |line: &&Line| talks.iter().any(|talk| Kind::ALL.into_iter().any(|kind| talk.has(kind, line)));
        let shown = lines.iter().filter(is_known).count() as f64;
        // Six standard deviations of that many throws.
        let (mean, deviation) = (ALL / 4.0, (ALL * 0.25 * 0.75).sqrt());
        ensure!(
            (shown - mean).abs() < 6.0 * deviation,
            outcome.fault(format_args!("{shown} of {ALL} lines"), &lines)
        );
        let seen = outcome.ledger()?.seen as f64;
        ensure!(seen >= ALL, outcome.fault(format_args!("only {seen} seen"), []));
        // By chance, and not every fourth: each kind of each talk has its share.
        for talk in talks {
            for kind in Kind::ALL {
                let share = lines.iter().filter(|line| talk.has(kind, line)).count();
                ensure!(
                    share > 0 && share < ROUNDS as usize,
                    outcome.fault(format_args!("{share} of one kind"), &lines)
                );
            }
        }
        Ok(())
    })
}

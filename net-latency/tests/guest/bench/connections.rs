//! What tracing adds to a connection, whether its times are right, and how many may be open at once.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::{self, File},
    io::{self, Read as _, Write as _},
    mem,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::Path,
    process::{Child, Command, Stdio, id},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use net_latency::inside::memory;
use nix::{
    sys::{
        resource::{Resource, setrlimit},
        signal::{Signal, kill},
        socket::{MsgFlags, recv},
    },
    unistd::Pid,
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::{figure, measured, mode::Running};
use crate::{
    cases::truth::programs::{NGINX, Nginx},
    net::{self, Version},
    peers::{Peer, SERVER},
    process::{PATIENCE, wait},
    tool::{Backend, Launch, Outcome, Scratch, Tool},
};

/// Connections that count.
const CONNECTIONS: u32 = 1000;
const WARM_UP: u32 = 200;
/// The cheapest counts.
const TRIES: usize = 6;
/// Bytes that go each way.
const BYTES: usize = 100;
/// Others who show connections, of libbpf-tools.
const OTHERS: [&str; 3] = ["tcplife", CHEAPEST, "tcpstates"];
/// Shows one end of each, and how long that took to open.
const CHEAPEST: &str = "tcpconnlat";
/// What they take to attach.
const ATTACHING: Duration = Duration::from_secs(5);
/// No client gets it, nor those behind it.
const PORT: u16 = 7400;
/// How far times may be from those of others, us.
const TOLERANCE: i64 = 200;
/// As many are open at once: first there is room for all, then the table of 65,536 is full.
const OPEN: [usize; 2] = [20_000, 33_000];
/// As many short ones at least, so many at a time.
const SHORT: usize = 100_000;
const AT_ONCE: &str = "32";
/// From the client's end to the server's. A short one takes two round trips.
const WAY: Duration = Duration::from_millis(5);
/// Of each of two listening sockets, so that there are ports for all.
const PER_PORT: usize = 20_000;

/// Prints their cost and findings, one JSON object a line.
pub(super) fn measure() -> Result<()> {
    // The figure that changes compare is the first.
    cost()?;
    for backend in [Backend::Fentry, Backend::Kprobe] {
        stamps(backend)?;
    }
    OPEN.into_iter().try_for_each(open)?;
    [Backend::Auto, Backend::Kprobe].into_iter().try_for_each(short)
}

fn view(backend: Backend) -> Launch {
    Launch::new(backend).view("connections")
}

/// This process is the client.
fn of_client(backend: Backend) -> Launch {
    view(backend).args(&["--pid", &id().to_string()])
}

fn start(name: &str) -> Result<Running> {
    match name {
        "nothing" => Ok(Running::Nothing),
        "fentry" => Running::launch(view(Backend::Fentry), None),
        "kprobe" => Running::launch(view(Backend::Kprobe), None),
        "fentry, --pid of the client" => Running::launch(of_client(Backend::Fentry), None),
        "kprobe, --pid of the client" => Running::launch(of_client(Backend::Kprobe), None),
        other => Other::start(other).map(Running::Other),
    }
}

fn cost() -> Result<()> {
    // Connections in TIME-WAIT make the next one's search for a port longer.
    fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0")?;
    let both = ["nothing", "fentry", "kprobe"].into_iter().chain(OTHERS);
    for (port, name) in (PORT..).zip(both) {
        let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        cost_of(name, "connection", |count| play(&listening, count))?;
    }
    let mut server = Peer::spawn(SERVER)?;
    let port = server.ask(&format!("listen {}", Ipv4Addr::LOCALHOST))?.try_into()?;
    for name in ["nothing", "fentry, --pid of the client", "kprobe, --pid of the client", CHEAPEST] {
        cost_of(name, "connection to another process", |count| play_apart(&mut server, port, count))?;
    }
    Ok(())
}

fn cost_of(name: &str, load: &str, mut play: impl FnMut(u32) -> Result<()>) -> Result<()> {
    // A tool that is missing, or does not know this kernel, is left out.
    let tracing = match start(name) {
        Ok(tracing) => tracing,
        Err(error) if OTHERS.contains(&name) => {
            println!("{}", json!({"mode": name, "left_out": format!("{error:#}")}));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    play(WARM_UP)?;
    let tries = (0..TRIES).map(|_| measured(&tracing, || play(CONNECTIONS)));
    let cost = tries.collect::<Result<Vec<_>>>()?.into_iter().min().context("there are tries")?;
    println!("{}", figure(name, load, CONNECTIONS, &cost));
    if let Some(mut run) = tracing.stop()? {
        run["mode"] = name.into();
        println!("{run}");
    }
    Ok(())
}

/// Connections that send a little each way; the client closes first.
fn play(listening: &TcpListener, count: u32) -> Result<()> {
    for _ in 0..count {
        let mut client = TcpStream::connect(listening.local_addr()?)?;
        let (mut server, _) = listening.accept()?;
        let mut bytes = [7; BYTES];
        client.write_all(&bytes)?;
        server.read_exact(&mut bytes)?;
        server.write_all(&bytes)?;
        client.read_exact(&mut bytes)?;
        drop(client);
        ensure!(server.read(&mut bytes)? == 0, "more than was sent");
    }
    Ok(())
}

/// The same, to a server that is another process.
fn play_apart(server: &mut Peer, port: u16, count: u32) -> Result<()> {
    for _ in 0..count {
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        let mut bytes = [7; BYTES];
        client.write_all(&bytes)?;
        server.ask("accept")?;
        server.ask(&format!("serve 1 {BYTES} 0"))?;
        client.read_exact(&mut bytes)?;
        drop(client);
        server.ask("close")?;
    }
    Ok(())
}

/// Another tracer that runs. Killed when dropped.
pub(super) struct Other {
    child: Child,
    lines: Scratch,
}

impl Other {
    fn start(name: &str) -> Result<Self> {
        let program = Path::new("/bin").join(name);
        ensure!(program.exists(), "this guest has no {}", program.display());
        let lines = Scratch::new(name);
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).stdout(File::create(lines.path())?).stderr(Stdio::inherit());
        let mut other = Self { child: command.spawn()?, lines };
        sleep(ATTACHING);
        match other.child.try_wait()? {
            Some(status) => anyhow::bail!("it ended: {status}"),
            None => Ok(other),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn file(&self) -> &Path {
        self.lines.path()
    }

    /// Ends it: the first of its lines, which it has written by then.
    pub(super) fn stop(mut self) -> Result<Vec<String>> {
        kill(Pid::from_raw(self.pid().try_into()?), Signal::SIGINT)?;
        wait(&mut self.child, PATIENCE)?;
        let text = fs::read_to_string(self.lines.path())?;
        let lines = text.lines().count();
        let first = text.lines().take(8).map(str::to_owned);
        Ok(first.chain([format!("{lines} lines")]).collect())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What tcpdump has of a packet of TCP: when it came to its device, in ns since 1970, ports and flags.
struct Seen {
    at: i64,
    ports: [u16; 2],
    flags: u8,
}

/// A packet socket on the loopback device.
fn packets() -> Result<OwnedFd> {
    let protocol = u16::try_from(libc::ETH_P_IP)?.to_be();
    // SAFETY: no pointer is passed.
    let socket =
        unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol.into()) };
    ensure!(socket >= 0, "a packet socket: {}", io::Error::last_os_error());
    // SAFETY: the kernel has just made this descriptor, and nothing else has it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let room: libc::c_int = 64 << 20;
    // SAFETY: an int, of which the length is told.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const room).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    ensure!(result == 0, "SO_RCVBUFFORCE: {}", io::Error::last_os_error());
    // It has packets stamped, once a worker of the kernel's has switched that on (`net_enable_timestamp`): until then they would get the
    // time at which they are read.
    let _ = stamp(&socket);
    sleep(Duration::from_millis(500));
    Ok(socket)
}

/// When the packet came that was read last, ns since 1970.
fn stamp(socket: &OwnedFd) -> Result<i64> {
    /// `SIOCGSTAMPNS_OLD` of linux/sockios.h.
    const LAST: libc::c_ulong = 0x8907;
    // SAFETY: all of it are numbers, for which zero is a value.
    let mut time: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes a timespec.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), LAST as _, &raw mut time) };
    ensure!(result == 0, "SIOCGSTAMPNS: {}", io::Error::last_os_error());
    Ok(time.tv_sec * 1_000_000_000 + time.tv_nsec)
}

fn read(socket: &OwnedFd) -> Result<Vec<Seen>> {
    /// An Ethernet header, and one of IPv4 without options.
    const TCP: usize = 14 + 20;
    let mut seen = Vec::new();
    let mut packet = [0; 256];
    while let Ok(len) = recv(socket.as_raw_fd(), &mut packet, MsgFlags::MSG_DONTWAIT) {
        if len < TCP + 20 || packet[14] != 0x45 || packet[14 + 9] != 6 {
            continue;
        }
        let port = |at: usize| u16::from_be_bytes([packet[TCP + at], packet[TCP + at + 1]]);
        seen.push(Seen { at: stamp(socket)?, ports: [port(0), port(2)], flags: packet[TCP + 13] });
    }
    Ok(seen)
}

/// A connection's beginning, as seen by other tools, ns since 1970.
#[derive(Clone, Copy, Default)]
struct Begun {
    asked: i64,
    answered: i64,
    acknowledged: i64,
    /// When `accept` was called, and when it had returned.
    accepting: i64,
    accepted: i64,
}

/// By how much a time is out of these.
fn outside(time: i64, (least, most): (i64, i64)) -> i64 {
    (least - time).max(time - most).max(0)
}

/// ns since 1970.
fn now() -> i64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Times of handshakes and `accept` beside those of a packet socket (tcpdump's), and of who accepts (strace's).
fn stamps(backend: Backend) -> Result<()> {
    const PORT: u16 = self::PORT + 100;
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    let listening = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))?;
    let tool = view(backend).args(&["--port", &PORT.to_string()]).start()?;
    let socket = packets()?;
    let (mut begun, mut twice) = (BTreeMap::<u16, Begun>::new(), HashSet::new());
    let mut seen = Vec::new();
    for number in 0..CONNECTIONS {
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, PORT))?;
        sleep(Duration::from_micros(u64::from(number % 4) * 700));
        let accepting = now();
        let (mut server, _) = listening.accept()?;
        let accepted = now();
        let port = client.local_addr()?.port();
        if begun.insert(port, Begun { accepting, accepted, ..Begun::default() }).is_some() {
            twice.insert(port);
        }
        drop(client);
        ensure!(server.read(&mut [0])? == 0, "nothing was sent");
        seen.extend(read(&socket)?);
    }
    for Seen { at, ports: [from, to], flags } in seen {
        let is_answer = from == PORT;
        let Some(begun) = begun.get_mut(if is_answer { &to } else { &from }) else { continue };
        match (is_answer, flags & (SYN | ACK)) {
            (false, SYN) => begun.asked = at,
            (true, flags) if flags & SYN != 0 => begun.answered = at,
            (false, ACK) if begun.acknowledged == 0 => begun.acknowledged = at,
            _ => {}
        }
    }
    begun.retain(|port, _| !twice.contains(port));
    let outcome = tool.stop()?;
    let mut off = [("handshake, client", vec![]), ("handshake, server", vec![]), ("accept", vec![])];
    for line in lines(&outcome)? {
        let is_client = line["role"] == "client";
        let port =
            line[if is_client { "lport" } else { "rport" }].as_u64().and_then(|port| port.try_into().ok());
        let Some(Begun { asked, answered, acknowledged, accepting, accepted }) =
            port.and_then(|port: u16| begun.get(&port))
        else {
            continue;
        };
        let mut compare = |which: usize, field: &str, between: (i64, i64)| -> Result<()> {
            let own = line[field].as_i64().with_context(|| format!("no {field} in {line}"))?;
            off[which].1.push(outside(own, between) / 1000);
            Ok(())
        };
        if is_client {
            compare(0, "handshake_ns", (answered - asked, answered - asked))?;
        } else {
            compare(1, "handshake_ns", (acknowledged - answered, acknowledged - answered))?;
            compare(2, "accept_ns", (accepting - acknowledged, accepted - acknowledged))?;
        }
    }
    for (what, mut off) in off {
        off.sort_unstable();
        let most = *off.last().context("no connection was compared")?;
        let (count, median) = (off.len(), off[off.len() / 2]);
        let beyond = off.iter().filter(|us| **us > TOLERANCE).count();
        println!(
            "{}",
            json!({"part": "stamps", "mode": backend.to_string(), "what": what, "connections": count, "off_by_us_p50": median, "off_by_us_most": most, "beyond_200_us": beyond})
        );
        ensure!(count + twice.len() >= CONNECTIONS as usize, "{count} of {what} were compared");
        ensure!(beyond == 0, "{what}: {beyond} of {count} are off by more than {TOLERANCE} us");
    }
    Ok(())
}

fn lines(outcome: &Outcome) -> Result<Vec<Value>> {
    Ok(outcome.text()?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn resident(tool: &Tool) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{}/status", tool.pid()))?;
    Ok(status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?.trim().to_owned())
}

/// Many open at once: each end has one line, or is counted.
fn open(count: usize) -> Result<()> {
    const ROOM: usize = 65_536;
    const PORT: u16 = self::PORT + 200;
    setrlimit(Resource::RLIMIT_NOFILE, 100_000, 100_000)?;
    let port = PORT + u16::try_from(count / 1000)?;
    let ports = [port, port + 1].map(|port| port.to_string());
    let listening = [port, port + 1].map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
    let [one, other] = listening;
    let listening = [one?, other?];
    let tool = view(Backend::Fentry).args(&["--port", &ports[0], "--port", &ports[1]]).start()?;
    let mut ends = Vec::with_capacity(count);
    for number in 0..count {
        let to = &listening[number / PER_PORT];
        let client = TcpStream::connect(to.local_addr()?)?;
        ends.push((client, to.accept()?));
    }
    let resident = resident(&tool)?;
    let outcome = tool.stop()?;
    drop(ends);
    let lines = lines(&outcome)?;
    let key = |line: &Value| [&line["role"], &line["lport"], &line["rport"]].map(ToString::to_string);
    let distinct: HashSet<_> = lines.iter().map(key).collect();
    let footer = outcome.footer()?;
    let full = footer["losses"]["table_full"].as_u64().context("no table_full")?;
    println!(
        "{}",
        json!({"part": "open", "connections": count, "ends": count * 2, "lines": lines.len(), "table_full": full, "ring_full": footer["losses"]["ring_full"], "resident": resident})
    );
    ensure!(
        distinct.len() == lines.len(),
        "{} of {} lines are of others",
        lines.len() - distinct.len(),
        lines.len()
    );
    ensure!(lines.len() == (count * 2).min(ROOM), "{} lines of {} ends", lines.len(), count * 2);
    ensure!(lines.len() as u64 + full == count as u64 * 2, "{full} are counted");
    Ok(())
}

/// Many that are short, of wrk to nginx: each end of each has one line.
fn short(backend: Backend) -> Result<()> {
    if let Some(missing) = ["/bin/nginx", "/bin/wrk"].into_iter().find(|program| !Path::new(program).exists())
    {
        println!("{}", json!({"part": "short", "left_out": format!("this guest has no {missing}")}));
        return Ok(());
    }
    let path = net::Path::veth(Version::V4)?;
    path.delay(WAY)?;
    let log = Scratch::new("access.log");
    let nginx = Nginx::start(&path, BYTES, |_| {
        format!(
            "keepalive_timeout 0; log_format port $remote_port; access_log {} port;",
            log.path().display()
        )
    })?;
    let tool = view(backend).args(&["--port", &NGINX.to_string()]).start()?;
    let (mut logged, mut requests) = (HashMap::<u16, usize>::new(), 0);
    while requests < SHORT {
        requests += wrk(&path, &nginx.url)?;
        // Those that it did not wait for end too.
        sleep(Duration::from_secs(1));
    }
    for port in fs::read_to_string(log.path())?.lines() {
        *logged.entry(port.parse()?).or_default() += 1;
    }
    let (resident, maps) =
        (resident(&tool)?, memory::of(&Path::new("/proc").join(tool.pid().to_string()))?.maps);
    let outcome = tool.stop()?;
    let mut seen = [HashMap::<u16, usize>::new(), HashMap::new()];
    let (mut lasted, mut unseen) = (Vec::new(), 0);
    for line in outcome.text()?.lines() {
        let is_server = line.contains("\"role\":\"server\"");
        let number = |name: &str| number(line, name).with_context(|| format!("no {name}: {line}"));
        let [port, request] = if is_server { ["rport", "bytes_in"] } else { ["lport", "bytes_out"] };
        // At its end wrk drops connections that it has just made.
        if number(request)? > 0 {
            *seen[usize::from(is_server)].entry(number(port)?.try_into()?).or_default() += 1;
            match number("duration_ns") {
                Ok(ns) => lasted.push(ns),
                Err(_) => unseen += 1,
            }
        }
    }
    lasted.sort_unstable();
    let (lost, skipped) = (outcome.lost()?, outcome.skipped_calls());
    let all = logged.values().sum::<usize>();
    let differ = seen.each_ref().map(|ports| {
        let off = |port: &u16| {
            ports.get(port).copied().unwrap_or(0).abs_diff(logged.get(port).copied().unwrap_or(0))
        };
        (0..=u16::MAX).map(|port| off(&port)).sum::<usize>()
    });
    let [clients, servers] = seen.each_ref().map(|ports| ports.values().sum::<usize>());
    println!(
        "{}",
        json!({"part": "short", "mode": backend.to_string(), "requests": requests, "logged": all, "clients": clients, "servers": servers, "differ": differ, "without_times": unseen, "lost": lost, "skipped": skipped, "lasted_ns_p50": lasted.get(lasted.len() / 2), "resident": resident, "maps_kib": maps >> 10})
    );
    ensure!(lost == 0 && differ == [0; 2], "not one line for each end");
    // A kprobe's program is skipped where an interrupt finds another one running.
    let may_lack = if backend == Backend::Kprobe { skipped.unwrap_or(u64::MAX) } else { 0 };
    ensure!(unseen <= may_lack, "{unseen} lines have no times");
    Ok(())
}

/// A number of a line in JSON.
fn number(line: &str, name: &str) -> Option<u64> {
    let (_, rest) = line.split_once(&format!("\"{name}\":"))?;
    rest.split([',', '}']).next()?.parse().ok()
}

/// Has wrk ask, with a connection for each request; how many were answered.
fn wrk(path: &net::Path, url: &str) -> Result<usize> {
    let mut command = Command::new("/bin/wrk");
    command.args(["--threads", "1", "--connections", AT_ONCE, "--duration", "10s"]);
    let output = path.near(|| Ok(command.args(["--header", "Connection: close", url]).output()?))?;
    let said = String::from_utf8_lossy(&output.stdout);
    let requests = said.lines().find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok());
    requests.with_context(|| format!("wrk says {said}{}", String::from_utf8_lossy(&output.stderr)))
}

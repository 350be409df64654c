//! Servers and clients as Debian has them, with `--stages fine`: of hardly any packet may a part of its time be unknown.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{IpAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::{TempDir, tempdir};

use super::{Check, Evidence, Scenario, Theme};
use crate::{
    lines::{DRIVER, Dir, Line, NET, QDISC},
    net::{Path, Version},
    process::{PATIENCE, until, wait},
    tool::Scratch,
};

pub(crate) const THEME: Theme = Theme {
    name: "programs",
    arguments: &["--stages", "fine"],
    scenarios: &[
        Scenario { name: "nginx_and_curl", play: nginx },
        Scenario { name: "redis_with_pipelining", play: redis },
        Scenario { name: "memcached_in_threads", play: memcached },
        Scenario { name: "iperf_by_bbr_through_fq", play: iperf },
    ],
};

/// Of N packets with data one may lack a part.
const SHARE: usize = 100;

/// Until a server listens.
const START: Duration = Duration::from_secs(30);

/// A program that runs until the value is dropped.
pub(crate) struct Server(Child);

impl Server {
    /// Starts it at the far end, and waits until it listens at its port.
    pub(crate) fn start(path: &Path, port: u16, program: &str, arguments: &[&str]) -> Result<Self> {
        let child = path.far(|| spawn(program, arguments))?;
        let mut server = Self(child);
        let is_there = || {
            ensure!(server.0.try_wait()?.is_none(), "{program} ended");
            path.far(|| listens(port))
        };
        until(START, is_there).with_context(|| format!("{program} does not listen"))?;
        Ok(server)
    }
}

/// Whether a program listens at this port of the thread's network namespace. A connection made to find out would be a client to it, and
/// iperf3 turns down a second one while it has a first.
fn listens(port: u16) -> Result<bool> {
    // TCP_LISTEN (include/net/tcp_states.h); the fourth word of a row is the state.
    let is_listener = |row: &str| {
        let mut words = row.split_ascii_whitespace().skip(1);
        let local = words.next().and_then(|address| address.rsplit_once(':'));
        local.is_some_and(|(_, its)| its == format!("{port:04X}")) && words.nth(1) == Some("0A")
    };
    let tables = ["tcp", "tcp6"].map(|table| fs::read_to_string(format!("/proc/thread-self/net/{table}")));
    let mut is_any = false;
    for table in tables {
        is_any |= table?.lines().skip(1).any(is_listener);
    }
    Ok(is_any)
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn spawn(program: &str, arguments: &[&str]) -> Result<Child> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command.spawn().with_context(|| format!("cannot run {program}"))
}

/// Runs a client at the near end until it ends well.
pub(crate) fn client(path: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    let mut child = path.near(|| spawn(program, arguments))?;
    let status = wait(&mut child, PATIENCE)?;
    ensure!(status.success(), "{program} {}: {status}", arguments.join(" "));
    Ok(())
}

/// At least N packets with data each way at each end, and of hardly any a part is unknown.
fn known(path: &Path, port: u16, server: &'static str, least: usize) -> Check {
    let (near, far) = path.addresses();
    Box::new(move |evidence| {
        let is_there = |from: IpAddr, from_port: bool, line: &Line| {
            line.saddr == from
                && !line.is("control")
                && if from_port { line.sport == port } else { line.dport == port }
        };
        for dir in [Dir::Out, Dir::In] {
            for (from, is_answer) in [(near, false), (far, true)] {
                let lines = evidence.lines.iter().filter(|line| line.dir == dir);
                let lines: Vec<_> = lines.filter(|line| is_there(from, is_answer, line)).collect();
                let wrong = format_args!("{} packets {dir} from {from}, not {least}", lines.len());
                ensure!(lines.len() >= least, evidence.outcome.fault(wrong, lines.iter().copied()));
                expect_known(evidence, &lines)?;
                let is_servers = (dir == Dir::Out) == is_answer;
                let other = lines.iter().filter(|line| {
                    is_servers && line.process.as_deref().is_some_and(|process| process != server)
                });
                ensure!(other.clone().next().is_none(), evidence.outcome.fault("another's", other.copied()));
            }
        }
        Ok(())
    })
}

/// All parts are known, of each that was not sent again.
fn expect_known(evidence: &Evidence<'_>, lines: &[&Line]) -> Result<()> {
    let again: Vec<_> = lines.iter().copied().filter(|line| line.is("retrans")).collect();
    // Some of its bytes suffice: TCP sends single segments of it again.
    let is_sent_again = |line: &Line| again.iter().any(|other| line.shares_bytes(other));
    let is_whole = |line: &Line| match line.dir {
        Dir::In => line.fine.is_some(),
        Dir::Out => [QDISC, DRIVER, NET].iter().all(|part| line.sent[*part].is_some()),
    };
    let unknown: Vec<_> = lines
        .iter()
        .copied()
        .filter(|line| !(is_sent_again(line) || line.total.is_some() && is_whole(line)))
        .collect();
    let most = (lines.len() / SHARE) as u64 + evidence.outcome.allowance().most(lines.len().try_into()?);
    println!("{} of {} packets lack a part", unknown.len(), lines.len());
    ensure!(
        u64::try_from(unknown.len())? <= most,
        evidence.outcome.fault(format_args!("{} of {} lack a part", unknown.len(), lines.len()), unknown)
    );
    Ok(())
}

/// Two processes that answer with a file, to a client with one connection.
fn nginx() -> Result<Check> {
    let path = Path::veth(Version::V4)?;
    ask_nginx(&path, 60)?;
    Ok(known(&path, NGINX, "nginx", 60))
}

/// Where nginx listens.
pub(crate) const NGINX: u16 = 8080;

/// Gets a file N times.
pub(crate) fn ask_nginx(path: &Path, times: u32) -> Result<()> {
    let server = Nginx::start(path, 40_000, |_| "access_log off; sendfile on;".to_owned())?;
    let url = format!("{}?[1-{times}]", server.url);
    client(path, "/bin/curl", &["-sS", "-f", "-o", "/dev/null", &url])
}

/// nginx at the far end of a path.
pub(crate) struct Nginx {
    /// Of its file.
    pub(crate) url: String,
    _server: Server,
    _root: TempDir,
}

impl Nginx {
    /// Starts two workers that serve a file of N bytes, with what `settings` says of HTTP, which is told where the files are.
    pub(crate) fn start(
        path: &Path,
        bytes: usize,
        settings: impl FnOnce(&std::path::Path) -> String,
    ) -> Result<Self> {
        const PORT: u16 = NGINX;
        let address = path.addresses().1;
        let (directory, config) = (tempdir()?, Scratch::new("nginx.conf"));
        let (root, config) = (directory.path(), config.path());
        fs::write(root.join("file"), vec![b'x'; bytes])?;
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {}/{kind};", root.display()))
            .concat();
        let text = format!(
            "daemon off; user root; worker_processes 2; pid {0}/pid; error_log stderr;\n\
             events {{ worker_connections 256; }}\n\
             http {{ {settings} {temporary}\n\
             server {{ listen {address}:{PORT}; root {0}; }} }}\n",
            root.display(),
            settings = settings(root),
        );
        fs::write(config, text)?;
        let arguments = ["-e", "stderr", "-c", &config.display().to_string()];
        let server = Server::start(path, PORT, "/bin/nginx", &arguments)?;
        Ok(Self { url: format!("http://{address}:{PORT}/file"), _server: server, _root: directory })
    }
}

/// A server with one thread, and requests that do not wait for the answers before them.
fn redis() -> Result<Check> {
    let path = Path::veth(Version::V6)?;
    ask_redis(&path, &["-c", "4", "-P", "16", "-n", "3200"])?;
    Ok(known(&path, REDIS, "redis-server", 200))
}

/// Where redis listens.
const REDIS: u16 = 6379;

/// Sets and gets by redis' own benchmark.
pub(crate) fn ask_redis(path: &Path, load: &[&str]) -> Result<()> {
    let address = path.addresses().1.to_string();
    let port = REDIS.to_string();
    let arguments = ["--port", &port, "--bind", &address, "--protected-mode", "no", "--save", ""];
    let server = Server::start(path, REDIS, "/bin/redis-server", &arguments)?;
    let load = [&["-h", &address, "-p", &port, "-t", "set,get", "-q"], load].concat();
    client(path, "/bin/redis-benchmark", &load)?;
    drop(server);
    Ok(())
}

/// A server with four threads that each wait for several connections (epoll).
fn memcached() -> Result<Check> {
    const PORT: u16 = 11211;
    const CONNECTIONS: usize = 8;
    const ROUNDS: usize = 25;
    let path = Path::veth(Version::V4)?;
    let address = path.addresses().1;
    let (ip, port) = (address.to_string(), PORT.to_string());
    let arguments = ["-u", "root", "-l", &ip, "-p", &port, "-U", "0", "-t", "4"];
    let server = Server::start(&path, PORT, "/bin/memcached", &arguments)?;
    path.near(|| {
        let connect = |_| Ok(BufReader::new(TcpStream::connect((address, PORT))?));
        let mut connections = (0..CONNECTIONS).map(connect).collect::<Result<Vec<_>>>()?;
        let mut line = String::new();
        for round in 0..ROUNDS {
            for (number, connection) in connections.iter_mut().enumerate() {
                connection.get_ref().set_read_timeout(Some(PATIENCE))?;
                connection
                    .get_mut()
                    .write_all(format!("set {number} 0 0 5\r\nhello\r\nget {number}\r\n").as_bytes())?;
                // Every other round they wait for their answers together.
                if round % 2 == 0 {
                    expect_answers(connection, &mut line)?;
                }
            }
            if round % 2 == 1 {
                connections.iter_mut().try_for_each(|connection| expect_answers(connection, &mut line))?;
            }
        }
        Ok(())
    })?;
    drop(server);
    Ok(known(&path, PORT, "memcached", CONNECTIONS * ROUNDS))
}

fn expect_answers(connection: &mut BufReader<TcpStream>, line: &mut String) -> Result<()> {
    for wanted in ["STORED\r\n", "VALUE ", "hello\r\n", "END\r\n"] {
        line.clear();
        connection.read_line(line)?;
        ensure!(line.starts_with(wanted), "{line:?}, not {wanted:?}");
    }
    Ok(())
}

/// A bulk transfer that is paced by the device's queue, at a rate that the slowest guest can send at: BBR alone paces by what it has
/// measured, and where that is little no packet waits.
fn iperf() -> Result<Check> {
    const PORT: u16 = 5201;
    let path = Path::veth(Version::V4)?;
    path.fair_queue()?;
    let (address, port) = (path.addresses().1.to_string(), PORT.to_string());
    let server = Server::start(&path, PORT, "/bin/iperf3", &["-s", "-p", &port])?;
    client(&path, "/bin/iperf3", &["-c", &address, "-p", &port, "-C", "bbr", "--fq-rate", "8M", "-n", "2M"])?;
    drop(server);
    let (near, _) = path.addresses();
    Ok(Box::new(move |evidence| {
        let is_sent = |line: &&Line| line.saddr == near && line.dport == PORT && !line.is("control");
        let sent = || evidence.lines.iter().filter(is_sent);
        // When the client has sent all, the server closes without reading the rest, which is not acknowledged then.
        let is_read = |line: &&Line| sent().any(|other| other.dir == Dir::In && other.shares_bytes(line));
        for dir in [Dir::Out, Dir::In] {
            let lines: Vec<_> = sent().filter(|line| line.dir == dir).filter(is_read).collect();
            let wrong = format_args!("{} packets {dir}, not 50", lines.len());
            ensure!(lines.len() >= 50, evidence.outcome.fault(wrong, lines.iter().copied()));
            expect_known(evidence, &lines)?;
        }
        let paced = evidence.lines.iter().filter_map(|line| line.sent[QDISC]).max().unwrap_or(0);
        ensure!(paced >= PACED_NS, "no packet waited in fq: at most {paced} ns");
        Ok(())
    }))
}

/// fq keeps packets back for as long: at 8 Mbit/s a packet of one segment takes 1.5 ms.
const PACED_NS: u64 = 1_000_000;

//! `net-latency connections` against connections that begin and end in known ways.

use std::{
    collections::BTreeSet,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, OwnedFd},
    process::id,
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    errno::Errno,
    sys::socket::{
        AddressFamily, Backlog, MsgFlags, SockFlag, SockType, SockaddrStorage, bind, connect, listen, sendto,
        setsockopt, socket, sockopt,
    },
};
use serde_json::Value;

use super::Case;
use crate::{
    net::{Path, Version, counter, drop_sent},
    peers::{CLIENT, Pair, SERVER, multipath, tcp_info},
    process::{PATIENCE, until},
    tool::{self, Backend, Launch, Outcome, Scratch, Tool},
    verdict::Skipped,
};

pub(crate) const CASES: &[Case] = &[
    ("lifetimes_of_connections_that_end", ended),
    ("lifetimes_of_connections_that_fail", failed),
    ("lifetimes_of_other_handshakes", handshakes),
    ("lifetimes_of_a_full_queue", full_queue),
    ("lifetimes_of_many", many),
    ("lifetimes_of_a_process", of_a_process),
    ("lifetimes_from_before", from_before),
    ("lifetimes_that_time_out", timed_out),
    ("lifetimes_accepted_by_another", accepted_by_another),
    ("lifetimes_passed_to_another", passed_to_another),
    ("lifetimes_of_multipath", multipath),
    ("lifetimes_over_cards", over_cards),
];

/// How many connections have ended since bytes came for a closed socket.
const ABORTED: &str = "TCPAbortOnData";
/// No client gets it.
const PORT: u16 = 7300;
/// Times that are made, and other times are shorter.
const PAUSE: Duration = Duration::from_millis(150);

fn launch(backend: Backend, ports: &[u16], arguments: &[&str]) -> Result<Tool> {
    let ports = ports.iter().flat_map(|port| ["--port".to_owned(), port.to_string()]);
    Launch::new(backend).view("connections").args(arguments).args(&ports.collect::<Vec<_>>()).start()
}

/// The lines of a run.
struct Lines(Vec<Value>);

impl Lines {
    fn of(outcome: &Outcome) -> Result<Self> {
        let lines = outcome.text()?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Self(lines))
    }

    /// The only line of an end of a connection, by the client's port.
    fn one(&self, role: &str, client_port: u16) -> Result<&Value> {
        let own = if role == "client" { "lport" } else { "rport" };
        let found: Vec<_> =
            self.0.iter().filter(|line| line["role"] == role && line[own] == client_port).collect();
        ensure!(
            found.len() == 1,
            "{} lines of the {role} with port {client_port}: {:#?}",
            found.len(),
            self.0
        );
        Ok(found[0])
    }

    /// That this end ended so, and by whom.
    fn expect(&self, role: &str, client_port: u16, state: &str, closed_by: &str) -> Result<&Value> {
        let line = self.one(role, client_port)?;
        let is_it = line["state"] == state && line["closed_by"].as_str().unwrap_or("-") == closed_by;
        ensure!(is_it, "not {state} by {closed_by}: {line}");
        Ok(line)
    }
}

fn time(line: &Value, field: &str) -> Result<Duration> {
    line[field].as_u64().map(Duration::from_nanos).with_context(|| format!("no {field} in {line}"))
}

/// That a time is as long as it was made, and not much longer than another one was waited for.
fn expect_time(line: &Value, field: &str, least: Duration) -> Result<()> {
    let found = time(line, field)?;
    ensure!(found >= least, "{field} is less than {least:?}: {line}");
    Ok(())
}

fn expect_count(line: &Value, field: &str, count: u64) -> Result<()> {
    ensure!(line[field] == count, "{field} is not {count}: {line}");
    Ok(())
}

fn listener(address: IpAddr, port: u16) -> Result<TcpListener> {
    TcpListener::bind((address, port)).with_context(|| format!("listening at {address} {port}"))
}

/// Whether there is a socket with these ports that is established, in the calling thread's namespace.
fn has_established(local: u16, remote: u16) -> Result<bool> {
    let text =
        fs::read_to_string("/proc/thread-self/net/tcp")? + &fs::read_to_string("/proc/thread-self/net/tcp6")?;
    // number: ADDRESS:PORT ADDRESS:PORT STATE, all of them in hexadecimal.
    let ends = [local, remote].map(|port| format!(":{port:04X}"));
    let is_it = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        [_, own, other, state, ..] => own.ends_with(&ends[0]) && other.ends_with(&ends[1]) && state == "01",
        _ => false,
    };
    Ok(text.lines().any(is_it))
}

/// Both ends of a new connection, of which `accept` takes it after a pause, and the client's port.
fn open(listener: &TcpListener, pause: Duration) -> Result<(TcpStream, TcpStream, u16)> {
    let client = TcpStream::connect(listener.local_addr()?)?;
    if !pause.is_zero() {
        // `connect` may return before the last ACK has come to the other end.
        until(PATIENCE, || has_established(listener.local_addr()?.port(), client.local_addr()?.port()))?;
    }
    sleep(pause);
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
    }
    let port = client.local_addr()?.port();
    Ok((client, server, port))
}

/// A reset in place of a FIN.
fn reset(stream: TcpStream) -> Result<()> {
    setsockopt(&stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    Ok(())
}

fn write(mut stream: &TcpStream, count: usize) -> Result<()> {
    Ok(stream.write_all(&vec![7; count])?)
}

fn read(mut stream: &TcpStream, count: usize) -> Result<()> {
    Ok(stream.read_exact(&mut vec![0; count])?)
}

/// Until the other end's FIN or reset.
fn read_end(mut stream: &TcpStream) -> Result<()> {
    match stream.read_to_end(&mut Vec::new()) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => Err(error.into()),
        _ => Ok(()),
    }
}

/// Waits until all that is shown has ended, but for `open`.
fn stop(tool: Tool, lines: usize) -> Result<(Lines, Outcome)> {
    tool.expect_written(lines)?;
    let outcome = tool.stop()?;
    Ok((Lines::of(&outcome)?, outcome))
}

fn ended(backend: Backend) -> Result<()> {
    for version in [Version::V4, Version::V6] {
        let path = Path::private_loopback(version)?;
        let (_, address) = path.addresses();
        let tool = launch(backend, &[PORT], &[])?;
        let (mut info, mut rtts, mut aborted) = (None, [0; 2], 0);
        let [normal, late, by_server, linger, unread, after_close, kept] = path.near(|| {
            let listening = listener(address, PORT)?;
            // The client writes first and closes first.
            let (client, server, normal) = open(&listening, PAUSE)?;
            sleep(PAUSE);
            write(&client, 300)?;
            read(&server, 300)?;
            sleep(PAUSE);
            write(&server, 200)?;
            write(&server, 500)?;
            read(&client, 700)?;
            // Until the last ACK is there.
            until(PATIENCE, || Ok(tcp_info(&server)?.tcpi_unacked == 0))?;
            info = Some([tcp_info(&client)?, tcp_info(&server)?]);
            drop(client);
            read_end(&server)?;
            drop(server);
            // One whose last ACK of the handshake is late, or has bytes with it, has no other.
            let (client, server, late) = open(&listening, Duration::ZERO)?;
            write(&server, 1)?;
            read(&client, 1)?;
            client.shutdown(Shutdown::Write)?;
            read_end(&server)?;
            // While this end has closed its half, the other goes on.
            write(&server, 99)?;
            drop(server);
            read_end(&client)?;
            drop(client);
            let (client, server, by_server) = open(&listening, Duration::ZERO)?;
            drop(server);
            read_end(&client)?;
            drop(client);
            let (client, server, linger) = open(&listening, Duration::ZERO)?;
            reset(server)?;
            read_end(&client)?;
            drop(client);
            let (client, server, unread) = open(&listening, Duration::ZERO)?;
            write(&client, 10)?;
            until(PATIENCE, || Ok(tcp_info(&client)?.tcpi_unacked == 0))?;
            drop(server);
            read_end(&client)?;
            drop(client);
            let (client, server, after_close) = open(&listening, Duration::ZERO)?;
            drop(server);
            read_end(&client)?;
            let before = counter("netstat", "TcpExt", ABORTED)?;
            write(&client, 10)?;
            read_end(&client)?;
            aborted = counter("netstat", "TcpExt", ABORTED)? - before;
            drop(client);
            let (client, server, kept) = open(&listening, Duration::ZERO)?;
            write(&client, 40)?;
            read(&server, 40)?;
            until(PATIENCE, || Ok(tcp_info(&client)?.tcpi_unacked == 0))?;
            rtts = [tcp_info(&client)?.tcpi_rtt, tcp_info(&server)?.tcpi_rtt];
            // Until the tool has ended.
            std::mem::forget((client, server));
            Ok([normal, late, by_server, linger, unread, after_close, kept])
        })?;
        let (lines, outcome) = stop(tool, 12)?;
        let client = lines.expect("client", normal, "closed", "local")?;
        let server = lines.expect("server", normal, "closed", "peer")?;
        for (line, [sent, received]) in [(client, [300, 700]), (server, [700, 300])] {
            expect_count(line, "bytes_out", sent)?;
            expect_count(line, "bytes_in", received)?;
            expect_count(line, "pid", id().into())?;
            expect_count(line, "syn_retrans", 0)?;
            expect_count(line, "lport", if line["role"] == "client" { normal } else { PORT }.into())?;
            ensure!(line["laddr"] == address.to_string() && line["raddr"] == address.to_string(), "{line}");
            expect_time(line, "duration_ns", PAUSE * 3)?;
            // The wait comes after the handshake.
            ensure!(time(line, "handshake_ns")? + PAUSE * 3 <= time(line, "duration_ns")?, "{line}");
        }
        expect_time(server, "accept_ns", PAUSE)?;
        ensure!(client["accept_ns"].is_null(), "{client}");
        for (line, [first, second]) in
            [(client, ["first_out_ns", "first_in_ns"]), (server, ["first_in_ns", "first_out_ns"])]
        {
            expect_time(line, first, PAUSE * 2)?;
            expect_time(line, second, PAUSE * 3)?;
            ensure!(time(line, first)? < time(line, second)?, "{line}");
        }
        // What TCP says just before the end, of which the FIN's ACK may be the only measurement that comes.
        for (line, info) in [client, server].into_iter().zip(info.context("two ends")?) {
            let least = time(line, "min_rtt_ns")?;
            ensure!(
                least <= Duration::from_micros(info.tcpi_min_rtt.into()),
                "{} us, {line}",
                info.tcpi_min_rtt
            );
            let segs = u64::from(info.tcpi_segs_out);
            ensure!(
                line["segs_out"].as_u64().is_some_and(|said| (segs..=segs + 4).contains(&said)),
                "{segs}, {line}"
            );
        }
        let client = lines.expect("client", late, "closed", "local")?;
        expect_count(client, "bytes_in", 100)?;
        expect_count(client, "bytes_out", 0)?;
        ensure!(client["first_out_ns"].is_null() && !client["first_in_ns"].is_null(), "{client}");
        expect_count(lines.expect("server", late, "closed", "peer")?, "bytes_out", 100)?;
        lines.expect("client", by_server, "closed", "peer")?;
        lines.expect("server", by_server, "closed", "local")?;
        lines.expect("client", linger, "reset", "reset-by-peer")?;
        lines.expect("server", linger, "reset", "reset-by-local")?;
        lines.expect("client", unread, "reset", "reset-by-peer")?;
        expect_count(lines.expect("server", unread, "reset", "reset-by-local")?, "bytes_in", 10)?;
        lines.expect("client", after_close, "reset", "reset-by-peer")?;
        // Bytes behind an ACK of the FIN find no socket any more (TIME-WAIT), or, if that ACK came while `close` still had the socket, reset
        // it; with that ACK, they end it (`__tcp_close`, `tcp_rcv_state_process`). Before them came a SYN and an ACK.
        let has_own_ack = lines.one("server", after_close)?["segs_in"] == 4;
        let is_reset = aborted > 0 && has_own_ack;
        let (state, by) = if is_reset { ("reset", "reset-by-local") } else { ("closed", "local") };
        lines.expect("server", after_close, state, by)?;
        for ((role, field), rtt) in [("client", "bytes_out"), ("server", "bytes_in")].into_iter().zip(rtts) {
            let line = lines.expect(role, kept, "open", "-")?;
            expect_count(line, field, 40)?;
            // What `ss -ti` shows, in us.
            ensure!(time(line, "rtt_ns")?.as_micros() == rtt.into(), "{rtt} us: {line}");
        }
        ensure!(lines.0.len() == 14, "{} lines: {:#?}", lines.0.len(), lines.0);
        let footer = outcome.footer()?;
        ensure!(footer["connections"]["open"] == 2 && footer["lost"] == 0, "{footer}");
        expect_count(&footer["listening"][0], "accepted", 7)?;
        ensure!(footer["listening"][0]["pid"] == id(), "{footer}");
        replayed(&outcome)?;
    }
    Ok(())
}

/// A replay from JSON to CSV and back gives the same lines.
fn replayed(outcome: &Outcome) -> Result<()> {
    let mut log = outcome.text()?.to_owned();
    for format in ["csv", "json"] {
        let file = Scratch::new("replayed");
        fs::write(file.path(), &log)?;
        let path = file.path().to_str().context("a path of ours")?;
        let said = tool::run(None, &["connections", "--replay", path, "--format", format, "--utc", "-q"])?;
        ensure!(said.code == Some(0), "{}", said.stderr);
        log = said.stdout + "\n";
    }
    let again = Lines(log.lines().map(serde_json::from_str).collect::<Result<_, _>>()?);
    for (line, other) in Lines::of(outcome)?.0.iter().zip(&again.0) {
        let same = line.as_object().context("an object")?.iter().all(|(name, value)| {
            // The zone is another.
            name == "ts" || *value == other[name]
        });
        ensure!(same, "{line}\n{other}");
    }
    Ok(())
}

/// A socket that does not wait for its connection.
fn begin(to: SocketAddr) -> Result<TcpStream> {
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK, None)?;
    match connect(fd.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(TcpStream::from(fd)),
        Err(error) => Err(error.into()),
    }
}

fn failed(backend: Backend) -> Result<()> {
    const SILENT: u16 = 7302;
    const NOBODY: u16 = 7303;
    for version in [Version::V4, Version::V6] {
        let path = Path::private_loopback(version)?;
        let (_, address) = path.addresses();
        let tool = launch(backend, &[SILENT, NOBODY, PORT], &["--failed"])?;
        path.near(|| {
            fs::write("/proc/sys/net/ipv4/tcp_syn_retries", "1")?;
            // It has a line with another view only.
            let listening = listener(address, PORT)?;
            let (client, server, _) = open(&listening, Duration::ZERO)?;
            drop(client);
            read_end(&server)?;
            drop(server);
            let refused = TcpStream::connect((address, NOBODY));
            ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused), "not refused");
            drop_sent(SILENT)?;
            let given_up = begin((address, SILENT).into())?;
            sleep(PAUSE);
            drop(given_up);
            let late = TcpStream::connect((address, SILENT));
            ensure!(late.is_err_and(|error| error.kind() == ErrorKind::TimedOut), "no timeout");
            Ok(())
        })?;
        let (lines, outcome) = stop(tool, 3)?;
        let states: Vec<_> = lines.0.iter().map(|line| line["state"].as_str().unwrap_or_default()).collect();
        ensure!(states == ["refused", "abandoned", "timeout"], "{:#?}", lines.0);
        let [refused, abandoned, timeout] = &lines.0[..] else { unreachable!("three") };
        for line in &lines.0 {
            ensure!(line["role"] == "client" && line["handshake_ns"].is_null(), "{line}");
            expect_count(line, "pid", id().into())?;
            expect_count(line, "bytes_out", 0)?;
            ensure!(line["lport"].as_u64().is_some_and(|port| port > 0), "{line}");
        }
        ensure!(refused["error"] == libc::ECONNREFUSED && refused["rport"] == NOBODY, "{refused}");
        expect_time(abandoned, "duration_ns", PAUSE)?;
        ensure!(
            abandoned["closed_by"] == "local" && timeout["closed_by"] == "timeout",
            "{abandoned} {timeout}"
        );
        // Linux 6.5 and later send it again more often than they are told (`tcp_syn_linear_timeouts`).
        let sent = timeout["segs_out"].as_u64().context("segments")?;
        expect_count(timeout, "syn_retrans", sent - 1)?;
        ensure!(sent > 1, "{timeout}");
        // 1 s until the SYN is sent again, and twice that for the answer.
        expect_time(timeout, "duration_ns", Duration::from_secs(3))?;
        let footer = outcome.footer()?;
        ensure!(footer["filtered"] == 2 && footer["connections"]["timeout"] == 1, "{footer}");
    }
    Ok(())
}

/// A delay each way, SYN cookies, TCP Fast Open, and a client that opens twice as a server.
fn handshakes(backend: Backend) -> Result<()> {
    const DELAY: Duration = Duration::from_millis(100);
    let path = Path::veth(Version::V4)?;
    path.delay(DELAY)?;
    let (_, address) = path.addresses();
    let tool = launch(backend, &[PORT, PORT + 1, PORT + 2], &[])?;
    let listening = path.far(|| listener(address, PORT))?;
    let delayed = path.near(|| {
        let (client, server, port) = open(&listening, Duration::ZERO)?;
        drop(client);
        read_end(&server)?;
        Ok(port)
    })?;
    let local = Path::private_loopback(Version::V4)?;
    let address = local.addresses().1;
    let [cookie, fast] = local.near(|| {
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2")?;
        let listening = listener(address, PORT + 1)?;
        let (client, server, cookie) = open(&listening, Duration::ZERO)?;
        drop(client);
        read_end(&server)?;
        drop(server);
        // Client and server, neither of which asks for a cookie.
        fs::write("/proc/sys/net/ipv4/tcp_fastopen", "519")?;
        fs::write("/proc/sys/net/ipv4/tcp_syncookies", "1")?;
        let listening = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
        let to = SockaddrStorage::from(SocketAddr::new(address, PORT + 2));
        bind(listening.as_raw_fd(), &to)?;
        fast_open(&listening)?;
        listen(&listening, Backlog::new(5)?)?;
        let listening = TcpListener::from(listening);
        let client = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None)?;
        let sent = sendto(client.as_raw_fd(), &[7; 60], &to, MsgFlags::from_bits_retain(libc::MSG_FASTOPEN))?;
        ensure!(sent == 60, "{sent} bytes");
        let client = TcpStream::from(client);
        let (server, _) = listening.accept()?;
        read(&server, 60)?;
        write(&server, 30)?;
        read(&client, 30)?;
        let port = client.local_addr()?.port();
        drop(client);
        read_end(&server)?;
        Ok([cookie, port])
    })?;
    let (lines, _) = stop(tool, 6)?;
    for role in ["client", "server"] {
        expect_time(lines.one(role, delayed)?, "handshake_ns", DELAY)?;
    }
    let server = lines.one("server", cookie)?;
    ensure!(
        server["handshake_ns"].is_null() && server["flags"] == serde_json::json!(["syn-cookie"]),
        "{server}"
    );
    ensure!(!lines.one("client", cookie)?["handshake_ns"].is_null(), "no handshake of the client's");
    let (client, server) = (lines.one("client", fast)?, lines.one("server", fast)?);
    ensure!(server["flags"] == serde_json::json!(["fast-open"]), "{server}");
    ensure!(!server["handshake_ns"].is_null() && server["pid"] == id(), "{server}");
    for (line, [sent, received]) in [(client, [60, 30]), (server, [30, 60])] {
        expect_count(line, "bytes_out", sent)?;
        expect_count(line, "bytes_in", received)?;
    }
    // The bytes were there before the handshake was complete.
    ensure!(client["first_out_ns"].is_null(), "{client}");
    Ok(())
}

fn fast_open(listening: &OwnedFd) -> Result<()> {
    let backlog: libc::c_int = 5;
    // SAFETY: an int, of which the length is told.
    let result = unsafe {
        libc::setsockopt(
            listening.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_FASTOPEN,
            (&raw const backlog).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    ensure!(result == 0, "TCP_FASTOPEN: {}", std::io::Error::last_os_error());
    Ok(())
}

/// What the kernel counts of queues that overflow, in the calling thread's namespace.
fn overflows() -> Result<[u64; 2]> {
    let text = fs::read_to_string("/proc/thread-self/net/netstat")?;
    let mut rows = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (rows.next().context("names")?, rows.next().context("values")?);
    let value = |wanted| -> Result<u64> {
        let found = names.split(' ').zip(values.split(' ')).find(|(name, _)| *name == wanted);
        Ok(found.context("no such counter")?.1.parse()?)
    };
    Ok([value("ListenOverflows")?, value("ListenDrops")?])
}

fn full_queue(backend: Backend) -> Result<()> {
    const BACKLOG: i32 = 2;
    for version in [Version::V4, Version::V6] {
        let path = Path::private_loopback(version)?;
        let to = SocketAddr::new(path.addresses().1, PORT);
        let tool = launch(backend, &[PORT], &[])?;
        let ([overflowed, dropped], accepted) = path.near(|| {
            let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let listening = socket(family, SockType::Stream, SockFlag::empty(), None)?;
            bind(listening.as_raw_fd(), &SockaddrStorage::from(to))?;
            listen(&listening, Backlog::new(BACKLOG)?)?;
            let clients = (0..12).map(|_| begin(to)).collect::<Result<Vec<_>>>()?;
            // Some are sent again meanwhile.
            until(PATIENCE, || Ok(overflows()?[0] >= 12))?;
            let listening = TcpListener::from(listening);
            listening.set_nonblocking(true)?;
            let accepted = std::iter::from_fn(|| listening.accept().ok()).count() as u64;
            // Clients that were turned away go on trying as long as there is a listener.
            drop(listening);
            drop(clients);
            Ok((overflows()?, accepted))
        })?;
        let outcome = tool.stop()?;
        let footer = outcome.footer()?;
        let queue = &footer["listening"][0];
        expect_count(queue, "overflows", overflowed)?;
        // With SYN cookies, a queue that is full is the only reason to drop one, while there is memory.
        ensure!(dropped == overflowed, "{dropped} dropped, not {overflowed}");
        // The socket counts SYNs that come again, and a last ACK twice (`discard_and_relse` in `tcp_v4_rcv`).
        ensure!(queue["dropped"].as_u64() >= Some(dropped), "fewer than {dropped}: {queue}");
        expect_count(queue, "accepted", accepted)?;
        // Two handshakes that end at once on two processors may both find the last place free.
        let most = queue["most_waiting"].as_u64().context("no most_waiting")?;
        ensure!((BACKLOG as u64 + 1..=accepted).contains(&most), "{queue}");
        expect_count(queue, "backlog", BACKLOG as u64)?;
        ensure!(accepted > BACKLOG as u64 && queue["pid"] == id(), "{queue}");
    }
    Ok(())
}

/// Each end of each of many has one line.
fn many(backend: Backend) -> Result<()> {
    const MANY: usize = 500;
    let path = Path::private_loopback(Version::V4)?;
    let address = path.addresses().1;
    let tool = launch(backend, &[PORT], &[])?;
    let ports = path.near(|| {
        let listening = listener(address, PORT)?;
        let mut ports = Vec::new();
        for _ in 0..MANY {
            let (client, server, port) = open(&listening, Duration::ZERO)?;
            write(&client, 3)?;
            read(&server, 3)?;
            drop(client);
            read_end(&server)?;
            ports.push(port);
        }
        Ok(ports)
    })?;
    let outcome = tool.stop()?;
    let lines = Lines::of(&outcome)?;
    // A port may be used again after a second.
    let used = |port: u16| ports.iter().filter(|other| **other == port).count();
    let mut found = 0;
    for &port in ports.iter().collect::<BTreeSet<_>>() {
        for (role, own) in [("client", "lport"), ("server", "rport")] {
            let is_it = |line: &&Value| line["role"] == role && line[own] == port;
            let all: Vec<_> = lines.0.iter().filter(is_it).collect();
            ensure!(all.len() <= used(port), "{} lines of the {role} with port {port}", all.len());
            found += all.iter().filter(|line| line["state"] == "closed" && line["pid"] == id()).count();
        }
    }
    outcome.expect_all("ends of connections", found as u64, (MANY * 2) as u64, [])
}

/// Of two processes one is wanted, by its number and by its name, and the children of neither.
fn of_a_process(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let name = String::from_utf8_lossy(SERVER).into_owned();
    let server = pair.server.pid();
    for arguments in [["--pid".to_owned(), server.to_string()], ["--comm".to_owned(), name]] {
        let tool = Launch::new(backend).view("connections").args(&arguments).start()?;
        pair.open(&path)?;
        pair.converse(2, 100)?;
        let outcome = tool.stop()?;
        let mut lines = Lines::of(&outcome)?;
        // That of the run before ends when the next one is opened.
        lines.0.retain(|line| line["flags"] == serde_json::json!([]));
        ensure!(
            lines.0.len() == 1 && lines.0[0]["role"] == "server" && lines.0[0]["pid"] == server,
            "{arguments:?}: {:#?}",
            lines.0
        );
        expect_count(&lines.0[0], "bytes_in", 200)?;
        ensure!(lines.0[0]["state"] == "open", "{}", lines.0[0]);
    }
    Ok(())
}

/// One that is older than tracing says so, and nothing is made up.
fn from_before(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V4)?;
    let address = path.addresses().1;
    let (listening, client, server, port) = path.near(|| {
        let listening = listener(address, PORT)?;
        let (client, server, port) = open(&listening, Duration::ZERO)?;
        write(&client, 70)?;
        read(&server, 70)?;
        Ok((listening, client, server, port))
    })?;
    let waiting = path.near(|| Ok(TcpStream::connect((address, PORT))?))?;
    let tool = launch(backend, &[PORT], &[])?;
    drop(client);
    read_end(&server)?;
    drop(server);
    // Established before, accepted since.
    let (accepted, _) = listening.accept()?;
    drop(accepted);
    read_end(&waiting)?;
    drop(waiting);
    let (lines, _) = stop(tool, 4)?;
    let old: Vec<_> = lines.0.iter().filter(|line| line["lport"] == port || line["rport"] == port).collect();
    ensure!(old.len() == 2 && lines.0.len() == 4, "{:#?}", lines.0);
    for line in lines.0 {
        ensure!(line["flags"] == serde_json::json!(["start-unseen"]), "{line}");
        for unknown in ["handshake_ns", "accept_ns", "first_in_ns", "first_out_ns", "duration_ns"] {
            ensure!(line[unknown].is_null(), "{unknown}: {line}");
        }
        ensure!(line["pid"] == id() && line["state"] == "closed", "{line}");
    }
    Ok(())
}

/// The other end falls silent: for a writer, and for a socket with keepalive only.
fn timed_out(backend: Backend) -> Result<()> {
    const USER_TIMEOUT: u32 = 300;
    let path = Path::private_loopback(Version::V4)?;
    let address = path.addresses().1;
    let tool = launch(backend, &[PORT], &["--failed"])?;
    let ports = path.near(|| {
        let listening = listener(address, PORT)?;
        let (writes, one, writing) = open(&listening, Duration::ZERO)?;
        let (asks, other, asking) = open(&listening, Duration::ZERO)?;
        setsockopt(&writes, sockopt::TcpUserTimeout, &USER_TIMEOUT)?;
        setsockopt(&asks, sockopt::TcpKeepIdle, &1)?;
        setsockopt(&asks, sockopt::TcpKeepInterval, &1)?;
        setsockopt(&asks, sockopt::TcpKeepCount, &1)?;
        setsockopt(&asks, sockopt::KeepAlive, &true)?;
        drop_sent(PORT)?;
        write(&writes, 10)?;
        for stream in [&writes, &asks] {
            let ended = (&*stream).read(&mut [0]);
            ensure!(ended.is_err_and(|error| error.kind() == ErrorKind::TimedOut), "no timeout");
        }
        // They know of nothing, until the tool has ended.
        std::mem::forget((one, other));
        Ok([writing, asking])
    })?;
    let (lines, _) = stop(tool, 2)?;
    for port in ports {
        let line = lines.expect("client", port, "timeout", "timeout")?;
        ensure!(line["error"] == libc::ETIMEDOUT && !line["handshake_ns"].is_null(), "{line}");
    }
    Ok(())
}

/// A process listens, and the one that it has forked accepts.
fn accepted_by_another(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V4)?;
    let address = path.addresses().1;
    let tool = launch(backend, &[PORT], &[])?;
    let (child, port) = path.near(|| {
        let listening = listener(address, PORT)?;
        // SAFETY: the child makes system calls only, and memory is its own.
        let child = unsafe { libc::fork() };
        ensure!(child >= 0, "fork: {}", std::io::Error::last_os_error());
        if child == 0 {
            let mut byte = 0_u8;
            // SAFETY: the address is not requested, there is room for the byte, and the process ends here.
            unsafe {
                let accepted =
                    libc::accept(listening.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut());
                let got = libc::read(accepted, (&raw mut byte).cast(), 1);
                libc::_exit(i32::from(got != 1));
            }
        }
        let client = TcpStream::connect((address, PORT))?;
        write(&client, 1)?;
        client.set_read_timeout(Some(PATIENCE))?;
        read_end(&client)?;
        let mut status = 0;
        // SAFETY: there is room for the status.
        let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
        ensure!(ended == child && status == 0, "it ended with {status}");
        Ok((child, client.local_addr()?.port()))
    })?;
    let (lines, outcome) = stop(tool, 2)?;
    let server = lines.expect("server", port, "closed", "local")?;
    ensure!(server["pid"] == child && !server["accept_ns"].is_null(), "{child}: {server}");
    ensure!(lines.expect("client", port, "closed", "peer")?["pid"] == id(), "{:#?}", lines.0);
    let footer = outcome.footer()?;
    ensure!(footer["listening"][0]["pid"] == child && footer["listening"][0]["accepted"] == 1, "{footer}");
    Ok(())
}

/// A descriptor is passed (SCM_RIGHTS) to another process, which reads, writes and ends: the line is of who accepted and connected, once
/// at each end, and has all bytes.
fn passed_to_another(backend: Backend) -> Result<()> {
    const LEN: u64 = 300;
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let tool = launch(backend, &[pair.far.port()], &[])?;
    pair.open(&path)?;
    let port = pair.near.port();
    pair.client.ask(&format!("pass write {LEN}"))?;
    pair.server.ask(&format!("pass read {LEN} {LEN} 0"))?;
    let pids = [pair.client.pid(), pair.server.pid()];
    drop(pair);
    let (lines, _) = stop(tool, 2)?;
    for (role, pid, [bytes_in, bytes_out]) in [("client", pids[0], [0, LEN]), ("server", pids[1], [LEN, 0])] {
        let line = lines.one(role, port)?;
        ensure!(line["pid"] == pid, "{role} is not {pid}: {line}");
        expect_count(line, "bytes_in", bytes_in)?;
        expect_count(line, "bytes_out", bytes_out)?;
    }
    Ok(())
}

/// The first subflow of a connection of MPTCP is whose that is.
fn multipath(backend: Backend) -> Result<()> {
    let path = Path::private_loopback(Version::V4)?;
    let address = path.addresses().1;
    let Ok(listening) = path.near(|| multipath::listener(address)) else {
        return Err(Skipped("this kernel has no MPTCP").into());
    };
    let to = listening.local_addr()?;
    let tool = launch(backend, &[to.port()], &[])?;
    let port = path.near(|| {
        let client = multipath::stream(to)?;
        let (server, _) = listening.accept()?;
        write(&client, 40)?;
        read(&server, 40)?;
        write(&server, 30)?;
        read(&client, 30)?;
        Ok(client.local_addr()?.port())
    })?;
    let (lines, outcome) = stop(tool, 2)?;
    for (role, [sent, received]) in [("client", [40, 30]), ("server", [30, 40])] {
        let line = lines.one(role, port)?;
        ensure!(line["pid"] == id() && line["flags"] == serde_json::json!(["mptcp"]), "{line}");
        expect_count(line, "bytes_out", sent)?;
        expect_count(line, "bytes_in", received)?;
        ensure!(!line["handshake_ns"].is_null(), "{line}");
    }
    ensure!(!lines.one("server", port)?["accept_ns"].is_null(), "{:#?}", lines.0);
    ensure!(outcome.footer()?["listening"][0]["accepted"] == 1, "{}", outcome.stderr.join("\n"));
    Ok(())
}

/// From one of the machine's cards to the other.
fn over_cards(backend: Backend) -> Result<()> {
    const MANY: usize = 20;
    for version in [Version::V4, Version::V6] {
        let path = Path::cards(version)?;
        let address = path.addresses().1;
        let tool = launch(backend, &[PORT], &[])?;
        let listening = path.far(|| listener(address, PORT))?;
        let ports = (0..MANY).map(|_| {
            path.near(|| {
                let (client, server, port) = open(&listening, Duration::ZERO)?;
                write(&client, 3000)?;
                read(&server, 3000)?;
                drop(client);
                read_end(&server)?;
                Ok(port)
            })
        });
        let ports = ports.collect::<Result<Vec<_>>>()?;
        let (lines, _) = stop(tool, MANY * 2)?;
        for port in ports {
            expect_count(lines.expect("client", port, "closed", "local")?, "bytes_out", 3000)?;
            let server = lines.expect("server", port, "closed", "peer")?;
            expect_count(server, "bytes_in", 3000)?;
            ensure!(!server["handshake_ns"].is_null() && server["pid"] == id(), "{server}");
        }
    }
    Ok(())
}

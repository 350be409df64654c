//! Metrics: each packet is counted once, under the right name, however they are scraped.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path as FilePath, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;

use super::Case;
use crate::{
    lines::Dir,
    net::{Path, Version},
    peers::{CLIENT, Pair, Peer, SERVER},
    process::{PATIENCE, until, wait},
    tool::{Backend, Launch, Outcome, Scratch, Sink, Tool, run},
};

pub(crate) const CASES: &[Case] = &[
    ("export_counts_every_packet", counts),
    ("export_caps_its_series", caps),
    ("export_counts_connections", connections),
    ("export_names_pods", pods),
    ("export_goes_on_beside_bad_scrapers", crowd),
    ("export_writes_slow_packets", slow),
    ("export_holds_back_slow_packets", held_back),
    ("export_goes_on_without_a_reader", unread),
    ("export_refuses_what_cannot_be", refusals),
    ("export_by_prometheus", prometheus),
];

const ROUNDS: u32 = 100;
const LEN: u32 = 200;
/// Debian's Prometheus, where a guest has it.
const PROMETHEUS: &str = "/bin/prometheus";
const PROMTOOL: &str = "/bin/promtool";
const RULES: &str = include_str!("../../../../contrib/prometheus/net-latency.rules.yml");
const TESTS_OF_RULES: &str = include_str!("../../../../contrib/prometheus/net-latency.test.yml");
const CONFIGURATION: &str = include_str!("../../../../contrib/prometheus/prometheus.yml");
const DASHBOARD: &str = include_str!("../../../../contrib/grafana/net-latency.json");

/// The exporter, on a port of its own.
fn start(backend: Backend, arguments: &[&str]) -> Result<(Tool, SocketAddr)> {
    start_into(Sink::Pipe, backend, arguments)
}

/// The exporter, with its lines in `sink`.
fn start_into(sink: Sink, backend: Backend, arguments: &[&str]) -> Result<(Tool, SocketAddr)> {
    let launch = Launch::new(backend).view("export").sink(sink);
    let tool = launch.args(&LISTEN).args(arguments).start()?;
    let address = address(&tool)?;
    Ok((tool, address))
}

/// Anywhere.
pub(crate) const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// Where it says that its metrics are.
pub(crate) fn address(tool: &Tool) -> Result<SocketAddr> {
    let words = tool.said().iter().flat_map(|line| line.split(' '));
    let address = words.filter_map(|word| word.strip_prefix("http://")?.strip_suffix("/metrics;")).next();
    Ok(address.context("it doesn't say where its metrics are")?.parse()?)
}

/// The answer for that path: headers, and body.
fn get(address: SocketAddr, path: &str, accept: &str) -> Result<(String, Vec<u8>)> {
    get_encoded(address, path, accept, "identity")
}

/// The answer for that path, compressed.
pub(crate) fn get_encoded(
    address: SocketAddr,
    path: &str,
    accept: &str,
    encoding: &str,
) -> Result<(String, Vec<u8>)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n");
    stream.write_all(format!("{head}Accept-Encoding: {encoding}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no end of the headers")?;
    let body = answer.split_off(end + 4);
    Ok((String::from_utf8(answer)?, body))
}

/// A sample: name, labels, value.
pub(super) struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Sample {
    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.labels.get(name).map(String::as_str)
    }
}

/// What was counted by now, and maybe later.
pub(super) fn scrape(address: SocketAddr) -> Result<Vec<Sample>> {
    let now_or_before = scrape_once(address)?;
    let mut samples = Vec::new();
    // The same figures may be given again. The CPU time of no two others is the same.
    let are_new = || {
        samples = scrape_once(address)?;
        let [before, now] =
            [&now_or_before, &samples].map(|samples| of_name(samples, "process_cpu_seconds_total"));
        Ok(before.context("no CPU time")? != now.context("no CPU time")?)
    };
    until(PATIENCE, are_new).context("the same figures again and again")?;
    Ok(samples)
}

/// What it answers: figures that others got before, maybe.
fn scrape_once(address: SocketAddr) -> Result<Vec<Sample>> {
    let (head, body) = get(address, "/metrics", "text/plain;version=0.0.4")?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
    samples(body)
}

/// The first value of that name.
fn of_name(samples: &[Sample], name: &str) -> Option<f64> {
    samples.iter().find(|sample| sample.name == name).map(|sample| sample.value)
}

/// What Prometheus' text has.
pub(super) fn samples(text: Vec<u8>) -> Result<Vec<Sample>> {
    String::from_utf8(text)?.lines().filter(|line| !line.starts_with('#')).map(sample).collect()
}

/// No value of a label of these tests has a quotation mark or a comma.
fn sample(line: &str) -> Result<Sample> {
    let (series, value) = line.rsplit_once(' ').context("no value")?;
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let labels = labels.trim_end_matches('}').split(',').filter_map(|pair| pair.split_once('='));
    let labels = labels.map(|(name, value)| (name.to_owned(), value.trim_matches('"').to_owned())).collect();
    Ok(Sample { name: name.to_owned(), labels, value: value.parse()? })
}

/// The sum of samples of that name with these labels.
pub(super) fn sum(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> u64 {
    let has = |sample: &&Sample| {
        sample.name == name
            && labels.iter().all(|(name, value)| sample.labels.get(*name).is_some_and(|other| other == value))
    };
    samples.iter().filter(has).map(|sample| sample.value as u64).sum()
}

/// That the metrics at the end had all packets of the ledger.
pub(super) fn expect_ledger(outcome: &Outcome, samples: &[Sample]) -> Result<()> {
    let shown = outcome.ledger()?.shown;
    let all = sum(samples, "net_latency_packets_total", &[]);
    ensure!(all == shown, outcome.fault(format_args!("{all} packets in the metrics, not {shown}"), []));
    let place = sum(samples, "net_latency_ledger_packets_total", &[("place", "shown")]);
    ensure!(place == shown, outcome.fault(format_args!("{place} in the ledger's metric, not {shown}"), []));
    Ok(())
}

/// Packets of a group, in the histograms of the whole way.
pub(super) fn in_histograms(samples: &[Sample], labels: &[(&str, &str)]) -> u64 {
    sum(samples, "net_latency_stage_seconds_count", &[&[("stage", "total")], labels].concat())
}

/// All packets of a conversation are in the metrics of both ends, and in every form.
fn counts(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let names = [&pair.client, &pair.server].map(Peer::comm);
    let port = pair.far.port().to_string();
    let (tool, address) = start(backend, &["--by", "process", "--port", &port])?;
    pair.open(&path)?;
    pair.converse(ROUNDS, LEN)?;
    let samples = scrape(address)?;
    let (open, text) = get(address, "/metrics", "application/openmetrics-text;version=1.0.0")?;
    ensure!(open.contains("openmetrics-text") && text.ends_with(b"# EOF\n"), "not OpenMetrics: {open}");
    let (buffers, bytes) = get(address, "/metrics", "application/vnd.google.protobuf")?;
    ensure!(buffers.contains("vnd.google.protobuf") && bytes.len() > 1_000, "not protobuf: {buffers}");
    let outcome = tool.stop()?;
    expect_ledger(&outcome, &samples)?;
    for name in names {
        for direction in ["in", "out"] {
            let found = in_histograms(&samples, &[("process", &name), ("direction", direction)]);
            outcome.expect_all(format_args!("packets {direction} of {name}"), found, ROUNDS.into(), [])?;
        }
    }
    for sample in samples.iter().filter(|sample| sample.name == "net_latency_stage_seconds_bucket") {
        let all = samples.iter().find(|other| {
            let mut labels = other.labels.clone();
            labels.insert("le".to_owned(), sample.labels["le"].clone());
            other.name == "net_latency_stage_seconds_count" && labels == sample.labels
        });
        let all = all.context("a bucket without a count")?.value;
        ensure!(sample.value <= all, "{} in {:?}, but {all} in all", sample.value, sample.labels);
        ensure!(sample.labels["le"] != "+Inf" || sample.value == all, "the last bucket is not all");
    }
    let hooks = samples.iter().filter(|sample| sample.name == "net_latency_hook_info").count();
    ensure!(hooks > 10, "{hooks} hooks");
    Ok(())
}

/// Connections and accept queues, as they were made.
fn connections(backend: Backend) -> Result<()> {
    const PORT: u16 = 7310;
    const NOBODY: u16 = 7311;
    const MANY: u64 = 7;
    const ENDED: &str = "net_latency_connections_total";
    const HANDSHAKES: &str = "net_latency_connection_handshake_seconds_count";
    let path = Path::private_loopback(Version::V4)?;
    let to = path.addresses().1;
    let [port, nobody] = [PORT, NOBODY].map(|port| port.to_string());
    let (tool, address) = start(backend, &["--connections", "--port", &port, "--port", &nobody])?;
    let (listening, waiting) = path.near(|| {
        let listening = TcpListener::bind((to, PORT))?;
        for _ in 0..MANY {
            let client = TcpStream::connect((to, PORT))?;
            let (mut server, _) = listening.accept()?;
            drop(client);
            server.read_to_end(&mut Vec::new())?;
        }
        ensure!(TcpStream::connect((to, NOBODY)).is_err(), "not refused");
        let waiting = TcpStream::connect((to, PORT))?;
        Ok((listening, waiting))
    })?;
    let expect = |name: &str, labels: &[(&str, &str)], count: u64| {
        let mut found = 0;
        let is_it = until(PATIENCE, || {
            found = sum(&scrape(address)?, name, labels);
            Ok(found == count)
        });
        is_it.with_context(|| format!("{found} of {name} {labels:?}, not {count}"))
    };
    for role in ["client", "server"] {
        expect(ENDED, &[("role", role), ("result", "closed")], MANY)?;
        expect(HANDSHAKES, &[("role", role)], MANY)?;
        expect(ENDED, &[("role", role), ("result", "reset")], 0)?;
    }
    expect(ENDED, &[("result", "refused")], 1)?;
    expect("net_latency_connection_accept_seconds_count", &[], MANY)?;
    let own = fs::read_to_string("/proc/self/comm")?;
    let queue = [("port", port.as_str()), ("process", own.trim_end())];
    expect("net_latency_listen_accepted_total", &queue, MANY)?;
    expect("net_latency_listen_waiting", &queue, 1)?;
    expect("net_latency_listen_overflows_total", &queue, 0)?;
    // A waiting client is cut off. The counts stay.
    drop(listening);
    for role in ["client", "server"] {
        expect(ENDED, &[("role", role), ("result", "reset")], 1)?;
    }
    drop(waiting);
    expect("net_latency_listen_waiting", &queue, 0)?;
    expect("net_latency_listen_accepted_total", &queue, MANY)?;
    expect("net_latency_connection_losses_total", &[("kind", "ring_full")], 0)?;
    tool.stop()?;
    Ok(())
}

/// Beyond the cap all groups are one, and no packet is without a place.
fn caps(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let (tool, address) = start(backend, &["--by", "comm", "--series", "1", "--port", &port])?;
    pair.open(&path)?;
    pair.converse(ROUNDS, LEN)?;
    let samples = scrape(address)?;
    let outcome = tool.stop()?;
    expect_ledger(&outcome, &samples)?;
    let other = in_histograms(&samples, &[("comm", "other")]);
    outcome.expect_all("packets of the other group", other, (2 * ROUNDS).into(), [])?;
    let overflow = sum(&samples, "net_latency_overflow_packets_total", &[]);
    ensure!(overflow >= other, outcome.fault(format_args!("{overflow} beyond the cap, not {other}"), []));
    let names: std::collections::BTreeSet<_> =
        samples.iter().filter_map(|sample| sample.labels.get("comm")).collect();
    ensure!(names.len() == 2, outcome.fault(format_args!("{names:?}"), []));
    Ok(())
}

/// A pod of a node of Kubernetes, as the kubelet leaves it on the disk. Its files go with it.
struct Pod {
    logs: PathBuf,
    links: Vec<PathBuf>,
    cgroups: Vec<PathBuf>,
    place: PathBuf,
    name: &'static str,
}

const POD_LOGS: &str = "/var/log/pods";
const CONTAINER_LOGS: &str = "/var/log/containers";

impl Pod {
    fn new(name: &'static str, uid: &str, is_systemd: bool) -> Result<Self> {
        let logs = FilePath::new(POD_LOGS).join(format!("shop_{name}_{uid}"));
        fs::create_dir_all(logs.join("main"))?;
        fs::create_dir_all(logs.join("side-car"))?;
        fs::create_dir_all(CONTAINER_LOGS)?;
        let root = FilePath::new("/sys/fs/cgroup");
        let place = if is_systemd {
            let uid = uid.replace('-', "_");
            root.join("kubepods.slice/kubepods-burstable.slice")
                .join(format!("kubepods-burstable-pod{uid}.slice"))
        } else {
            root.join(format!("kubepods/besteffort/pod{uid}"))
        };
        Ok(Self { logs, links: Vec::new(), cgroups: Vec::new(), place, name })
    }

    /// Starts the main container, or starts it again, with that process in it.
    fn run(&mut self, digit: &str, peer: &Peer) -> Result<()> {
        let id = digit.repeat(64);
        let link = FilePath::new(CONTAINER_LOGS).join(format!("{}_shop_main-{id}.log", self.name));
        fs::write(&link, "")?;
        self.links.push(link);
        let is_systemd = self.place.extension().is_some();
        let cgroup = self.place.join(if is_systemd { format!("cri-containerd-{id}.scope") } else { id });
        fs::create_dir_all(&cgroup)?;
        fs::write(cgroup.join("cgroup.procs"), peer.pid().to_string())?;
        if let Some(before) = self.cgroups.last() {
            fs::remove_dir(before)?;
        }
        self.cgroups.push(cgroup);
        Ok(())
    }

    fn labels(&self) -> [(&str, &str); 3] {
        [("namespace", "shop"), ("pod", self.name), ("container", "main")]
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.logs));
        self.links.iter().for_each(|link| drop(fs::remove_file(link)));
    }
}

/// Pods by both drivers have their names; one that is started again goes on, one that comes later is named soon.
fn pods(backend: Backend) -> Result<()> {
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let mut server = Pod::new("web-0", "1b4d7a9e-6c1f-4a58-9d7e-0f2c3b5a6d81", true)?;
    server.run("a", &pair.server)?;
    let (tool, address) = start(backend, &["--by", "pod", "--port", &port])?;
    let mut client = Pod::new("client-7d9f", "2c5e8baf-7d20-4b69-8e8f-1a3d4c6b7e92", false)?;
    client.run("b", &pair.client)?;
    pair.open(&path)?;
    pair.converse(ROUNDS, LEN)?;
    let each = u64::from(ROUNDS * 2);
    let has_names = || {
        let samples = scrape(address)?;
        Ok([&client, &server].iter().all(|pod| in_histograms(&samples, &pod.labels()) > 0))
    };
    let begun = Instant::now();
    until(Duration::from_secs(7), has_names).context("no names")?;
    println!("named after {:.1} s", begun.elapsed().as_secs_f64());
    server.run("c", &pair.server)?;
    // The container that was is looked for, and not found.
    sleep(Duration::from_secs(5));
    pair.converse(ROUNDS, LEN)?;
    drop(scrape(address)?);
    sleep(Duration::from_secs(6));
    let samples = scrape(address)?;
    let outcome = tool.stop()?;
    expect_ledger(&outcome, &samples)?;
    for pod in [&client, &server] {
        let found = in_histograms(&samples, &pod.labels());
        outcome.expect_all(format_args!("packets of {}", pod.name), found, 2 * each, [])?;
    }
    let nameless = in_histograms(&samples, &[("pod", "unknown")]);
    ensure!(nameless == 0, outcome.fault(format_args!("{nameless} packets of unknown pods"), []));
    Ok(())
}

/// Silent, slow and wrong scrapers, and too many, are no harm to counting.
fn crowd(backend: Backend) -> Result<()> {
    const CONNECTIONS: usize = 1_000;
    /// Descriptors for what else this process has.
    const RESERVE: u64 = 100;
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let (tool, address) = start(backend, &["--port", &port])?;
    pair.open(&path)?;
    // This process has the other ends. The tool has its own limit already.
    let limit = CONNECTIONS as u64 + RESERVE;
    setrlimit(Resource::RLIMIT_NOFILE, limit, getrlimit(Resource::RLIMIT_NOFILE)?.1.max(limit))?;
    let mut crowd = Vec::new();
    for number in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(address)?;
        // Those that are refused may be closed already.
        let _ = match number % 3 {
            0 => stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"),
            1 => stream.write_all(b"\x16\x03\x01garbage"),
            _ => Ok(()),
        };
        crowd.push(stream);
    }
    pair.converse(ROUNDS, LEN)?;
    drop(crowd);
    let answers = || Ok(scrape(address).is_ok());
    until(Duration::from_secs(30), answers).context("no request is answered any more")?;
    let samples = scrape(address)?;
    let outcome = tool.stop()?;
    expect_ledger(&outcome, &samples)?;
    let found = in_histograms(&samples, &[]);
    outcome.expect_all("packets", found, (4 * ROUNDS).into(), [])?;
    let descriptors = sum(&samples, "process_open_fds", &[]);
    ensure!(descriptors < 250, outcome.fault(format_args!("{descriptors} descriptors are open"), []));
    Ok(())
}

/// Packets of which there is a line, or a reason why there is none.
fn slow_packets(samples: &[Sample]) -> u64 {
    let kinds = ["slow_held_back", "slow_ring_full", "slow_unwritten"];
    let lost = |kind| sum(samples, "net_latency_losses_total", &[("kind", kind)]);
    sum(samples, "net_latency_slow_lines_total", &[]) + kinds.into_iter().map(lost).sum::<u64>()
}

/// The metrics once each packet has its line, or a reason, where all packets are slow.
fn settled(address: SocketAddr) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    let is_settled = || {
        samples = scrape(address)?;
        Ok(slow_packets(&samples) == sum(&samples, "net_latency_packets_total", &[]))
    };
    until(PATIENCE, is_settled).context("some packets have neither line nor reason")?;
    Ok(samples)
}

/// The packets that wait for a sleeping process have lines, nothing else has, and the metrics have all.
fn slow(backend: Backend) -> Result<()> {
    const PAUSE: Duration = Duration::from_millis(500);
    /// A busy machine adds less than that to other packets.
    const LEAST: Duration = Duration::from_millis(300);
    const SLOW_ROUNDS: u32 = 3;
    const TCP_APP: usize = 2;
    let path = Path::private_loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let least = format!("{}ms", LEAST.as_millis());
    // By cgroup, records have to find their names elsewhere.
    let arguments = ["--by", "cgroup", "--port", &port, "--slower", &least];
    let (tool, address) = start_into(Sink::Redirected(Scratch::new("slow")), backend, &arguments)?;
    pair.open(&path)?;
    pair.converse(ROUNDS, LEN)?;
    pair.server.tell(&format!("serve {SLOW_ROUNDS} {LEN} {}", PAUSE.as_millis()))?;
    pair.client.tell(&format!("request {SLOW_ROUNDS} {LEN}"))?;
    pair.finish()?;
    until(PATIENCE, || Ok(slow_packets(&scrape(address)?) >= SLOW_ROUNDS.into())).context("no lines")?;
    pair.converse(ROUNDS, LEN)?;
    let samples = scrape(address)?;
    let outcome = tool.stop()?;
    expect_ledger(&outcome, &samples)?;
    let all = sum(&samples, "net_latency_packets_total", &[]);
    outcome.expect_all("packets", all, (4 * (2 * ROUNDS + SLOW_ROUNDS)).into(), [])?;
    let lines = outcome.lines()?;
    outcome.expect_all("slow packets", lines.len() as u64, SLOW_ROUNDS.into(), &lines)?;
    let lines_in_metrics = sum(&samples, "net_latency_slow_lines_total", &[]);
    ensure!(
        lines_in_metrics == lines.len() as u64 && lines_in_metrics == slow_packets(&samples),
        outcome.fault(format_args!("{lines_in_metrics} in the metrics"), &lines)
    );
    // The server sleeps already when the first request is sent.
    let waits = LEAST.as_nanos() as u64..2 * PAUSE.as_nanos() as u64;
    for line in &lines {
        let waited = line.stages[TCP_APP].context("no time in TCP")?;
        let is_right = line.dir == Dir::In
            && pair.is_request(line)
            && line.pid == Some(pair.server.pid())
            && line.comm == Some(pair.server.comm())
            && waits.contains(&waited);
        ensure!(is_right, outcome.fault("not a request that waited for the server", [line]));
    }
    Ok(())
}

/// Beyond the rate, packets have no line and are counted, each once.
fn held_back(backend: Backend) -> Result<()> {
    const RATE: u64 = 5;
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let rate = RATE.to_string();
    // Every packet takes longer.
    let arguments = ["--port", &port, "--slower", "1us", "--slower-rate", &rate];
    let (tool, address) = start_into(Sink::Redirected(Scratch::new("slow")), backend, &arguments)?;
    let begun = Instant::now();
    pair.open(&path)?;
    pair.converse(ROUNDS, LEN)?;
    let samples = settled(address)?;
    let seconds = begun.elapsed().as_secs() + 1;
    let outcome = tool.stop()?;
    expect_ledger(&outcome, &samples)?;
    let all = sum(&samples, "net_latency_packets_total", &[]);
    outcome.expect_all("packets", all, (4 * ROUNDS).into(), [])?;
    let lines = outcome.lines()?;
    let count = lines.len() as u64;
    let held_back = outcome.figure("losses.slow_held_back")?;
    let is_right = (RATE..=RATE * (1 + seconds)).contains(&count)
        && count + held_back == all
        && sum(&samples, "net_latency_losses_total", &[("kind", "slow_held_back")]) == held_back;
    ensure!(
        is_right,
        outcome.fault(format_args!("{count} lines in {seconds} s and {held_back} held back"), &lines)
    );
    Ok(())
}

/// The lines are not read, and then can't be: counting and scrapes go on, and every packet without a line is counted.
fn unread(backend: Backend) -> Result<()> {
    /// More than ring buffer, buffer and pipe hold.
    const MANY: u32 = 1_000;
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let arguments = ["--port", &port, "--slower", "1us", "--slower-rate", "10000"];
    let (mut tool, address) = start(backend, &arguments)?;
    let stdout = tool.stdout()?;
    pair.open(&path)?;
    pair.converse(MANY, LEN)?;
    let samples = scrape(address)?;
    let all = sum(&samples, "net_latency_packets_total", &[]);
    let full = sum(&samples, "net_latency_losses_total", &[("kind", "slow_ring_full")]);
    let lines = sum(&samples, "net_latency_slow_lines_total", &[]);
    drop(stdout);
    pair.converse(ROUNDS, LEN)?;
    let samples = settled(address)?;
    ensure!(tool.is_running()?, "it has ended with its reader");
    let outcome = tool.stop()?;
    expect_ledger(&outcome, &samples)?;
    outcome.expect_all("packets without a read", all, (4 * MANY).into(), [])?;
    let later = sum(&samples, "net_latency_packets_total", &[]) - all;
    outcome.expect_all("packets without a reader", later, (4 * ROUNDS).into(), [])?;
    let is_right = full > 0 && lines > 0 && full + lines < all;
    ensure!(is_right, outcome.fault(format_args!("{lines} lines, {full} found no room"), []));
    let unwritten = outcome.figure("losses.slow_unwritten")?;
    ensure!(unwritten > 0, outcome.fault("no line was lost with its reader", []));
    let told = outcome.stderr.iter().filter(|line| line.contains("the reader of the output has closed it"));
    ensure!(told.count() == 1, outcome.fault("not told once", []));
    Ok(())
}

/// A port that is taken, and an address of another machine.
fn refusals(backend: Backend) -> Result<()> {
    let (tool, address) = start(backend, &[])?;
    for (address, code, word) in
        [(address.to_string(), 1, "--listen"), ("192.0.2.1:9823".to_owned(), 2, "ip address")]
    {
        let refusal = run(None, &["export", "--listen", &address])?;
        let is_right = refusal.code == Some(code)
            && refusal.stderr.lines().count() == 1
            && refusal.stderr.contains(word);
        ensure!(is_right, "{address}: {:?}: {}{}", refusal.code, refusal.stdout, refusal.stderr);
    }
    tool.stop().map(drop)
}

/// A running Prometheus that scrapes the exporter each second.
struct Prometheus {
    child: Child,
    directory: PathBuf,
    address: SocketAddr,
}

impl Prometheus {
    fn start(target: SocketAddr, port: u16, features: &[&str]) -> Result<Self> {
        let directory = env::temp_dir().join(format!("prometheus-{port}"));
        fs::create_dir_all(&directory)?;
        let config = directory.join("prometheus.yml");
        fs::write(directory.join("rules.yml"), RULES)?;
        fs::write(
            &config,
            format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [rules.yml]\n\
                 scrape_configs:\n- job_name: net-latency\n  static_configs: [{{targets: ['{target}']}}]\n"
            ),
        )?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let log = fs::File::create(directory.join("log"))?;
        let mut command = Command::new(PROMETHEUS);
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address={address}")).args(features);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?;
        let prometheus = Self { child, directory, address };
        let is_ready = || Ok(get(address, "/-/ready", "*/*").is_ok_and(|(head, _)| head.contains(" 200 ")));
        until(Duration::from_secs(120), is_ready)
            .with_context(|| format!("Prometheus does not start: {}", prometheus.log()))?;
        Ok(prometheus)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }

    /// What its API says.
    fn ask(&self, path: &str) -> Result<Value> {
        let (head, body) = get(self.address, path, "application/json")?;
        let body = if head.contains("chunked") { unchunked(&body)? } else { body };
        let value: Value = serde_json::from_slice(&body).with_context(|| head.clone())?;
        ensure!(value["status"] == "success", "{path}: {value}");
        Ok(value["data"].clone())
    }

    /// The values that an expression has, as soon as it has any: a scrape that takes longer than its second, as it may
    /// in a guest, leaves all series without a value until the next one.
    fn query(&self, expression: &str) -> Result<Vec<f64>> {
        let mut values = Vec::new();
        let has_any = || {
            let data = self.ask(&format!("/api/v1/query?query={}", encoded(expression)))?;
            let result = data["result"].as_array().with_context(|| format!("{expression}: {data}"))?;
            let value = |sample: &Value| sample["value"][1].as_str().and_then(|value| value.parse().ok());
            let value = |sample| value(sample).with_context(|| format!("{expression}: {sample}"));
            values = result.iter().map(value).collect::<Result<_>>()?;
            Ok(!values.is_empty())
        };
        until(Duration::from_secs(60), has_any).with_context(|| format!("no data: {expression}"))?;
        Ok(values)
    }

    /// Its only value.
    fn one(&self, expression: &str) -> Result<f64> {
        let values = self.query(expression)?;
        ensure!(values.len() == 1, "{expression}: {values:?}");
        Ok(values[0])
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(wait(&mut self.child, PATIENCE));
        drop(fs::remove_dir_all(&self.directory));
    }
}

fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn unchunked(mut body: &[u8]) -> Result<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = body.windows(2).position(|two| two == b"\r\n").context("no length of a chunk")?;
        let len = usize::from_str_radix(std::str::from_utf8(&body[..end])?, 16)?;
        if len == 0 {
            return Ok(whole);
        }
        whole.extend_from_slice(body.get(end + 2..end + 2 + len).context("a chunk is cut")?);
        body = &body[end + 2 + len + 2..];
    }
}

/// The expressions of the dashboard, as Grafana would send them.
fn of_dashboard() -> Result<Vec<String>> {
    let dashboard: Value = serde_json::from_str(DASHBOARD)?;
    let panels = dashboard["panels"].as_array().context("no panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions: Vec<_> = targets.filter_map(|target| target["expr"].as_str()).collect();
    ensure!(expressions.len() >= 15, "{} expressions", expressions.len());
    let values = [
        ("$__rate_interval", "1m"),
        ("$instance", ".*"),
        ("$protocol", ".*"),
        ("$stage", "total"),
        ("$group", "process"),
    ];
    let filled = |expression: &str| {
        values.iter().fold(expression.to_owned(), |text, (name, value)| text.replace(name, value))
    };
    Ok(expressions.into_iter().map(filled).collect())
}

/// Without the thresholds: the series that are compared must be there, whether all is well or not.
fn without_thresholds(expression: &str) -> String {
    let mut words = expression.split_whitespace().peekable();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        if [">", "<", "=="].contains(&word) && words.peek().is_some_and(|next| next.parse::<f64>().is_ok()) {
            words.next();
        } else {
            kept.push(word);
        }
    }
    kept.join(" ")
}

/// Prometheus has what the ledger has; every expression of the dashboard and the rules has data; native histograms say the
/// same as classic ones.
fn prometheus(backend: Backend) -> Result<()> {
    if !FilePath::new(PROMETHEUS).exists() {
        // Only guests that were to carry it have a hundred megabytes more.
        println!("there is no {PROMETHEUS} in this guest");
        return Ok(());
    }
    let path = Path::loopback(Version::V4)?;
    let mut pair = Pair::prepare(&path, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let arguments = ["--by", "process", "--series", "1", "--port", &port, "--connections"];
    let (tool, address) = start(backend, &arguments)?;
    let classic = Prometheus::start(address, 9090, &[])?;
    let native = Prometheus::start(address, 9091, &["--enable-feature=native-histograms"])?;
    pair.open(&path)?;
    for _ in 0..20 {
        pair.converse(ROUNDS / 10, LEN)?;
        sleep(Duration::from_secs(1));
    }
    let samples = scrape(address)?;
    let all = sum(&samples, "net_latency_packets_total", &[]);
    for prometheus in [&classic, &native] {
        let has_all = || Ok(prometheus.one("sum(net_latency_packets_total)")? as u64 == all);
        until(Duration::from_secs(60), has_all)
            .with_context(|| format!("it never has all {all}: {}", prometheus.log()))?;
    }
    // PromQL's counts are those of the ledger.
    for direction in ["in", "out"] {
        let wanted = in_histograms(&samples, &[("direction", direction)]) as f64;
        let selector = format!("{{direction=\"{direction}\",stage=\"total\"}}");
        let counted = classic.one(&format!("sum(net_latency_stage_seconds_count{selector})"))?;
        let exponential =
            native.one(&format!("histogram_count(sum(net_latency_stage_seconds{selector}))"))?;
        ensure!(
            counted == wanted && exponential == wanted,
            "{direction}: {counted}, {exponential}, not {wanted}"
        );
        for quantile in ["0.5", "0.9", "0.99"] {
            let by = |text: &str| format!("histogram_quantile({quantile}, {text})");
            let edges =
                classic.one(&by(&format!("sum by (le) (net_latency_stage_seconds_bucket{selector})")))?;
            let exact = native.one(&by(&format!("sum(net_latency_stage_seconds{selector})")))?;
            // One is within a power of two, the other within 16 %.
            let ratio = edges / exact;
            ensure!((0.43..=2.32).contains(&ratio), "{direction} {quantile}: {edges} and {exact}");
        }
    }
    // Every expression has data.
    const SKIPPED: &str = "net_latency_skipped_calls_total";
    let skipped = of_name(&samples, SKIPPED);
    let rules = classic.ask("/api/v1/rules")?;
    let groups = rules["groups"].as_array().context("no groups of rules")?;
    let rules: Vec<_> = groups.iter().filter_map(|group| group["rules"].as_array()).flatten().collect();
    ensure!(rules.len() >= 10, "{} rules", rules.len());
    for rule in &rules {
        ensure!(rule["lastError"].is_null(), "{rule}");
    }
    let of_rules = rules.iter().filter_map(|rule| rule["query"].as_str()).map(str::to_owned);
    for expression in of_rules.chain(of_dashboard()?) {
        let expression = without_thresholds(&expression);
        // Kernels that skip no calls, or don't count them, give none.
        if skipped.is_some() || !expression.contains(SKIPPED) {
            classic.query(&expression)?;
        }
    }
    let (_, text) = get(address, "/metrics", "text/plain")?;
    promtool(&["check", "metrics"], &text)?;
    let directory = classic.directory.display();
    fs::write(classic.directory.join("net-latency.rules.yml"), RULES)?;
    fs::write(classic.directory.join("net-latency.test.yml"), TESTS_OF_RULES)?;
    fs::write(classic.directory.join("example.yml"), CONFIGURATION)?;
    promtool(&["check", "config", &format!("{directory}/example.yml")], b"")?;
    promtool(&["check", "rules", &format!("{directory}/net-latency.rules.yml")], b"")?;
    promtool(&["test", "rules", &format!("{directory}/net-latency.test.yml")], b"")?;
    drop((classic, native));
    let outcome = tool.stop()?;
    outcome.expect_all("packets", all, (8 * ROUNDS).into(), [])?;
    expect_ledger(&outcome, &samples)
}

/// Prometheus' own tool finds nothing wrong.
fn promtool(arguments: &[&str], input: &[u8]) -> Result<()> {
    let mut command = Command::new(PROMTOOL);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    child.stdin.take().context("a pipe")?.write_all(input)?;
    let output = child.wait_with_output()?;
    let said = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    ensure!(output.status.success(), "promtool {}: {said}", arguments.join(" "));
    Ok(())
}

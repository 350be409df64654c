//! What the verdict says, in sentences.

use std::net::IpAddr;

use net_latency_common::{Direction, Held};

use super::{
    cause::Cause,
    did::Did,
    dropped::Dropped,
    finding::{Confidence, Finding, ServiceAnswers},
    holders::HeldBy,
    item::Item,
    listening::Queues,
    machine::{Machine, Throttled},
    opening::Opened,
    service::{Processes, Service},
    suspects::{Worked, column},
};
use crate::{
    accounting::Human,
    escape::harmless,
    kernel::tasks::{Allowed, Realtime},
    message::counted,
    packet::event::held_name,
};

pub(super) const PEER_WINDOW: &str =
    "the peer's window was closed: its application does not read, or reads too slowly";
pub(super) const TCP_HELD: &str =
    "TCP held back what was written; why is not known (congestion window, Nagle, pacing, a full queue)";
pub(super) const SOCKET_DROP: &str = "sockets drop packets: a full buffer, or a socket that was closed";
pub(super) const UNANSWERED: &str =
    "requests have no answer: they or their answers are dropped here or elsewhere, or the server gives none";
pub(super) const NO_ACK: &str =
    "what it sends is not acknowledged, however often TCP sends it: the path, or the peer, is gone";
pub(super) const STREAM: &str =
    "it writes a stream faster than TCP may send it, so its bytes wait in TCP, which is normal";
pub(super) const BASIC: &str =
    "the device's queue, the wire and the peer were not looked at: that takes --stages fine";

/// A finding without a service and figures.
pub(super) fn finding(cause: Cause, item: Item) -> Finding {
    Finding {
        who: None,
        also: Vec::new(),
        cause,
        stage: None,
        share: None,
        p50_ns: None,
        p99_ns: None,
        packets: 0,
        affected: 0,
        confidence: Confidence::Medium,
        sentence: sentence(cause, item, ""),
        brief: brief(cause, item),
        within: within(cause, item),
        evidence: Vec::new(),
        cpu_held_by: None,
        next: String::new(),
        answers: None,
        weight: 0,
        pid: 0,
    }
}

/// What a cause means. `device` is empty, or tells which.
pub(super) fn sentence(cause: Cause, item: Item, device: &str) -> String {
    let text = match cause {
        Cause::ReaderLate if item == Item::Copy => {
            "its read calls take long: large reads, or other tasks took its CPU meanwhile"
        }
        Cause::ReaderLate => {
            "the bytes were there, and the process read them late: it was busy, slept, or waited for a lock"
        }
        Cause::AcceptLate => {
            "connections wait in the accept queue, with bytes in them: the process calls accept late"
        }
        Cause::CpuWait => "the thread that reads was woken, and then waited for a CPU that others had",
        Cause::MissingBytes => "bytes were missing: segments were lost, or came late, on the way here",
        Cause::SocketWait => {
            "its bytes waited in the socket; whether for the process, a CPU or missing bytes is not known"
        }
        Cause::PeerWindow => PEER_WINDOW,
        Cause::CongestionWindow => {
            "TCP waits for ACKs (its congestion window): a long path, losses, or more data than the path takes"
        }
        Cause::Nagle => {
            "small writes wait for the ACK of the one before (Nagle): the application can set TCP_NODELAY"
        }
        Cause::TcpHeld => TCP_HELD,
        Cause::UdpHeld => "from the write call to UDP: cork, no room in the socket's buffer, or routing",
        Cause::Qdisc => {
            return format!(
                "packets wait in the queue{device}: a rate limit, a delay (netem), pacing, or packets ahead of them"
            );
        }
        Cause::Driver => return format!("the driver{device} takes long to take a packet"),
        Cause::Network => "the time is on the wire or at the peer, not on this machine",
        Cause::PeerAnswer => {
            "answers come late: the peer's application or the wire, which can't be told apart from here"
        }
        Cause::SoftirqLate => "packets waited for a softirq: a busy CPU, or a full backlog",
        Cause::Netfilter => {
            "packets take long in IP: netfilter's rules, or a program that they ask (NFQUEUE), routing, or the neighbour's address"
        }
        Cause::PacketDrop => "the kernel drops packets before they get to a socket",
        Cause::SocketDrop => SOCKET_DROP,
        Cause::Retransmission if item == Item::Connect => {
            "connections open late: SYNs, or the answers to them, are lost, and TCP sends them again after a second or more"
        }
        Cause::Retransmission => "TCP sent packets again: they or their ACKs were lost",
        Cause::Application => return application(false),
        Cause::CpuQuota => CPU_QUOTA,
        Cause::Unanswered => UNANSWERED,
        Cause::CpuShort => "all processes wait for a CPU: the machine has too few for what runs on it",
    };
    text.to_owned()
}

/// Why TCP held back written bytes, for reasons that are no causes by themselves.
pub(super) fn held(held: Held) -> &'static str {
    match held {
        Held::Cork => {
            "the application holds back its own bytes with TCP_CORK until it has more, or removes the cork"
        }
        Held::Pacing => "the socket may send no faster: SO_MAX_PACING_RATE, or the rate that BBR has found",
        Held::SendBuffer => {
            "its write calls wait for room in the send buffer, which is small for this path (tcp_wmem, SO_SNDBUF)"
        }
        _ => TCP_HELD,
    }
}

/// The process that had the CPU for which readers waited.
pub(super) fn cpu_held_by(holder: &HeldBy, is_own: bool) -> String {
    let HeldBy { pid, process, realtime, share } = holder;
    let who = match process {
        _ if is_own => "another thread of its own".to_owned(),
        Some(name) => format!("{}, PID {pid},", harmless(Some(name))),
        None => format!("PID {pid}"),
    };
    let realtime = realtime.map(|Realtime { policy, priority }| {
        format!("; it is real-time ({policy}, priority {priority}), and gives its CPU to no other")
    });
    format!("{who} had that CPU: {share} % of the wait{}", realtime.unwrap_or_default())
}

/// The peer has a closed window, and is on this machine.
pub(super) fn does_not_read(peer: &Service, packets: u64) -> String {
    let packets = counted(packets, "packet");
    format!("a closed window held back {packets} to {}, on this machine", named(peer))
}

/// Whether the reader may run elsewhere.
pub(super) fn may_run(allowed: Allowed) -> String {
    let Allowed { count, first, online } = allowed;
    match count {
        1 if online > 1 => {
            format!("CPU affinity forces this wait: of {online} CPUs its reader may use CPU {first} only")
        }
        _ if count < online => {
            format!("CPU affinity narrows the choice: of {online} CPUs its reader may use {count}")
        }
        1 => "CPU affinity does not force this wait: this machine has no other CPU".to_owned(),
        _ => format!("CPU affinity does not force this wait: its reader may use all {online} CPUs"),
    }
}

/// How many were held for which reasons, if any is known.
pub(super) fn held_for(counts: &[u64; Held::ALL.len()], all: u64) -> Option<String> {
    let known = Held::ALL.into_iter().zip(counts).filter(|(_, count)| **count > 0);
    let known: Vec<_> = known.map(|(held, count)| format!("{count} by {}", held_name(held))).collect();
    (!known.is_empty())
        .then(|| format!("TCP held back {} for that long: {}", counted(all, "packet"), known.join(", ")))
}

/// The cause in a few words, to follow the service's name.
pub(super) fn brief(cause: Cause, item: Item) -> &'static str {
    match cause {
        Cause::ReaderLate if item == Item::Copy => "its read calls take long",
        Cause::ReaderLate => "reads late",
        Cause::AcceptLate => "accepts connections late",
        Cause::CpuWait => "waits for a CPU",
        Cause::MissingBytes => "bytes lost or late on the way here",
        Cause::SocketWait => "bytes wait in its socket",
        Cause::PeerWindow => "its peer reads too slowly",
        Cause::CongestionWindow => "TCP waits for ACKs before it sends more",
        Cause::Nagle => "its small writes wait for ACKs",
        Cause::TcpHeld => "TCP holds back what it writes",
        Cause::UdpHeld => "its datagrams leave late",
        Cause::Qdisc if item == Item::Resend => "the device's queue drops packets",
        Cause::Qdisc => "packets wait in the device's queue",
        Cause::Driver => "the driver takes packets late",
        Cause::Network if item == Item::Connect => "connections open slowly",
        Cause::Network => "the wire or the peer is slow",
        Cause::PeerAnswer => "the peer or the wire answers late",
        Cause::SoftirqLate => "packets wait for a softirq",
        Cause::Netfilter => "packets take long in IP",
        Cause::PacketDrop => "packets are dropped before they get to a socket",
        Cause::SocketDrop => "sockets drop packets",
        Cause::Retransmission if item == Item::Connect => "SYNs or their answers are lost",
        Cause::Retransmission => "TCP sends packets again",
        Cause::CpuQuota => "its CPU quota holds it back",
        Cause::CpuShort => "too few CPUs for what runs",
        Cause::Unanswered => "what it sends has no answer",
        Cause::Application if item == Item::Wait => "is busy with other requests",
        Cause::Application => "takes long to answer",
    }
}

/// Where a part of an answer's time goes, as it stands behind that time.
pub(super) fn within(cause: Cause, item: Item) -> &'static str {
    match cause {
        Cause::ReaderLate if item == Item::Copy => "in its read calls",
        Cause::ReaderLate => "until the process reads",
        Cause::AcceptLate => "until the process accepts the connection",
        Cause::CpuWait => "waiting for a CPU",
        Cause::MissingBytes => "waiting for bytes that were lost or late",
        Cause::SocketWait => "in the socket",
        Cause::PeerWindow => "waiting for its peer to read",
        Cause::CongestionWindow => "waiting for ACKs before TCP sends more",
        Cause::Nagle => "waiting for ACKs of small writes",
        Cause::TcpHeld => "held back by TCP",
        Cause::UdpHeld => "before UDP sends it",
        Cause::Qdisc => "in the device's queue",
        Cause::Driver => "in the driver",
        Cause::Network | Cause::Retransmission if item == Item::Connect => "opening the connection",
        Cause::Network => "on the wire",
        Cause::PeerAnswer => "on the wire or at the peer",
        Cause::SoftirqLate => "waiting for a softirq",
        Cause::Netfilter => "in IP",
        Cause::Application if item == Item::Wait => "while the process is busy with other requests",
        Cause::Application => "in the application",
        Cause::CpuQuota => "held back by its CPU quota",
        Cause::SocketDrop
        | Cause::PacketDrop
        | Cause::Retransmission
        | Cause::CpuShort
        | Cause::Unanswered => brief(cause, item),
    }
}

pub(super) fn application(is_slow_elsewhere: bool) -> String {
    let rest =
        if is_slow_elsewhere { "other parts take long too" } else { "the path of the packets is normal" };
    format!("the process takes this long from reading a request to writing the answer; {rest}")
}

pub(super) fn busy(service_ns: u64) -> String {
    format!(
        "requests wait because the process is busy with other requests: it takes {} for each (p50); the path of the packets is normal",
        Human(service_ns)
    )
}

pub(super) fn between(turnaround_ns: u64) -> String {
    format!(
        "the time is on the wire: the peer is on this machine too, and takes only {} from a request to its answer",
        Human(turnaround_ns)
    )
}

pub(super) fn is_read_late_by(peer: &Service, read_ns: u64) -> String {
    format!(
        "the peer ({}) sends ACKs when it reads, {} after the packets reached it",
        named(peer),
        Human(read_ns)
    )
}

pub(super) fn sends_again(peer: &Service) -> String {
    format!("it waits for {}, whose packets are sent again", named(peer))
}

/// Whether both ends are here, and which service is the other one.
pub(super) fn between_ends(peer: Option<&Service>) -> String {
    match peer {
        Some(peer) => format!(
            "the time is between it and {}, on this machine: what forwards or holds packets there",
            named(peer)
        ),
        None => sentence(Cause::Network, Item::Wire, ""),
    }
}

/// Whom its connections lead to, which take long to open.
pub(super) fn connects(service: &Service, peer: Option<&Service>) -> String {
    let Service { remote, port, .. } = service;
    let whom = peer.map_or_else(|| format!("{remote} port {port}"), named);
    format!("connecting to {whom} takes this long, on the way there and back")
}

/// How long connections took to open.
pub(super) fn opened(opened: Opened) -> String {
    let Opened { count, sum_ns, again, .. } = opened;
    let (connections, each) = (counted(count, "connection"), Human(sum_ns / count.max(1)));
    let again = if again > 0 { format!("; SYNs of {again} were sent again") } else { String::new() };
    format!("{connections} opened, in {each} on average{again}")
}

/// Why connections open late: the accept queue at the other end.
pub(super) fn is_full(peer: &Service) -> String {
    format!("its connections open late because the accept queue of {} is full", named(peer))
}

/// Why connections open late: a stage that is slow for others on that path.
pub(super) fn same_way(of: &Service, item: Item) -> String {
    let stage = column(item, of.protocol).unwrap_or(name(item));
    format!(
        "its connections open late because packets take long on that path, as those of {} do: {stage}",
        named(of)
    )
}

/// What an answer takes on average, and what of it its longest parts take.
pub(super) fn parts(answers: &ServiceAnswers) -> String {
    let (total, parts, left) = answers.mean();
    let name = |item| column(item, answers.protocol).unwrap_or(name(item));
    let parts = parts.into_iter().map(|(item, ns)| format!("{} {}", name(item), Human(ns)));
    let left = (left > 0).then(|| format!("the rest {}", Human(left)));
    format!("{} = {}", Human(total), parts.chain(left).collect::<Vec<_>>().join(" + "))
}

const CPU_QUOTA: &str = "the CPU quota of its cgroup holds it back, whether CPUs are idle or not";

pub(super) fn quota(throttled: &Throttled) -> String {
    format!("{CPU_QUOTA}: it may use {} % of a CPU", throttled.percent)
}

pub(super) fn throttled(throttled: &Throttled) -> String {
    let Throttled { path, periods, ns, .. } = throttled;
    let path = harmless(Some(path.as_os_str().as_encoded_bytes()));
    format!("held back in {periods} periods, {} in all: {path}", Human(*ns))
}

/// The command that shows how a quota holds a cgroup back.
pub(super) fn next_of_quota(throttled: &Throttled) -> String {
    throttled.plain_path().map_or_else(|| "systemd-cgtop".to_owned(), |path| format!("cat {path}/cpu.stat"))
}

pub(super) const CPU_IN_SERVICE: &str =
    "between reading a request and writing the answer the process waits for a CPU that others have";

/// What a process did between reading a request and writing the answer.
pub(super) fn worked(worked: Worked, did: &Did) -> String {
    let Worked { on_ns, waited_ns, is_of_answers, .. } = worked;
    let does = if worked.sleeps() {
        "it sleeps, or waits for something"
    } else if worked.is_most() {
        "it works"
    } else {
        "it works, and waits"
    };
    let (on, waited) = (Human(on_ns), Human(waited_ns));
    if !is_of_answers {
        return format!(
            "{does}: for each answer the process is on a CPU for {on}, and waits for one for {waited} (/proc/PID/task/*/schedstat)"
        );
    }
    let slept = Human(did.slept_ns / did.known.max(1));
    let call = did.call().map(|call| format!(", most of it in {}", harmless(Some(call)))).unwrap_or_default();
    format!(
        "{does}: for each answer its thread is on a CPU for {on}, waits for one for {waited}, and is asleep for {slept}{call}"
    )
}

/// How long bytes waited in connections that were not accepted yet.
pub(super) fn accepted_late(queues: &Queues) -> String {
    let Queues { accepted, waited_ns, .. } = *queues;
    let each = Human(waited_ns / accepted.max(1));
    format!("{accepted} connections were accepted, after their first bytes had waited {each} on average")
}

pub(super) const OVERFLOW: &str = "its accept queue is full, so handshakes are dropped: the process calls accept late, or the backlog is small";

/// How many handshakes a full queue dropped.
pub(super) fn overflowed(queues: &Queues) -> String {
    let Queues { overflows, backlog, .. } = *queues;
    let handshakes = counted(overflows, "handshake");
    format!(
        "{handshakes} dropped by a full queue, which has room for {backlog}: clients try again after a second or more"
    )
}

/// The command that shows where a process sleeps, most of all in that system call, if it is known.
pub(super) fn next_of_sleeper(pid: u32, call: Option<&str>) -> String {
    let is_of_sockets = |call: &str| {
        ["recv", "send", "accept", "connect", "poll", "select"].iter().any(|of| call.contains(of))
    };
    match call {
        Some(call) if !is_of_sockets(call) => format!("sudo strace -f -T -e trace={call} -p {pid}"),
        _ => format!("sudo net-latency calls --pid {pid} --slower 1ms"),
    }
}

/// What shows that there is too little CPU for all.
pub(super) fn cpu_short(machine: &Machine, waiting: usize, all: usize) -> Vec<String> {
    let mut evidence = vec![format!("{waiting} of {all} processes wait long for a CPU for each answer")];
    match machine.busy_percent {
        Some(busy) => evidence
            .push(format!("while packets came, the CPUs were busy for {busy} % of the time (/proc/stat)")),
        None => evidence.push("how busy the CPUs were is not known".to_owned()),
    }
    if let Some(pressure) = machine.pressure_percent {
        evidence
            .push(format!("for {pressure} % of the time some task waited for a CPU (/proc/pressure/cpu)"));
    }
    evidence
}

pub(super) fn waits_for(peer: &Service, turnaround_ns: u64) -> String {
    format!("it waits for {}, which takes {} from a request to its answer", named(peer), Human(turnaround_ns))
}

/// Its name and PID.
fn named(service: &Service) -> String {
    let name = harmless(service.name());
    match service.processes() {
        Processes::One(pid) => format!("{name}, PID {pid}"),
        Processes::Unknown | Processes::Several => name,
    }
}

/// For a process's answers: the service that it calls for them, and how long that takes.
pub(super) fn asks(asked: &Service, peer: Option<&Service>) -> String {
    let waits = asked.side(Direction::Out).times(Item::Answer).quantile(500).unwrap_or(0);
    let whom = match peer {
        Some(peer) => named(peer),
        None => format!("{} port {}", asked.remote, asked.port),
    };
    format!(
        "its answers take as long as the services that it calls take to answer, mainly {whom}: {} (p50)",
        Human(waits)
    )
}

pub(super) fn dropped(device: &str) -> String {
    format!("the queue{device} drops packets: a rate limit, or too short a queue")
}

/// In how many windows.
pub(super) fn times(windows: usize) -> String {
    if windows == 1 { "once".to_owned() } else { format!("in {windows} windows") }
}

pub(super) fn stalled(windows: usize) -> String {
    let times = times(windows);
    format!("it was slow only when all services were ({times}): the machine or its host, not this service")
}

/// N segments were sent again and had come before.
pub(super) fn needless(count: u64) -> String {
    let segments = counted(count, "segment");
    format!("the peer says that {segments} came twice: late, not lost")
}

pub(super) fn delayed_acks(count: u64) -> String {
    let acks = counted(count, "ACK");
    format!("{acks} came alone and 35 ms to 300 ms late, as a timer of the peer sends them: not counted")
}

pub(super) fn unknown(unknown: u64, all: u64) -> String {
    format!("the time between TCP or UDP and the process is unknown for {unknown} of {all} packets")
}

pub(super) fn too_few(packets: u64, least: u64) -> String {
    format!("too few packets to judge: {packets}, and {least} are needed")
}

/// A name for a time that is no column.
pub(super) fn name(item: Item) -> &'static str {
    match item {
        Item::Service => "the application",
        Item::Asked => "waiting for others' answers",
        Item::Wire => "on the way between the ends",
        Item::Connect => "opening the connection",
        Item::Theirs => "at the server",
        Item::Rest => "unknown",
        Item::Resend => "sending again",
        Item::Answer => "waiting for the answer",
        _ => "another stage",
    }
}

/// Which device, if it is known and its name can stand on a command line.
fn plain_device(service: &Service) -> Option<&str> {
    let name = std::str::from_utf8(service.device()?).ok()?;
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    (name.chars().all(is_plain) && !name.starts_with('-')).then_some(name)
}

/// ` of eth0`, or nothing.
pub(super) fn device(service: &Service) -> String {
    plain_device(service).map(|name| format!(" of {name}")).unwrap_or_default()
}

/// The command to type next.
pub(super) fn next(cause: Cause, item: Item, service: &Service) -> String {
    let Service { port, remote, .. } = service;
    let pid = service.processes().pid().unwrap_or(0);
    let sockets = || inside(service, &format!("ss -tinm '( sport = :{port} or dport = :{port} )'"));
    let of_process = if pid == 0 { String::new() } else { format!(" --pid {pid}") };
    match cause {
        _ if item == Item::Connect => format!("sudo net-latency connections --port {port}"),
        Cause::AcceptLate => inside(service, &format!("ss -ltn 'sport = :{port}'")),
        Cause::ReaderLate if pid > 0 => format!("top -H -p {pid}"),
        Cause::Application if pid > 0 => format!("sudo perf top -p {pid}"),
        Cause::CpuWait => "top -H -d 1".to_owned(),
        Cause::MissingBytes
        | Cause::TcpHeld
        | Cause::CongestionWindow
        | Cause::Nagle
        | Cause::PeerWindow
        | Cause::Retransmission => sockets(),
        Cause::Qdisc | Cause::Driver => {
            let command = match plain_device(service) {
                Some(name) if cause == Cause::Qdisc => format!("tc -s qdisc show dev {name}"),
                Some(name) => format!("ip -s -d link show dev {name}"),
                None => "tc -s qdisc".to_owned(),
            };
            inside(service, &command)
        }
        Cause::Network | Cause::PeerAnswer if is_far(service) => inside(service, &format!("mtr -n {remote}")),
        Cause::Network if item == Item::Wire => {
            format!("sudo net-latency journey --port {port} --slower 1ms")
        }
        Cause::Network | Cause::PeerAnswer => sockets(),
        Cause::SocketWait => format!("sudo net-latency diagnose{of_process} --port {port}"),
        Cause::SocketDrop => inside(service, "nstat -az UdpRcvbufErrors"),
        Cause::SoftirqLate => "mpstat -P ALL 1 5".to_owned(),
        Cause::Netfilter | Cause::UdpHeld | Cause::ReaderLate | Cause::Application => {
            format!("sudo net-latency journey{of_process} --port {port} --slower 1ms")
        }
        Cause::CpuQuota => "systemd-cgtop".to_owned(),
        Cause::CpuShort => "top -d 1".to_owned(),
        Cause::Unanswered | Cause::PacketDrop => format!("sudo net-latency journey --drops --port {port}"),
    }
}

/// Where packets of a service were dropped.
pub(super) fn dropped_in(drop: &Dropped) -> String {
    let Dropped { protocol, port, count, function, reason } = drop;
    let packets = counted(*count, "packet");
    let function = function.as_deref().unwrap_or("an unknown function");
    let reason = reason.as_ref().map(|reason| format!(", reason {reason}")).unwrap_or_default();
    let were = if *count == 1 { "was" } else { "were" };
    format!("{packets} of {} port {port} {were} dropped in {function}{reason}", protocol.name())
}

/// That command, so that it works where it is typed: in the network namespace of the service.
pub(super) fn inside(service: &Service, command: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@');
    let name = service.netns_name.as_deref().and_then(|name| std::str::from_utf8(name).ok());
    let name = name.filter(|name| name.chars().all(is_plain) && !name.starts_with('-'));
    match (name, service.is_contained, service.processes().pid()) {
        (Some(name), false, _) => format!("sudo ip netns exec {name} {command}"),
        (_, is_contained, Some(pid)) if is_contained || service.is_elsewhere => {
            format!("sudo nsenter -t {pid} -n {command}")
        }
        _ => command.to_owned(),
    }
}

/// Whether the other end is on another machine, as far as that is known: its hops are worth a look.
fn is_far(service: &Service) -> bool {
    let is_private = match service.remote {
        IpAddr::V4(address) => address.is_private() || address.is_link_local(),
        IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
    };
    // Behind a virtual device a private address is mostly one of this machine.
    let is_virtual = service.device().is_some_and(|name| {
        [&b"veth"[..], b"lo", b"br", b"docker", b"cni", b"virbr", b"dummy"]
            .iter()
            .any(|it| name.starts_with(it))
    });
    let is_inside = service.netns_name.is_some() || service.is_contained || service.is_elsewhere;
    !service.remote.is_loopback() && service.peer().is_none() && !(is_private && (is_virtual || is_inside))
}

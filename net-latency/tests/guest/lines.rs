//! The JSON form, one value per line.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result, bail, ensure};
use chrono::{DateTime, FixedOffset};
use serde_json::Value;

/// Fields that every line has, the stages aside.
const COMMON: [&str; 26] = [
    "ts",
    "dir",
    "proto",
    "ipver",
    "pid",
    "tid",
    "comm",
    "saddr",
    "sport",
    "daddr",
    "dport",
    "len",
    "seq",
    "segs",
    "total_ns",
    "ifname",
    "netns",
    "mark",
    "cpu",
    "flags",
    "first_send_age_ns",
    "last_drv_ip_ns",
    "ns_pid",
    "process",
    "netns_name",
    "container",
];

/// Which way a packet went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Dir {
    In,
    Out,
}

/// What carries a packet's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Proto {
    Tcp,
    Udp,
}

/// The stage fields in the order in which a packet crosses them.
pub(crate) fn stages(dir: Dir, proto: Proto) -> [&'static str; 3] {
    match (dir, proto) {
        (Dir::In, Proto::Tcp) => ["drv_ip_ns", "ip_tcp_ns", "tcp_app_ns"],
        (Dir::In, Proto::Udp) => ["drv_ip_ns", "ip_udp_ns", "udp_app_ns"],
        (Dir::Out, Proto::Tcp) => ["app_tcp_ns", "tcp_ip_ns", "ip_drv_ns"],
        (Dir::Out, Proto::Udp) => ["app_udp_ns", "udp_ip_ns", "ip_drv_ns"],
    }
}

/// Parts of [`Line::fine`].
pub(crate) const GAP: usize = 0;
pub(crate) const WAIT: usize = 1;
pub(crate) const CPU: usize = 2;
pub(crate) const COPY: usize = 3;

/// The fields of the parts of an incoming packet's last stage, with `--stages fine`; an outgoing one has none.
fn parts(dir: Dir, proto: Proto) -> &'static [(usize, &'static str)] {
    match (dir, proto) {
        (Dir::In, Proto::Tcp) => {
            &[(GAP, "tcp_gap_ns"), (WAIT, "tcp_wait_ns"), (CPU, "tcp_cpu_ns"), (COPY, "tcp_copy_ns")]
        }
        (Dir::In, Proto::Udp) => &[(WAIT, "udp_wait_ns"), (CPU, "udp_cpu_ns"), (COPY, "udp_copy_ns")],
        (Dir::Out, _) => &[],
    }
}

/// Parts of [`Line::sent`].
pub(crate) const QDISC: usize = 0;
pub(crate) const DRIVER: usize = 1;
pub(crate) const NET: usize = 2;

/// The fields of what follows an outgoing packet's last stage, with `--stages fine`.
const SENT: [&str; 3] = ["qdisc_ns", "driver_ns", "net_ns"];

/// The parts of the last stage, if they are there and known. Then they are all of it, to the nanosecond.
fn fine(value: &Value, dir: Dir, proto: Proto, last: Option<u64>) -> Result<Option<[u64; 4]>> {
    let mut times = [0; 4];
    let mut known = 0;
    for (part, field) in parts(dir, proto) {
        if let Some(time) = number(value, field)? {
            times[*part] = time;
            known += 1;
        }
    }
    if known == 0 {
        return Ok(None);
    }
    ensure!(known == parts(dir, proto).len(), "some parts are known");
    ensure!(last == Some(times.iter().sum()), "the parts {times:?} are not all of {last:?}");
    Ok(Some(times))
}

/// What follows the last stage of an outgoing packet.
fn sent(value: &Value, dir: Dir, proto: Proto) -> Result<[Option<u64>; 3]> {
    let has_all = value.get(SENT[QDISC]).is_some() && dir == Dir::Out;
    for (part, field) in SENT.iter().enumerate() {
        // A datagram has no ACK.
        let is_there = has_all && (part != NET || proto == Proto::Tcp);
        ensure!(
            value.get(field).is_some() == is_there,
            "{field} should {}be there",
            if is_there { "" } else { "not " }
        );
    }
    let mut times = [None; 3];
    for (time, field) in times.iter_mut().zip(SENT) {
        *time = number(value, field)?;
    }
    Ok(times)
}

impl fmt::Display for Dir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::In => "in",
            Self::Out => "out",
        })
    }
}

/// One packet.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) raw: String,
    pub(crate) ts: DateTime<FixedOffset>,
    pub(crate) dir: Dir,
    pub(crate) proto: Proto,
    pub(crate) ipver: u64,
    pub(crate) pid: Option<u32>,
    pub(crate) tid: Option<u32>,
    pub(crate) comm: Option<String>,
    pub(crate) process: Option<String>,
    pub(crate) saddr: IpAddr,
    pub(crate) sport: u16,
    pub(crate) daddr: IpAddr,
    pub(crate) dport: u16,
    pub(crate) len: u32,
    /// 0 of a datagram, which has none.
    pub(crate) seq: u32,
    pub(crate) segs: u32,
    /// In the order in which the packet crosses them.
    pub(crate) stages: [Option<u64>; 3],
    pub(crate) total: Option<u64>,
    pub(crate) ifname: Option<String>,
    pub(crate) netns: Option<u64>,
    pub(crate) mark: u64,
    pub(crate) first_send_age: Option<u64>,
    pub(crate) last_drv_ip: Option<u64>,
    pub(crate) ns_pid: Option<u32>,
    pub(crate) flags: Vec<String>,
    /// The parts of the last stage, if requested and known.
    pub(crate) fine: Option<[u64; 4]>,
    /// Whether there are fine stages.
    pub(crate) is_fine: bool,
    /// What follows the last stage of an outgoing packet, if requested and known.
    pub(crate) sent: [Option<u64>; 3],
    /// Why TCP held it back, with fine stages.
    pub(crate) held: Option<String>,
    /// The process that had the CPU for which its reader waited, with fine stages.
    pub(crate) cpu_held_by: Option<u32>,
    /// The smoothed round-trip time when TCP sent it.
    pub(crate) rtt: Option<u64>,
}

impl Line {
    pub(crate) fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|set| set == flag)
    }

    /// Whether some of its bytes are those of `other` too: at another time, or at the other end.
    pub(crate) fn shares_bytes(&self, other: &Self) -> bool {
        let is_within = |seq: u32, line: &Self| seq.wrapping_sub(line.seq) < line.len;
        (self.saddr, self.sport, self.daddr, self.dport)
            == (other.saddr, other.sport, other.daddr, other.dport)
            && (is_within(self.seq, other) || is_within(other.seq, self))
    }

    /// Whether the packet went from one of these to the other.
    pub(crate) fn is_between(&self, from: SocketAddr, to: SocketAddr) -> bool {
        (from.ip(), from.port(), to.ip(), to.port()) == (self.saddr, self.sport, self.daddr, self.dport)
    }

    fn parse(raw: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(raw)?;
        let dir = match value["dir"].as_str() {
            Some("in") => Dir::In,
            Some("out") => Dir::Out,
            _ => bail!("dir is neither in nor out"),
        };
        let proto = match value["proto"].as_str() {
            Some("tcp") => Proto::Tcp,
            Some("udp") => Proto::Udp,
            _ => bail!("proto is neither tcp nor udp"),
        };
        for field in COMMON.iter().chain(&stages(dir, proto)) {
            ensure!(value.get(field).is_some(), "field {field} is missing");
        }
        let has = |field: &str| value.get(field).is_some();
        let can_be_held = has(SENT[NET]);
        ensure!(
            value.get("held").is_some() == can_be_held,
            "held is there for what is not held back, or missing"
        );
        let is_fine = has(SENT[QDISC]) || parts(dir, proto).iter().any(|(_, field)| has(field));
        ensure!(
            has("cpu_held_by") == (is_fine && dir == Dir::In),
            "cpu_held_by is there for a packet that is not read here, or missing"
        );
        ensure!(value["seq"].is_null() == (proto == Proto::Udp), "seq is TCP's");
        let text = |field: &str| value[field].as_str().with_context(|| format!("{field} is not a string"));
        let flags = value["flags"].as_array().context("flags is not an array")?.iter();
        let flags = flags.map(|flag| flag.as_str().map(str::to_owned).context("a flag is not a string"));
        let mut times = [None; 3];
        for (stage, field) in times.iter_mut().zip(stages(dir, proto)) {
            *stage = number(&value, field)?;
        }
        Ok(Self {
            raw: raw.to_owned(),
            ts: DateTime::parse_from_rfc3339(text("ts")?).context("ts is not RFC 3339")?,
            dir,
            proto,
            ipver: known(&value, "ipver")?,
            pid: number(&value, "pid")?.map(u32::try_from).transpose()?,
            tid: number(&value, "tid")?.map(u32::try_from).transpose()?,
            comm: value["comm"].as_str().map(str::to_owned),
            process: value["process"].as_str().map(str::to_owned),
            saddr: text("saddr")?.parse().context("saddr")?,
            sport: known(&value, "sport")?.try_into()?,
            daddr: text("daddr")?.parse().context("daddr")?,
            dport: known(&value, "dport")?.try_into()?,
            len: known(&value, "len")?.try_into()?,
            seq: number(&value, "seq")?.unwrap_or(0).try_into()?,
            segs: known(&value, "segs")?.try_into()?,
            stages: times,
            total: number(&value, "total_ns")?,
            ifname: value["ifname"].as_str().map(str::to_owned),
            netns: number(&value, "netns")?,
            mark: known(&value, "mark")?,
            first_send_age: number(&value, "first_send_age_ns")?,
            last_drv_ip: number(&value, "last_drv_ip_ns")?,
            ns_pid: number(&value, "ns_pid")?.map(u32::try_from).transpose()?,
            flags: flags.collect::<Result<_>>()?,
            fine: fine(&value, dir, proto, times[2])?,
            is_fine,
            sent: sent(&value, dir, proto)?,
            held: value["held"].as_str().map(str::to_owned),
            cpu_held_by: number(&value, "cpu_held_by")?.map(u32::try_from).transpose()?,
            rtt: number(&value, "rtt_ns")?,
        })
    }
}

/// `null`, or a number that is not negative.
fn number(value: &Value, field: &str) -> Result<Option<u64>> {
    match &value[field] {
        Value::Null => Ok(None),
        value => value.as_u64().map(Some).with_context(|| format!("{field} is no whole number from 0 on")),
    }
}

fn known(value: &Value, field: &str) -> Result<u64> {
    number(value, field)?.with_context(|| format!("{field} is null"))
}

/// Parses whole lines: the last one must be ended too.
pub(crate) fn parse(text: &str) -> Result<Vec<Line>> {
    ensure!(text.is_empty() || text.ends_with('\n'), "the last line is cut: {:?}", text.lines().last());
    text.lines().map(|raw| Line::parse(raw).with_context(|| format!("not a line: {raw:?}"))).collect()
}

//! Distributions as one JSON object a line; docs/hist.schema.json describes it. Unknown is `null`.

use net_latency_common::GroupBy;
use serde::Serialize;

use super::{group::Identity, page::Page};
use crate::{
    accounting::{Figures, KernelTimes, Percentiles},
    clock::rfc3339,
    escape::lossy,
    output::write_json,
    packet::stages::dir,
    request::choice::Choice as _,
};

/// Appends the object of a page, and a newline.
pub(super) fn write(page: &Page, out: &mut Vec<u8>) {
    let histograms = page.groups.iter().flat_map(|(group, identity)| {
        group.ways.iter().flat_map(move |way| {
            way.rows().map(move |row| {
                let stage = row.stage.map_or("total_ns", |stage| stage.field);
                Histogram::new(who(identity), [dir(way.direction), way.protocol.name(), stage], row.times)
            })
        })
    });
    let object = Object {
        from: rfc3339(page.from_ns, page.zone),
        to: rfc3339(page.to_ns, page.zone),
        part: if page.is_whole { "run" } else { "interval" },
        by: by(page.by),
        uncounted: page.uncounted,
        packets: page.groups.iter().map(|(group, _)| group.packets()).sum(),
        histograms: histograms.collect(),
    };
    write_json(&object, out);
}

#[derive(Serialize)]
struct Object {
    from: String,
    to: String,
    part: &'static str,
    by: &'static str,
    packets: u64,
    uncounted: u64,
    histograms: Vec<Histogram>,
}

/// One time of one group's packets of one way.
#[derive(Serialize)]
struct Histogram {
    group: Option<Who>,
    dir: &'static str,
    proto: &'static str,
    stage: &'static str,
    count: u64,
    unknown: u64,
    #[serde(flatten)]
    percentiles: Percentiles,
    /// Where each begins, where it ends (`null`: nowhere), and its count.
    buckets: Vec<(u64, Option<u64>, u64)>,
}

impl Histogram {
    fn new(group: Option<Who>, [dir, proto, stage]: [&'static str; 3], row: &KernelTimes) -> Self {
        let Figures { count, percentiles, unknown, .. } = row.figures();
        let bucket = |(start, end, count)| (start, (end != u64::MAX).then_some(end), count);
        Self {
            group,
            dir,
            proto,
            stage,
            count,
            unknown,
            percentiles,
            buckets: row.buckets().map(bucket).collect(),
        }
    }
}

/// Whose packets they are.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Who {
    Others { others: usize },
    Process { pid: u32, process: Option<String>, comm: Option<String> },
    Named { process: String },
    Comm { comm: String },
    Port { port: u16 },
    Connection { local: String, remote: String, netns: Option<u32> },
    Host { host: String },
    Interface { ifname: Option<String>, ifindex: u32, netns: u32 },
    Cgroup { cgroup: Option<String>, cgroup_id: u64 },
}

/// `None` for all packets, and for those of unknown processes.
fn who(identity: &Identity) -> Option<Who> {
    Some(match identity {
        Identity::All | Identity::Unknown => return None,
        Identity::Others(groups) => Who::Others { others: *groups },
        Identity::Process(pid, name) => {
            let name = name.as_deref().map(lossy);
            // `comm` for programs that know no `process`.
            Who::Process { pid: *pid, process: name.clone(), comm: name }
        }
        Identity::Named(name) => Who::Named { process: lossy(name) },
        Identity::Comm(name) => Who::Comm { comm: lossy(name) },
        Identity::Port(port) => Who::Port { port: *port },
        Identity::Connection { local, remote, netns } => Who::Connection {
            local: local.to_string(),
            remote: remote.to_string(),
            netns: (*netns != 0).then_some(*netns),
        },
        Identity::Host(host) => Who::Host { host: host.to_string() },
        Identity::Interface { name, index, netns } => {
            Who::Interface { ifname: name.as_deref().map(lossy), ifindex: *index, netns: *netns }
        }
        Identity::Cgroup { path, id } => Who::Cgroup { cgroup: path.clone(), cgroup_id: *id },
    })
}

/// The word of `--by`.
fn by(by: GroupBy) -> &'static str {
    GroupBy::ALL.iter().find(|(one, ..)| *one == by).map_or("", |(_, word, _)| *word)
}

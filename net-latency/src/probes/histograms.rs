//! The kernel side's counts of times: how much room they get, when they are valid, and reading them.

use std::{ops::RangeInclusive, os::fd::AsFd as _};

use anyhow::{Context as _, Result, anyhow};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, HashMap, IterableMap as _, MapData, MapError, PerCpuArray, PerCpuHashMap},
    util::nr_cpus,
};
use itertools::iproduct;
use net_latency_common::{
    Block, CELLS, COMM_LEN, CONNECTION_IDS_MAP, CellKey, ConnectionKey, GROUPS_MAP, GroupBy, NAMES_MAP, ROWS,
    SPAN_MAP, Span, TIMES_MAP, TRAFFIC_KINDS,
};

use super::batch;
use crate::request::{Histograms, Stages};

/// Buckets that a process has at least, of which each has one name.
const BUCKETS_PER_NAME: u32 = 16;
/// Buckets that a connection has at least, for each number that it takes: a bucket for each time of one direction, few have one
/// direction only, and by IPv6 its other end may take a number more.
const BUCKETS_PER_NUMBER: u32 = 4;

/// Gives the maps the sizes that they need.
pub(super) fn size(histograms: Histograms, loader: &mut EbpfLoader<'_>) {
    match histograms.by {
        GroupBy::Stage => {
            let blocks = if histograms.stages == Stages::Fine { 2 } else { 1 };
            loader.map_max_entries(TIMES_MAP, TRAFFIC_KINDS * blocks);
        }
        GroupBy::Pid => {
            loader.map_max_entries(GROUPS_MAP, histograms.buckets);
            loader.map_max_entries(NAMES_MAP, histograms.buckets.div_ceil(BUCKETS_PER_NAME));
        }
        GroupBy::Connection => {
            loader.map_max_entries(GROUPS_MAP, histograms.buckets);
            loader.map_max_entries(CONNECTION_IDS_MAP, histograms.buckets.div_ceil(BUCKETS_PER_NUMBER));
        }
        _ => {
            loader.map_max_entries(GROUPS_MAP, histograms.buckets);
        }
    }
}

/// The maps of counts.
pub(crate) struct Counts {
    times: PerCpuArray<MapData, Block>,
    groups: PerCpuHashMap<MapData, CellKey, u64>,
    names: HashMap<MapData, [u64; 2], [u8; COMM_LEN]>,
    connections: HashMap<MapData, ConnectionKey, u64>,
    span: Array<MapData, Span>,
}

impl Counts {
    /// Takes them out of the loaded object.
    ///
    /// # Errors
    /// If one is not there.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self> {
        let mut take = |name: &'static str| ebpf.take_map(name).context(name);
        Ok(Self {
            times: take(TIMES_MAP)?.try_into()?,
            groups: take(GROUPS_MAP)?.try_into()?,
            names: take(NAMES_MAP)?.try_into()?,
            connections: take(CONNECTION_IDS_MAP)?.try_into()?,
            span: take(SPAN_MAP)?.try_into()?,
        })
    }

    /// From now on packets are counted that are finished within `span`.
    ///
    /// # Errors
    /// If the kernel refuses to be told.
    pub(crate) fn set_span(&mut self, span: &RangeInclusive<u64>) -> Result<()> {
        let span = Span { start: *span.start(), end: *span.end() };
        self.span.set(0, span, 0).context("telling the kernel side when to count")
    }

    /// All counts that are not 0, in the order of their rows. While programs run, what comes meanwhile is in them or not.
    ///
    /// # Errors
    /// If the kernel refuses to show them.
    pub(crate) fn read(&self) -> Result<Vec<(CellKey, u64)>> {
        let mut counts = Vec::new();
        if self.times.len() > 1 {
            for block in 0..self.times.len() {
                let per_cpu = self.times.get(&block, 0).context("reading the kernel side's counts")?;
                for (row, cell) in iproduct!(0..ROWS, 0..CELLS) {
                    let count = per_cpu.iter().map(|rows| rows[row as usize][cell]).sum();
                    let (row, cell) = (block * ROWS + row, cell as u32);
                    counts.push((CellKey { group: [0; 2], row, cell }, count));
                }
            }
        } else {
            let cpus = nr_cpus().map_err(|(file, error)| anyhow!("{file}: {error}"))?;
            counts = batch::sums(self.groups.map().fd().as_fd(), cpus)
                .context("reading the kernel side's counts")?;
            counts.sort_unstable_by_key(|(key, _)| (key.group, key.row, key.cell));
        }
        counts.retain(|(_, count)| *count > 0);
        Ok(counts)
    }

    /// Forgets the counts of a group, if they are still these, and says whether they were. What is counted in the moment between the look
    /// and the deletion is lost: it is for groups that have gone, or have no packets for a while.
    ///
    /// # Errors
    /// If the kernel refuses to.
    pub(crate) fn forget(&mut self, counts: &[(CellKey, u64)]) -> Result<bool> {
        for (key, count) in counts {
            match self.groups.get(key, 0) {
                Ok(now) if now.iter().sum::<u64>() != *count => return Ok(false),
                Ok(_) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(error).context("reading the kernel side's counts"),
            }
        }
        for (key, _) in counts {
            match self.groups.remove(key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(error).context("deleting the kernel side's counts"),
            }
        }
        Ok(true)
    }

    /// Connections, and the addresses of IPv6 ones, by their numbers. While programs run, new ones are among them or not.
    ///
    /// # Errors
    /// If the kernel refuses to show them.
    pub(crate) fn connections(&self) -> Result<std::collections::HashMap<u64, ConnectionKey>> {
        let pairs = self.connections.iter().map(|entry| entry.map(|(key, id)| (id, key)));
        pairs.collect::<Result<_, _>>().context("reading the kernel side's connections")
    }

    /// The name that the process of a group had when one of its times was the first in a bucket.
    #[must_use]
    pub(crate) fn name(&self, group: [u64; 2]) -> Option<[u8; COMM_LEN]> {
        self.names.get(&group, 0).ok()
    }
}

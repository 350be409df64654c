//! This process, by the names that all exporters give these metrics.

use std::fs;

use anyhow::{Context as _, Result};
use rustix::{
    param::page_size,
    process::{Resource, getrlimit},
};

use super::model::{MetricFamily, MetricType};
use crate::clock::cpu_of_process;

/// CPU time, memory and descriptors of this process, which began at `start`, in seconds since 1970.
///
/// # Errors
/// If /proc does not show them.
pub(crate) fn families(start: f64) -> Result<Vec<MetricFamily>> {
    let statm = fs::read_to_string("/proc/self/statm").context("reading this process' memory")?;
    let mut pages = statm.split(' ').map(str::parse::<u64>);
    let mut bytes = || -> Result<f64> {
        let pages = pages.next().context("/proc/self/statm reads otherwise")??;
        Ok((pages * page_size() as u64) as f64)
    };
    let (virtual_bytes, resident_bytes) = (bytes()?, bytes()?);
    // Less the one by which the directory is read.
    let open = fs::read_dir("/proc/self/fd").context("reading this process' descriptors")?.count() - 1;
    let most = getrlimit(Resource::Nofile).current.map_or(f64::INFINITY, |most| most as f64);
    let family = |name, kind, help, value| MetricFamily::new(name, kind, help).with(&[], value);
    use MetricType::{Counter, Gauge};
    Ok(vec![
        family(
            "process_cpu_seconds_total",
            Counter,
            "CPU time of the exporter.",
            cpu_of_process().as_secs_f64(),
        ),
        family("process_max_fds", Gauge, "Maximum open file descriptors of the exporter.", most),
        family("process_open_fds", Gauge, "Open file descriptors of the exporter.", open as f64),
        family("process_resident_memory_bytes", Gauge, "Memory of the exporter.", resident_bytes),
        family("process_start_time_seconds", Gauge, "When the exporter started, since 1970.", start),
        family("process_virtual_memory_bytes", Gauge, "Address space of the exporter.", virtual_bytes),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let families = families(5.0).expect("/proc is mounted");
        for family in &families {
            let metric = &family.metric[0];
            let value =
                metric.counter.as_ref().map(|c| c.value()).or(metric.gauge.as_ref().map(|g| g.value()));
            assert!(value.is_some_and(|value| value > 0.0), "{family:?}");
        }
        assert_eq!(families.len(), 6);
    }
}

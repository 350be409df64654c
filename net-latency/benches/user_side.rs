//! What the user side needs for a packet, from the ring buffer's record to the line.

use std::{
    convert::Infallible,
    fs,
    hint::black_box,
    process::{Command, Stdio},
    time::Duration,
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use net_latency::inside::{
    Clock, Event, Format, Found, Model, Options, Order, Packer, Recent, Stages, Summary, Writer, Zone,
    completion_ns, header,
};
use net_latency_common::{AF_INET, IPPROTO_TCP, PacketRecord};

const RECORDS: u64 = 10_000;
/// In the year 2026.
const WALL_NS: i64 = 1_790_000_000_000_000_000;

/// A conversation over loopback, as the kernel side tells it: two CPUs, so that records are nearly in order.
fn records() -> Vec<PacketRecord> {
    let mut comm = [0; 16];
    comm[..9].copy_from_slice(b"nl-server");
    let record = |n: u64| {
        let is_out = n.is_multiple_of(2);
        // Every eighth was overtaken by the next.
        let at = 1_000_000_000 + (n + u64::from(n.is_multiple_of(8)) * 2) * 20_000;
        let stamps = [0, 7_000 + n * 7919 % 3000, 12_000, 60_000 + n * 104_729 % 50_000].map(|ns| at + ns);
        PacketRecord {
            stamps: if is_out { [stamps[3], stamps[2], stamps[1], stamps[0]] } else { stamps },
            other: 0,
            saddr: [127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            daddr: [127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            comm,
            process: comm,
            pid: 19_550 + (n % 2) as u32,
            tid: 19_550,
            len: 200,
            seq: (n * 200) as u32,
            ifindex: 1,
            netns: 4_026_531_840,
            mark: 0,
            sport: 45_098,
            dport: 443,
            segs: 1,
            cpu: (n % 2) as u16,
            flags: 0,
            direction: u8::from(is_out),
            protocol: IPPROTO_TCP,
            family: AF_INET as u8,
            ..PacketRecord::default()
        }
    };
    (0..RECORDS).map(record).collect()
}

/// Reads all in order and hands each to `take`.
fn drain<'a>(
    order: &mut Order<&'a PacketRecord>,
    records: &'a [PacketRecord],
    mut take: impl FnMut(&PacketRecord),
) {
    let mut waiting = records.iter();
    loop {
        let read = || Ok::<_, Infallible>(waiting.next().map(|record| (completion_ns(record), record)));
        order.refill(u64::MAX, read).unwrap_or_else(|never| match never {});
        if order.is_empty() {
            return;
        }
        while let Some(record) = order.take() {
            take(record);
        }
    }
}

fn benches(criterion: &mut Criterion) {
    let records = records();
    // Not this machine's: valgrind, which counts what this takes, has no vDSO for it to be read from.
    let clock = Clock::at(WALL_NS);
    let mut group = criterion.benchmark_group("records");
    group.throughput(Throughput::Elements(RECORDS)).measurement_time(Duration::from_secs(3));
    let mut order = Order::default();
    group.bench_function("in order", |bencher| {
        bencher.iter(|| drain(&mut order, &records, |record| _ = black_box(record)));
    });
    let mut summary = Summary::default();
    group.bench_function("summed up", |bencher| {
        bencher.iter(|| {
            for record in &records {
                summary.record_event(&Event::new(record, 0, None));
            }
        });
    });
    let mut recent = Recent::new(Model::new(Duration::from_millis(1), (32_768, 60_999)), 0);
    group.bench_function("judged", |bencher| {
        bencher.iter(|| {
            for record in &records {
                recent.record(&Event::new(record, clock.to_utc_ns(completion_ns(record)), Some(b"lo")));
            }
        });
    });
    for (format, name) in [(Format::Text, "text"), (Format::Json, "json"), (Format::Csv, "csv")] {
        let mut writer = Writer::new(format, &Options { zone: Zone::UTC, details: false, colour: false });
        let mut out = Vec::with_capacity(1 << 16);
        group.bench_function(format!("{name} from ring to line"), |bencher| {
            bencher.iter(|| {
                drain(&mut order, &records, |record| {
                    if out.len() > 60_000 {
                        out.clear();
                    }
                    let wall_ns = clock.to_utc_ns(completion_ns(record));
                    let event = Event::new(record, wall_ns, Some(b"lo"));
                    writer.write(&event, &mut out);
                    summary.record_event(&event);
                });
            });
        });
    }
    let mut packer = Packer::default();
    group.bench_function("packed as they come", |bencher| {
        bencher.iter(|| {
            packer.set_clock(clock);
            for record in &records {
                packer.pack(record, None, None, || Found { ifname: Some(b"lo"), ..Found::default() });
                if packer.is_full() {
                    black_box(packer.finish());
                }
            }
        });
    });
    group.finish();
    logs(criterion, &records);
}

/// The report of a log, as a process of its own.
fn logs(criterion: &mut Criterion, records: &[PacketRecord]) {
    /// N that starting the process doesn't count.
    const REPEATED: u64 = 20;

    let mut group = criterion.benchmark_group("report");
    group.throughput(Throughput::Elements(RECORDS * REPEATED)).sample_size(10);
    let folder = tempfile::tempdir().expect("a directory for temporary files");
    for (format, name) in [(Format::Json, "json"), (Format::Csv, "csv")] {
        let mut writer = Writer::new(format, &Options { zone: Zone::UTC, details: false, colour: false });
        let mut log = header(format, Stages::Basic).to_vec();
        for record in (0..REPEATED).flat_map(|_| records) {
            writer.write(&Event::new(record, WALL_NS, Some(b"lo")), &mut log);
        }
        let path = folder.path().join(name);
        fs::write(&path, log).expect("the directory can be written");
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut command = Command::new(env!("CARGO_BIN_EXE_net-latency"));
                let status = command.args(["report", "-q"]).arg(&path).stdout(Stdio::null()).status();
                assert!(status.expect("the tool starts").success());
            });
        });
    }
    group.finish();
}

criterion_group!(all, benches);
criterion_main!(all);

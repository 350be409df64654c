//! Showing an event takes no memory: what a busy machine would pay for each packet.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Duration,
};

use net_latency::inside::{Event, Format, Losses, Model, Options, Recent, Summary, Writer, Zone};
use net_latency_common::{
    AF_INET, AF_INET6, FLAG_CONTROL, FLAG_GRO, FLAG_RETRANS, IPPROTO_TCP, IPPROTO_UDP, PacketRecord,
};

/// The system's allocator, which counts what each thread asks for.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all is left to the system's allocator. The counter has neither destructor nor lazy initialisation, so that
// it can be used here.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Packets of both directions, protocols and IP versions, with names and numbers of any length.
fn records() -> Vec<PacketRecord> {
    let mut records = Vec::new();
    for n in 0..1000u64 {
        let mut comm = [0; 16];
        comm[..15].copy_from_slice(if n % 3 == 0 {
            b"\x1b\"a,\n\\|\xff=-\x7f\xc2\x9bxy"
        } else {
            b"an-ordinary-one"
        });
        let stamp = |stage: u64| n * 1_000_000 + stage * (n * 7919 % 5000 + 1);
        let is_out = n % 2 == 1;
        let order = if is_out { [4, 3, 2, 1] } else { [1, 2, 3, 4] };
        records.push(PacketRecord {
            stamps: order.map(stamp),
            other: n % 2 * stamp(2),
            saddr: [u8::try_from(n % 251).expect("small"); 16],
            daddr: [0x20; 16],
            comm,
            process: comm,
            pid: u32::MAX,
            tid: u32::MAX,
            len: 1448,
            seq: u32::MAX,
            ifindex: 2,
            netns: 4_026_531_840,
            mark: 7,
            sport: 65535,
            dport: 443,
            segs: 12,
            cpu: 3,
            flags: [0, FLAG_GRO, FLAG_RETRANS | FLAG_GRO, FLAG_CONTROL][(n % 4) as usize],
            direction: u8::from(is_out),
            protocol: if n % 5 < 3 { IPPROTO_TCP } else { IPPROTO_UDP },
            family: (if n % 7 < 4 { AF_INET } else { AF_INET6 }) as u8,
            ..PacketRecord::default()
        });
    }
    records
}

fn count(mut work: impl FnMut()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

#[test]
fn allocations_are_counted() {
    assert!(count(|| drop(std::hint::black_box(Box::new(1)))) > 0);
}

#[test]
fn no_form_allocates_for_an_event() {
    let records = records();
    let mut out = Vec::with_capacity(1 << 20);
    for format in [Format::Text, Format::Json, Format::Csv] {
        let options = Options { zone: Zone::UTC, details: true, colour: true };
        let mut writer = Writer::new(format, &options);
        let mut write = || {
            for record in &records {
                out.clear();
                // In one second, whose text is kept.
                let event = Event::new(record, 1_646_236_896_123_456_789, Some(b"e\x1b\"\xff"))
                    .with_ns_pid(Some(7))
                    .with_place(Some(b"shop/web-7d9f\xff"), Some(b"0123456789ab"));
                writer.write(&event, &mut out);
            }
        };
        // The first time it takes what it keeps.
        write();
        assert_eq!(count(write), 0, "{format:?}");
    }
}

#[test]
fn the_summary_does_not_allocate_for_an_event() {
    let records = records();
    let mut summary = Summary::default();
    let record_all = || {
        for record in &records {
            summary.record_event(&Event::new(record, 0, None));
        }
    };
    assert_eq!(count(record_all), 0);
    assert_eq!(summary.packets(), 1000);
}

#[test]
fn collecting_for_a_verdict_does_not_allocate_for_an_event() {
    let records = records();
    let parts = [1_000, 20_000, 300_000, 4_000];
    let mut model = Model::new(Duration::from_millis(1), (32_768, 60_999));
    let mut collect = || {
        for record in &records {
            let wall_ns = i64::try_from(record.stamps[0]).expect("small");
            model.record(&Event::new(record, wall_ns, Some(b"eth0")).with_parts(Some(&parts)));
        }
    };
    // It learns who there is, how long they take, and how long it is from the last packet to the first.
    collect();
    collect();
    assert_eq!(count(collect), 0);
}

#[test]
fn collecting_the_last_seconds_does_not_allocate_for_an_event() {
    let records = records();
    let mut recent = Recent::new(Model::new(Duration::from_millis(1), (32_768, 60_999)), 0);
    let mut collect = || {
        for record in &records {
            let wall_ns = i64::try_from(record.stamps[0]).expect("small");
            recent.advance(record.stamps[0], &Losses::default());
            recent.record(&Event::new(record, wall_ns, Some(b"eth0")));
        }
    };
    collect();
    collect();
    assert_eq!(count(collect), 0);
}

//! A log's line as the record that it was written from.
//!
//! What can't be rebuilt, since no line has it:
//! - Stamps on the kernel's clock: a line tells when the packet was finished, and the times between stages. The stamps have
//!   these distances, on a clock that is ns since 1970.
//! - A stamp with no time beside it, and why a stage is unknown.
//! - The device's index (its name is there), and the bytes of a name that are no UTF-8.
//!
//! An unknown stage stays unknown, and a known total stays known, as long as the line's times can be those of four stamps. In others (no
//! line of ours) the stages count, and the total is unknown. If a line lacks one of them, addresses are 0.0.0.0 and ports 0.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr},
};

use net_latency_common::{
    AF_INET, AF_INET6, COMM_LEN, Direction, PacketRecord, STAMPS, Served, Unknown, unknown_part,
};

use super::{fields::Fields, time::TimeReader};
use crate::packet::{
    event::{COLUMNS, Event, PARTS, from_display_order},
    fields::with_fields,
    stages::{crossed, split},
};

/// An end of a packet whose line lacks one.
const NOWHERE: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// A record, and what only the user side knew. From a recording it is the one that the kernel side made, but for the clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogRecord<'a> {
    pub(super) record: PacketRecord,
    pub(crate) wall_ns: i64,
    /// The offset of the clock that told the time, east of Greenwich.
    pub(crate) offset_s: i32,
    pub(super) ifname: Option<Cow<'a, str>>,
    pub(super) ns_pid: Option<u32>,
    pub(super) netns_name: Option<Cow<'a, str>>,
    pub(super) container: Option<Cow<'a, str>>,
    /// The line says where its bytes are.
    pub(super) has_seq: bool,
    /// The parts in a log that has fine stages. No line says why one is unknown.
    pub(super) parts: Option<[u64; PARTS]>,
    pub(super) served: Option<Served>,
    pub(super) syscall: Option<Cow<'a, str>>,
}

impl<'a> LogRecord<'a> {
    /// `None` if time, direction or protocol are missing.
    #[inline(always)]
    pub(super) fn of(fields: Fields<'a>, times: &mut TimeReader) -> Option<Self> {
        let time = times.read(fields.ts.as_ref()?)?;
        let (direction, protocol) = (fields.dir?, fields.proto?);
        let ends = fields.saddr.zip(fields.sport).zip(fields.daddr.zip(fields.dport));
        let ((source, sport), (destination, dport)) = ends.unwrap_or((NOWHERE, NOWHERE));
        let is_v6 = source.is_ipv6() || destination.is_ipv6();
        let age = match direction {
            Direction::In => fields.last_drv_ip_ns,
            Direction::Out => fields.first_send_age_ns,
        };
        let stages = crossed(direction, protocol).map(|place| fields.stages[place]);
        let (stamps, other) = stamps_of(direction, time.wall_ns, stages, fields.total_ns, age);
        let record = PacketRecord {
            stamps,
            other,
            saddr: octets(source, is_v6),
            daddr: octets(destination, is_v6),
            comm: name(fields.comm.as_deref().unwrap_or_default()),
            process: name(fields.process.as_deref().unwrap_or_default()),
            seq: fields.seq.unwrap_or(0),
            sport,
            dport,
            flags: fields.flags.0,
            direction: direction as u8,
            protocol: protocol.number(),
            family: if is_v6 { AF_INET6 as u8 } else { AF_INET as u8 },
            held: fields.held.map_or(0, |held| held as u8),
            dsacks: fields.dsacks.map_or(0, |count| count.wrapping_add(1)),
            rtt_or_holder: match direction {
                Direction::In => fields.cpu_held_by.unwrap_or(0),
                // What has another number of ns is no line of ours.
                Direction::Out => fields.rtt_ns.and_then(|ns| u32::try_from(ns / 125).ok()).unwrap_or(0),
            },
            ..as_told(&fields)
        };
        let parts = fields.fine_stages.map(|fine| match (direction, stages) {
            // An unknown stage has no parts.
            (Direction::In, [.., None]) => [None; PARTS],
            _ => split(direction, protocol).map(|place| fine[place?]),
        });
        let served = fields.service_ns.zip(fields.service_sleep_ns).zip(fields.service_wait_ns);
        let served = served.map(|((all, asleep), waited)| Served { all, asleep, waited, call: 0 });
        Some(Self {
            record,
            wall_ns: time.wall_ns,
            offset_s: time.offset_s,
            ifname: fields.ifname,
            ns_pid: fields.ns_pid,
            netns_name: fields.netns_name,
            container: fields.container,
            has_seq: fields.seq.is_some(),
            parts: parts.map(|parts| parts.map(|part| part.unwrap_or(unknown_part(Unknown::NoStamp)))),
            served: served.filter(|served| served.on_cpu().is_some()),
            syscall: fields.service_syscall,
        })
    }

    /// What it was written from.
    pub(crate) fn event(&self) -> Event<'_> {
        Event::new(&self.record, self.wall_ns, self.ifname.as_deref().map(str::as_bytes))
            .with_ns_pid(self.ns_pid)
            .with_place(
                self.netns_name.as_deref().map(str::as_bytes),
                self.container.as_deref().map(str::as_bytes),
            )
            .with_parts(self.parts.as_ref())
            .with_served(self.served.as_ref())
            .with_call(self.syscall.as_deref().map(str::as_bytes))
            .with_seq(self.has_seq)
    }

    /// The record without the line that it borrows from.
    pub(super) fn into_owned(self) -> LogRecord<'static> {
        let own = |name: Option<Cow<'_, str>>| name.map(|name| Cow::Owned(name.into_owned()));
        LogRecord {
            ifname: own(self.ifname),
            netns_name: own(self.netns_name),
            container: own(self.container),
            syscall: own(self.syscall),
            ..self
        }
    }
}

macro_rules! as_told {
    ($($name:ident: $kind:ident = $method:ident $([$absent:literal $($when:tt)*])?, $of:expr, $what:literal;)*) => {
        /// Of a record, the fields that a line has as they are.
        #[inline(always)]
        fn as_told(fields: &Fields<'_>) -> PacketRecord {
            PacketRecord { $($($name: fields.$name.unwrap_or($absent),)?)* ..PacketRecord::default() }
        }
    };
}

with_fields!(as_told);

fn octets(address: IpAddr, is_v6: bool) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(address) if is_v6 => bytes = address.to_ipv6_mapped().octets(),
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes = address.octets(),
    }
    bytes
}

/// A name as the kernel has it. Bytes that were no UTF-8 become what they were, so that they take no more room.
#[inline(always)]
fn name(text: &str) -> [u8; COMM_LEN] {
    const NO_UTF8: u8 = 0xff;
    let mut name = [0; COMM_LEN];
    if text.is_ascii() {
        let len = text.len().min(COMM_LEN);
        name[..len].copy_from_slice(&text.as_bytes()[..len]);
        return name;
    }
    let mut rest = &mut name[..];
    for c in text.chars() {
        let mut bytes = [0; 4];
        let bytes = match c {
            char::REPLACEMENT_CHARACTER => &[NO_UTF8],
            _ => c.encode_utf8(&mut bytes).as_bytes(),
        };
        let len = bytes.len().min(rest.len());
        rest.split_off_mut(..len).expect("there is room").copy_from_slice(&bytes[..len]);
    }
    name
}

/// Stamps that have the line's times between them, as many of these as can be had at once, and the one besides.
#[inline(always)]
fn stamps_of(
    direction: Direction,
    wall_ns: i64,
    stages: [Option<u64>; COLUMNS],
    total: Option<u64>,
    age: Option<u64>,
) -> ([u64; STAMPS], u64) {
    // Nearly all of them.
    if let ([Some(first), Some(second), Some(third)], Some(total), None) = (stages, total, age)
        && u128::from(first) + u128::from(second) + u128::from(third) == u128::from(total)
        && let Some(start) = wall_ns.checked_sub_unsigned(total).filter(|start| *start > 0)
    {
        let at = |ns: u64| start.unsigned_abs() + ns;
        return (from_display_order(direction, [at(0), at(first), at(first + second), at(total)]), 0);
    }
    stamps_by_trying(direction, wall_ns, stages, total, age)
}

/// [`stamps_of`], where it takes some tries.
#[cold]
fn stamps_by_trying(
    direction: Direction,
    wall_ns: i64,
    all: [Option<u64>; COLUMNS],
    total: Option<u64>,
    age: Option<u64>,
) -> ([u64; STAMPS], u64) {
    let none = [None; COLUMNS];
    let tries =
        [(all, total, age), (all, total, None), (all, None, age), (all, None, None), (none, total, None)];
    for (stages, total, age) in tries {
        let Some((stamps, other)) = stamps(stages, total, age, wall_ns) else { continue };
        let stamped = PacketRecord {
            stamps: from_display_order(direction, stamps),
            other,
            direction: direction as u8,
            ..PacketRecord::default()
        };
        let event = Event::new(&stamped, 0, None);
        let told = match direction {
            Direction::In => event.last_drv_ip_ns(),
            Direction::Out => event.first_send_age_ns(),
        };
        // The stages may tell a total that was removed from the line.
        let is_total = event.total_ns() == total || (total.is_none() && !stages.contains(&None));
        if event.stages() == stages && is_total && told == age {
            return (stamped.stamps, other);
        }
    }
    ([0; STAMPS], 0)
}

/// Stamps in the order in which a packet crosses the stages, and the one besides, the latest of them at `wall_ns` if there
/// is room. `None` if they would not fit a `u64`.
///
/// Where two stamps are known and the time between them is not, they contradicted each other: the later one came first.
fn stamps(
    stages: [Option<u64>; COLUMNS],
    total: Option<u64>,
    age: Option<u64>,
    wall_ns: i64,
) -> Option<([u64; STAMPS], u64)> {
    let [first, second, third] = stages.map(|time| time.map(i128::from));
    let total = total.map(i128::from);
    let mut at: [Option<i128>; STAMPS] = [None; STAMPS];
    let spread = |at: &mut [Option<i128>; STAMPS]| {
        // Each turn reaches at least one more of the four.
        for _ in 0..STAMPS {
            for (from, to, time) in [(0, 3, total), (0, 1, first), (1, 2, second), (2, 3, third)] {
                let Some(time) = time else { continue };
                match (at[from], at[to]) {
                    (Some(begin), None) => at[to] = Some(begin + time),
                    (None, Some(end)) => at[from] = Some(end - time),
                    _ => {}
                }
            }
        }
    };
    if first.is_some() || total.is_some() {
        at[0] = Some(0);
        spread(&mut at);
    }
    if third.is_some() && at[2].is_none() && at[3].is_none() {
        // Before the first, so that neither total nor second stage is known.
        at[3] = Some(at[0].map_or(0, |start| start - 1));
        spread(&mut at);
    }
    if second.is_some() && at[1].is_none() && at[2].is_none() {
        at[1] = Some(at[0].map_or(0, |start| start - 1));
        spread(&mut at);
    }
    if age.is_some() && at[1].is_none() {
        at[1] = Some(match (at[0], at[2]) {
            (Some(start), _) => start - 1,
            (None, Some(next)) => next + 1,
            (None, None) => 0,
        });
    }
    let other = age.and_then(|age| Some(at[1]? - i128::from(age)));
    if at == [None; STAMPS] {
        // It was finished, and no stage tells where. The last stamp alone tells no time.
        at[STAMPS - 1] = Some(0);
    }
    let latest = at.into_iter().flatten().max()?;
    let earliest = at.into_iter().chain([other]).flatten().min()?;
    // 0 is unknown.
    let shift = (i128::from(wall_ns) - latest).max(1 - earliest);
    let place = |at: Option<i128>| at.map_or(Some(0), |at| u64::try_from(at + shift).ok());
    let [a, b, c, d] = at.map(place);
    Some(([a?, b?, c?, d?], place(other)?))
}

#[cfg(test)]
mod tests {
    use net_latency_common::{Held, STAMP_APP, STAMP_DRV, STAMP_IP};
    use proptest::prelude::*;

    use super::*;
    use crate::{
        clock::Zone,
        output::{
            Options, Writer, header,
            tests::{any_name, any_place, any_record},
        },
        packet::event::{
            completion_ns,
            fixtures::{WALL_NS, incoming, outgoing, udp},
        },
        request::{Format, Stages},
        source::log::read::{LogReader, Tally},
    };

    fn log(event: &Event<'_>, format: Format) -> Vec<u8> {
        let options = Options { zone: Zone::UTC, details: false, colour: false };
        let stages = if event.parts().is_some() { Stages::Fine } else { Stages::Basic };
        let mut log = header(format, stages).to_vec();
        Writer::new(format, &options).write(event, &mut log);
        log
    }

    fn read(log: &[u8]) -> LogRecord<'static> {
        let mut tally = Tally::default();
        let record = LogReader::new("the log".to_owned(), "replay", log)
            .next(&mut tally, |record| record.into_owned());
        assert_eq!(tally.skipped, 0);
        record.expect("a log").expect("a line")
    }

    #[test]
    fn stamps_stand_on_the_wall_s_clock() {
        let record = read(&log(&Event::new(&incoming(), WALL_NS, Some(b"eth0")), Format::Csv));
        assert_eq!(i64::try_from(completion_ns(&record.record)), Ok(WALL_NS));
        let shift = WALL_NS.unsigned_abs() - completion_ns(&incoming());
        let stamps = incoming().stamps.map(|stamp| stamp + shift);
        assert_eq!(record.record, PacketRecord { stamps, ifindex: 0, ..incoming() });
        assert_eq!((record.event().ifname(), record.wall_ns), (Some(&b"eth0"[..]), WALL_NS));
    }

    /// In CSV it is the last value of a row.
    #[test]
    fn a_process_keeps_its_name_with_the_spaces_at_its_end() {
        let process = *b"  \0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        for format in [Format::Csv, Format::Json] {
            let record =
                read(&log(&Event::new(&PacketRecord { process, ..incoming() }, WALL_NS, None), format));
            assert_eq!(record.record.process, process, "{format:?}");
        }
    }

    #[test]
    fn why_tcp_held_bytes_back_is_read() {
        for (held, format) in
            Held::ALL.into_iter().flat_map(|held| [Format::Json, Format::Csv].map(|form| (held, form)))
        {
            let record = PacketRecord { held: held as u8, ..outgoing() };
            let event = Event::new(&record, WALL_NS, None).with_parts(Some(&[1; PARTS]));
            assert_eq!(read(&log(&event, format)).event().held(), Some(held), "{format:?}");
        }
    }

    #[test]
    fn who_had_the_cpu_is_read_where_the_reader_waited() {
        for (format, waited) in [Format::Json, Format::Csv].map(|form| [(form, 0), (form, 9)]).concat() {
            let mut parts = [1; PARTS];
            parts[net_latency_common::PART_CPU] = waited;
            let record = PacketRecord { rtt_or_holder: 4_711, ..incoming() };
            let event = Event::new(&record, WALL_NS, None).with_parts(Some(&parts));
            let told = read(&log(&event, format)).event().cpu_held_by();
            assert_eq!(told, (waited > 0).then_some(4_711), "{format:?}");
        }
    }

    #[test]
    fn round_trips_and_dsacks_are_read() {
        let records = [(161_001, 1), (1, 0), (u32::MAX, u16::MAX), (0, 0)];
        let records = records.map(|(rtt, dsacks)| PacketRecord { rtt_or_holder: rtt, dsacks, ..outgoing() });
        for (record, format) in
            records.into_iter().flat_map(|record| [Format::Json, Format::Csv].map(|form| (record, form)))
        {
            // Without fine stages JSON has a reader of its own.
            for parts in [None, Some(&[1; PARTS])] {
                let event = Event::new(&record, WALL_NS, None).with_parts(parts);
                let back = read(&log(&event, format));
                let told = (back.event().rtt_ns(), back.event().dsacks());
                assert_eq!(told, (event.rtt_ns(), event.dsacks()), "{format:?}");
            }
        }
    }

    /// Logs of versions that wrote threads' names only.
    #[test]
    fn an_old_log_has_no_process_and_is_read() {
        let log = log(&Event::new(&incoming(), WALL_NS, None), Format::Json);
        let old = String::from_utf8(log).expect("UTF-8").replace(",\"process\":\"firefox\"", "");
        assert!(!old.contains("process"));
        let record = read(old.as_bytes());
        assert_eq!((record.event().process(), record.event().comm()), (None, Some(&b"Socket Thread"[..])));
        assert_eq!(record.event().stages(), Event::new(&incoming(), 0, None).stages());
    }

    #[test]
    fn the_unknown_stays_unknown_and_the_known_known() {
        let mut partial = incoming();
        partial.stamps[STAMP_IP] = 0;
        let record = read(&log(&Event::new(&partial, WALL_NS, None), Format::Json));
        assert_eq!(record.event().stages(), [None, None, Some(189_500)]);
        assert_eq!(record.event().total_ns(), Some(247_500));
        let none = PacketRecord { stamps: [0; STAMPS], ..incoming() };
        let record = read(&log(&Event::new(&none, WALL_NS, None), Format::Json));
        assert_eq!((record.event().stages(), record.event().total_ns()), ([None; COLUMNS], None));
        assert_eq!(i64::try_from(completion_ns(&record.record)), Ok(WALL_NS));
    }

    #[test]
    fn parts_of_a_time_that_is_not_known_are_none() {
        let mut control = incoming();
        control.stamps[STAMP_APP] = 0;
        let unknown = unknown_part(Unknown::NoStamp);
        for (format, parts) in [Format::Json, Format::Csv].map(|form| (form, [unknown, 0, 7, 5_000_000])) {
            let event = Event::new(&control, WALL_NS, None).with_parts(Some(&parts));
            assert_eq!(read(&log(&event, format)).event().parts(), Some([None; PARTS]), "{format:?}");
        }
    }

    #[test]
    fn times_that_cannot_be_of_four_stamps_leave_the_stages() {
        let line = |times: &str| {
            let line =
                format!("{{\"ts\":\"2022-03-02T16:01:36Z\",\"dir\":\"in\",\"proto\":\"tcp\",{times}}}\n");
            let record = read(line.as_bytes());
            (record.event().stages(), record.event().total_ns())
        };
        assert_eq!(
            line("\"drv_ip_ns\":1,\"ip_tcp_ns\":2,\"tcp_app_ns\":3,\"total_ns\":7"),
            ([Some(1), Some(2), Some(3)], Some(6))
        );
        assert_eq!(line("\"drv_ip_ns\":1,\"ip_tcp_ns\":2,\"total_ns\":7"), ([Some(1), Some(2), None], None));
        assert_eq!(line("\"total_ns\":18446744073709551615"), ([None; COLUMNS], None));
    }

    /// As the kernel side may make them, and as it never does; each difference of stamps fits.
    fn any_stamped() -> impl Strategy<Value = (PacketRecord, Vec<u8>, Option<u32>)> {
        let stamp = || prop_oneof![Just(0), 1..100u64, 1..10_000_000u64, 1..1u64 << 62];
        let stamps = [stamp(), stamp(), stamp(), stamp()];
        (any_record(), stamps, stamp(), any_name(), any::<bool>(), proptest::option::of(1..u32::MAX))
            .prop_map(|(record, stamps, other, name, is_udp, ns_pid)| {
                let record = PacketRecord { stamps, other, ..record };
                (if is_udp { udp(record) } else { record }, name, ns_pid)
            })
    }

    proptest! {
        #[test]
        fn a_record_that_was_read_writes_its_line_again(
            (record, ifname, ns_pid) in any_stamped(), wall_ns in 0..4_000_000_000_000_000_000i64,
            (netns_name, container) in any_place(),
        ) {
            let place = (netns_name.as_deref(), container.as_deref().map(str::as_bytes));
            let event = Event::new(&record, wall_ns, Some(&ifname)).with_ns_pid(ns_pid).with_place(place.0, place.1);
            for format in [Format::Json, Format::Csv] {
                let written = log(&event, format);
                let again = log(&read(&written).event(), format);
                prop_assert_eq!(String::from_utf8(again), String::from_utf8(written));
            }
        }

        #[test]
        fn any_times_are_taken(
            stages in any::<[Option<u64>; COLUMNS]>(), total: Option<u64>, age: Option<u64>, wall_ns: i64,
        ) {
            if let Some((stamps, _)) = stamps(stages, total, age, wall_ns) {
                let unknown = stamps.iter().filter(|stamp| **stamp == 0).count();
                prop_assert!(unknown < STAMPS);
            }
        }
    }

    #[test]
    fn a_known_stamp_is_where_its_direction_has_it() {
        let stamps = from_display_order(Direction::Out, [1, 2, 3, 4]);
        assert_eq!((stamps[STAMP_APP], stamps[STAMP_DRV]), (1, 4));
    }
}

//! The stages of a line, by name: what text, JSON, CSV, hints and tables call them stands here and nowhere else.

use net_latency_common::{Direction, TRAFFIC_OUT, TRAFFIC_UDP};

use super::event::{COLUMNS, PARTS, Protocol};

/// The time between two neighbouring stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stage {
    /// Its column's name in text.
    pub column: &'static str,
    /// Its field's name in JSON and CSV, which is part of the interface. In ns.
    pub field: &'static str,
    /// What it is.
    pub what: &'static str,
    /// What makes it long.
    pub hint: &'static str,
}

/// Columns, fields, what they are, and what makes them long.
macro_rules! stages {
    ($($column:literal $field:literal $what:literal, $hint:literal;)*) => {
        [$(Stage { column: $column, field: $field, what: $what, hint: $hint },)*]
    };
}

/// All stages, in an order that keeps that of each packet: CSV's.
pub(crate) const STAGES: [Stage; 10] = stages![
    "drv-ip" "drv_ip_ns" "from the driver to IP",
        "it waited for a softirq (a CPU's backlog, GRO), or was forwarded first";
    "ip-tcp" "ip_tcp_ns" "from IP to TCP",
        "in IP: netfilter's rules, routing, putting fragments together";
    "tcp-app" "tcp_app_ns" "from TCP until the application took the first byte",
        "its bytes waited in the socket for the reader, or for missing bytes";
    "ip-udp" "ip_udp_ns" "from IP to UDP",
        "in IP: netfilter's rules, routing, putting fragments together";
    "udp-app" "udp_app_ns" "from UDP until the application took the datagram",
        "it waited in the socket for the process to read it";
    "app-tcp" "app_tcp_ns" "from the write call of the first byte until TCP let the packet go",
        "TCP held its bytes back: window, Nagle, cork, pacing, a full queue";
    "tcp-ip" "tcp_ip_ns" "from TCP to IP's output",
        "on the way to IP's output: routing, or netfilter's output rules";
    "app-udp" "app_udp_ns" "from the write call of the first byte until UDP let the datagram go",
        "since the write call: cork, no room in the socket's buffer, routing";
    "udp-ip" "udp_ip_ns" "from UDP to IP's output",
        "on the way to IP's output: routing, or netfilter's output rules";
    "ip-drv" "ip_drv_ns" "from IP's output to the device's queue",
        "from IP to the device: netfilter (NAT), or the neighbour's address";
];

/// The stages into which an incoming packet's last one is split, and those that follow an outgoing one's, where fine stages are
/// requested, in an order that keeps that of each packet.
pub(crate) const FINE_STAGES: [Stage; 10] = stages![
    "gap" "tcp_gap_ns" "a part of tcp_app_ns: bytes before it were missing, until they had come too",
        "bytes before it were missing: a segment was lost, or came late";
    "wait" "tcp_wait_ns" "a part of tcp_app_ns: it could be read, and the application did not ask for it",
        "its bytes waited for the application to ask for them";
    "cpu" "tcp_cpu_ns" "a part of tcp_app_ns: the thread that reads was woken, and waited for a CPU",
        "the thread that reads was woken, and waited for a CPU";
    "copy" "tcp_copy_ns" "a part of tcp_app_ns: the rest, in the call that read it",
        "in the call that read it: copying, or other bytes before it";
    "wait" "udp_wait_ns" "a part of udp_app_ns: the application did not ask for it",
        "it waited for the application to ask for it";
    "cpu" "udp_cpu_ns" "a part of udp_app_ns: the thread that reads was woken, and waited for a CPU",
        "the thread that reads was woken, and waited for a CPU";
    "copy" "udp_copy_ns" "a part of udp_app_ns: the rest, in the call that read it",
        "in the call that read it: copying, or others before it";
    "qdisc" "qdisc_ns" "from the device's queue until the driver had the first segment; 0 if the device has no queue",
        "it waited in the device's queue: others, a rate limit, pacing, a delay";
    "driver" "driver_ns" "the driver's call with the first segment",
        "in the driver's call, which gave it to the device";
    "net" "net_ns" "from the driver's call until the ACK of the last byte; null where bytes were sent more than once",
        "on the wire and at the peer, until its ACK came";
];

/// The places in [`FINE_STAGES`] of a packet's parts; `None` for one that such packets don't have.
#[must_use]
pub(crate) const fn split(direction: Direction, protocol: Protocol) -> [Option<usize>; PARTS] {
    match (direction, protocol) {
        (Direction::In, Protocol::Tcp) => [Some(0), Some(1), Some(2), Some(3)],
        (Direction::In, Protocol::Udp) => [None, Some(4), Some(5), Some(6)],
        (Direction::Out, Protocol::Tcp) => [Some(7), Some(8), Some(9), None],
        (Direction::Out, Protocol::Udp) => [Some(7), Some(8), None, None],
    }
}

/// The parts of such a packet: which of all, and what they are.
pub(crate) fn parts(
    direction: Direction,
    protocol: Protocol,
) -> impl Iterator<Item = (usize, &'static Stage)> {
    let places = split(direction, protocol).into_iter().enumerate();
    places.filter_map(|(part, place)| Some((part, &FINE_STAGES[place?])))
}

/// The places in [`STAGES`] of a packet's stages, in the order in which it crosses them.
#[must_use]
pub(crate) const fn crossed(direction: Direction, protocol: Protocol) -> [usize; COLUMNS] {
    match (direction, protocol) {
        (Direction::In, Protocol::Tcp) => [0, 1, 2],
        (Direction::In, Protocol::Udp) => [0, 3, 4],
        (Direction::Out, Protocol::Tcp) => [5, 6, 9],
        (Direction::Out, Protocol::Udp) => [7, 8, 9],
    }
}

/// Those stages.
#[must_use]
pub(crate) const fn stages(direction: Direction, protocol: Protocol) -> [Stage; COLUMNS] {
    let [first, second, third] = crossed(direction, protocol);
    [STAGES[first], STAGES[second], STAGES[third]]
}

/// The stage of a row: of a column, or of a part behind columns and total; `None` for the total, and for what such packets don't have.
#[must_use]
pub(crate) fn of_row(direction: Direction, protocol: Protocol, row: usize) -> Option<Stage> {
    match row.checked_sub(COLUMNS + 1) {
        Some(part) => Some(FINE_STAGES[(*split(direction, protocol).get(part)?)?]),
        None => stages(direction, protocol).get(row).copied(),
    }
}

/// Direction and protocol of a kind of traffic.
#[must_use]
pub(crate) const fn way(traffic: u32) -> (Direction, Protocol) {
    let direction = if traffic & TRAFFIC_OUT == 0 { Direction::In } else { Direction::Out };
    (direction, if traffic & TRAFFIC_UDP == 0 { Protocol::Tcp } else { Protocol::Udp })
}

/// Names of the columns of a line, in display order.
#[must_use]
pub(crate) const fn columns(direction: Direction, protocol: Protocol) -> [&'static str; COLUMNS] {
    let [first, second, third] = stages(direction, protocol);
    [first.column, second.column, third.column]
}

/// What the field `dir` says.
#[must_use]
pub(crate) const fn dir(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "in",
        Direction::Out => "out",
    }
}

/// The other one.
#[must_use]
pub(crate) const fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::In => Direction::Out,
        Direction::Out => Direction::In,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAYS: [(Direction, Protocol); 4] = [
        (Direction::In, Protocol::Tcp),
        (Direction::In, Protocol::Udp),
        (Direction::Out, Protocol::Tcp),
        (Direction::Out, Protocol::Udp),
    ];

    #[test]
    fn a_packet_goes_on_where_its_last_stage_ended() {
        for (direction, protocol) in WAYS {
            let columns = columns(direction, protocol);
            for pair in columns.windows(2) {
                let (from, to) = (pair[0].split_once('-'), pair[1].split_once('-'));
                assert_eq!(from.map(|(_, end)| end), to.map(|(start, _)| start), "{columns:?}");
            }
            assert!(columns.iter().any(|column| column.contains(protocol.name())), "{columns:?}");
        }
    }

    #[test]
    fn each_stage_is_crossed_and_keeps_its_order() {
        let mut met = [false; STAGES.len()];
        for (direction, protocol) in WAYS {
            let crossed = crossed(direction, protocol);
            assert!(crossed.is_sorted_by(|one, next| one < next), "{crossed:?}");
            crossed.into_iter().for_each(|place| met[place] = true);
        }
        assert_eq!(met, [true; STAGES.len()]);
    }

    #[test]
    fn fields_are_the_columns_in_another_spelling() {
        for stage in STAGES {
            assert_eq!(stage.field, format!("{}_ns", stage.column.replace('-', "_")));
        }
    }
}

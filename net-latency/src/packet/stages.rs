//! The stages of a line, by name: what text, JSON, CSV, hints and tables call them stands here and nowhere else.

use net_latency_common::Direction;

use super::event::{COLUMNS, Protocol};

/// The time between two neighbouring stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Its column's name in text.
    pub column: &'static str,
    /// Its field's name in JSON and CSV, which is part of the interface. In ns.
    pub field: &'static str,
    /// What makes it long.
    pub hint: &'static str,
}

const fn stage(column: &'static str, field: &'static str, hint: &'static str) -> Stage {
    Stage { column, field, hint }
}

/// All stages, in an order that keeps that of each packet: CSV's.
pub const STAGES: [Stage; 10] = [
    stage("drv-ip", "drv_ip_ns", "it waited for a softirq (a CPU's backlog, GRO), or was forwarded first"),
    stage("ip-tcp", "ip_tcp_ns", "in IP: netfilter's rules, routing, putting fragments together"),
    stage("tcp-app", "tcp_app_ns", "its bytes waited in the socket for the reader, or for missing ones"),
    stage("ip-udp", "ip_udp_ns", "in IP: netfilter's rules, routing, putting fragments together"),
    stage("udp-app", "udp_app_ns", "it waited in the socket for the process to read it"),
    stage("app-tcp", "app_tcp_ns", "TCP held its bytes back: window, Nagle, cork, pacing, a full queue"),
    stage("tcp-ip", "tcp_ip_ns", "on the way to IP's output: routing, or netfilter's output rules"),
    stage("app-udp", "app_udp_ns", "since the write call: cork, no room in the socket's buffer, routing"),
    stage("udp-ip", "udp_ip_ns", "on the way to IP's output: routing, or netfilter's output rules"),
    stage("ip-drv", "ip_drv_ns", "from IP to the device: netfilter (NAT), or the neighbour's address"),
];

/// The places in [`STAGES`] of a packet's stages, in the order in which it crosses them.
#[must_use]
pub const fn crossed(direction: Direction, protocol: Protocol) -> [usize; COLUMNS] {
    match (direction, protocol) {
        (Direction::In, Protocol::Tcp) => [0, 1, 2],
        (Direction::In, Protocol::Udp) => [0, 3, 4],
        (Direction::Out, Protocol::Tcp) => [5, 6, 9],
        (Direction::Out, Protocol::Udp) => [7, 8, 9],
    }
}

/// Those stages.
#[must_use]
pub const fn stages(direction: Direction, protocol: Protocol) -> [Stage; COLUMNS] {
    let [first, second, third] = crossed(direction, protocol);
    [STAGES[first], STAGES[second], STAGES[third]]
}

/// Names of the columns of a line, in display order.
#[must_use]
pub const fn columns(direction: Direction, protocol: Protocol) -> [&'static str; COLUMNS] {
    let [first, second, third] = stages(direction, protocol);
    [first.column, second.column, third.column]
}

/// What the field `dir` says.
#[must_use]
pub const fn dir(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "in",
        Direction::Out => "out",
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

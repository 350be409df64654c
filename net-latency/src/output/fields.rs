//! Names of the fields that JSON and CSV share; they are part of the interface.

use net_latency_common::Direction;

use crate::packet::event::{COLUMNS, Protocol};

/// The stage fields of a packet, in the order in which it crosses them.
#[must_use]
pub fn stage_fields(direction: Direction, protocol: Protocol) -> [&'static str; COLUMNS] {
    match (direction, protocol) {
        (Direction::In, Protocol::Tcp) => ["drv_ip_ns", "ip_tcp_ns", "tcp_app_ns"],
        (Direction::In, Protocol::Udp) => ["drv_ip_ns", "ip_udp_ns", "udp_app_ns"],
        (Direction::Out, Protocol::Tcp) => ["app_tcp_ns", "tcp_ip_ns", "ip_drv_ns"],
        (Direction::Out, Protocol::Udp) => ["app_udp_ns", "udp_ip_ns", "ip_drv_ns"],
    }
}

/// The stage fields of all packets, in an order that keeps each packet's own.
pub const STAGE_FIELDS: [&str; 10] = [
    "drv_ip_ns",
    "ip_tcp_ns",
    "tcp_app_ns",
    "ip_udp_ns",
    "udp_app_ns",
    "app_tcp_ns",
    "tcp_ip_ns",
    "app_udp_ns",
    "udp_ip_ns",
    "ip_drv_ns",
];

/// What the field `dir` says.
#[must_use]
pub fn dir(direction: Direction) -> &'static str {
    match direction {
        Direction::In => "in",
        Direction::Out => "out",
    }
}

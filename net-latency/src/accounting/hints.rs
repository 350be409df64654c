//! What it means when a packet spent most of its time in a stage.

use net_latency_common::Direction;

use crate::packet::event::{COLUMNS, Protocol};

/// For each column of a way, what makes it long.
#[must_use]
pub fn hints(direction: Direction, protocol: Protocol) -> [&'static str; COLUMNS] {
    const DRV_IP: &str = "it waited for a softirq (a CPU's backlog, GRO), or was forwarded first";
    const IP_IN: &str = "in IP: netfilter's rules, routing, putting fragments together";
    const TO_IP_OUT: &str = "on the way to IP's output: routing, or netfilter's output rules";
    const IP_DRV: &str = "from IP to the device: netfilter (NAT), or the neighbour's address";
    match (direction, protocol) {
        (Direction::In, Protocol::Tcp) => {
            [DRV_IP, IP_IN, "its bytes waited in the socket for the reader, or for missing ones"]
        }
        (Direction::In, Protocol::Udp) => {
            [DRV_IP, IP_IN, "it waited in the socket for the process to read it"]
        }
        (Direction::Out, Protocol::Tcp) => {
            ["TCP held its bytes back: window, Nagle, cork, pacing, a full queue", TO_IP_OUT, IP_DRV]
        }
        (Direction::Out, Protocol::Udp) => {
            ["since the write call: cork, no room in the socket's buffer, routing", TO_IP_OUT, IP_DRV]
        }
    }
}

/// In place of the first column's hint for a segment that TCP had sent before.
pub(super) const SENT_AGAIN: &str = "TCP sent its bytes again, having had no ACK for them";

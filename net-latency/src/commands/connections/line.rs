//! From what the kernel side tells of a connection to its line.

use net_latency_common::{
    AF_INET, CONNECTION_CLIENT, CONNECTION_LOCAL_FIRST, CONNECTION_OPEN, CONNECTION_OVERFLOW,
    CONNECTION_PEER_FIRST, CONNECTION_RESET, CONNECTION_SERVER, ConnectionRecord,
};

use super::fields::{ClosedBy, Flags, Line, Name, Role, State, Time};
use crate::{clock::Clock, packet::event::address, source::ring::Names};

/// States of `enum tcp_state` (include/net/tcp_states.h).
const SYN_SENT: u8 = 2;
const FIN_WAIT1: u8 = 4;
const FIN_WAIT2: u8 = 5;
const LAST_ACK: u8 = 9;
const CLOSING: u8 = 11;

/// The line of a connection.
pub(super) fn line(record: &ConnectionRecord, clock: Clock, names: &mut Names) -> Line {
    let wall_ns = clock.to_utc_ns(record.at_ns);
    let (netns_name, container) = names.of_process(record.netns, record.pid, record.process, wall_ns);
    let (netns_name, container) = (netns_name.map(Name::new), container.map(Name::new));
    let (state, closed_by) = outcome(record);
    let established = known(record.established_ns);
    let is_known = |count: u64, time: u64| if count > 0 { since(established, time) } else { None };
    let number = |number: u32| (number != 0).then_some(number);
    Line {
        ts: Time(wall_ns),
        role: role(record),
        pid: number(record.pid),
        process: Name::of_kernel(&record.process),
        container,
        netns_name,
        laddr: address(&record.local, record.family),
        lport: record.local_port,
        raddr: address(&record.remote, record.family),
        rport: record.remote_port,
        state,
        handshake_ns: handshake_ns(record),
        syn_retrans: record.syn_retrans,
        accept_ns: accept_ns(record),
        first_in_ns: is_known(record.bytes_in, record.first_in_ns),
        first_out_ns: is_known(record.bytes_out, record.first_out_ns),
        bytes_in: record.bytes_in,
        bytes_out: record.bytes_out,
        segs_in: record.segs_in,
        segs_out: record.segs_out,
        retrans: record.retrans,
        rtt_ns: known(u64::from(record.srtt) * 125),
        min_rtt_ns: Some(record.min_rtt_us)
            .filter(|&us| us != 0 && us != u32::MAX)
            .map(|us| u64::from(us) * 1000),
        duration_ns: duration_ns(record),
        closed_by,
        error: number(record.error),
        tid: number(record.tid),
        comm: Name::of_kernel(&record.comm),
        ipver: if u32::from(record.family) == AF_INET { 4 } else { 6 },
        netns: record.netns,
        mark: record.mark,
        flags: Flags(record.flags),
    }
}

fn known(value: u64) -> Option<u64> {
    (value != 0).then_some(value)
}

fn since(from: Option<u64>, to: u64) -> Option<u64> {
    known(to)?.checked_sub(from?)
}

/// How long the handshake took, if that is known.
pub(in crate::commands) fn handshake_ns(record: &ConnectionRecord) -> Option<u64> {
    since(known(record.started_ns), record.established_ns)
}

/// How long it has lasted, if its beginning is known.
pub(in crate::commands) fn duration_ns(record: &ConnectionRecord) -> Option<u64> {
    since(known(record.started_ns), record.at_ns)
}

/// How long a server's connection waited for `accept`, if that is known. With Fast Open `accept` may have been first.
pub(in crate::commands) fn accept_ns(record: &ConnectionRecord) -> Option<u64> {
    let ends = known(record.established_ns).zip(known(record.accepted_ns));
    ends.map(|(from, to)| to.saturating_sub(from))
}

/// This machine's role on the connection.
pub(in crate::commands) fn role(record: &ConnectionRecord) -> Option<Role> {
    match record.flags {
        flags if flags & CONNECTION_CLIENT != 0 => Some(Role::Client),
        flags if flags & CONNECTION_SERVER != 0 => Some(Role::Server),
        _ => None,
    }
}

/// How it ended, and by whom, from the state in which it was and the error that the kernel has left.
pub(in crate::commands) fn outcome(record: &ConnectionRecord) -> (State, Option<ClosedBy>) {
    let has = |flag| record.flags & flag != 0;
    let first = match () {
        () if has(CONNECTION_LOCAL_FIRST) => Some(ClosedBy::Local),
        () if has(CONNECTION_PEER_FIRST) => Some(ClosedBy::Peer),
        () => None,
    };
    let error = i32::try_from(record.error).unwrap_or(0);
    if has(CONNECTION_OVERFLOW) {
        return (State::Overflow, None);
    }
    if has(CONNECTION_OPEN) {
        return (State::Open, first);
    }
    // A reset (`tcp_reset`), except that TCP calls that too if data comes after `close`, which it answers by a reset of its own.
    let is_reset = [libc::ECONNRESET, libc::EPIPE, libc::ECONNREFUSED].contains(&error);
    match (record.state, error) {
        (SYN_SENT, libc::ECONNREFUSED) => (State::Refused, Some(ClosedBy::ResetByPeer)),
        // `tcp_abort`, for `ss -K` and the like: neither end has closed it.
        (SYN_SENT, libc::ECONNABORTED) => (State::Abandoned, Some(ClosedBy::Local)),
        (_, libc::ECONNABORTED) => (State::Reset, Some(ClosedBy::ResetByLocal)),
        (_, libc::ETIMEDOUT) => (State::Timeout, Some(ClosedBy::Timeout)),
        (SYN_SENT, 0) if record.segs_out == 0 => (State::Unreachable, Some(ClosedBy::Local)),
        (SYN_SENT, 0 | libc::ECONNRESET) => (State::Abandoned, Some(ClosedBy::Local)),
        (SYN_SENT, _) => (State::Unreachable, None),
        (FIN_WAIT1 | FIN_WAIT2, _) if is_reset && !has(CONNECTION_RESET) => {
            (State::Reset, Some(ClosedBy::ResetByLocal))
        }
        _ if is_reset => (State::Reset, Some(ClosedBy::ResetByPeer)),
        // The last ACK has come, or the rest is left to a socket in TIME-WAIT or FIN-WAIT-2 that is smaller.
        (LAST_ACK | CLOSING | FIN_WAIT2, 0) => (State::Closed, first),
        // The network says that there is no way any more.
        (_, error) if error != 0 => (State::Timeout, Some(ClosedBy::Timeout)),
        // `close` with bytes that were not read, SO_LINGER of 0, a listening socket that was closed before `accept`, no memory.
        _ => (State::Reset, Some(ClosedBy::ResetByLocal)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(state: u8, error: i32, flags: u32) -> String {
        let record = ConnectionRecord {
            state,
            error: error as u32,
            flags,
            segs_out: 3,
            ..ConnectionRecord::default()
        };
        let (state, by) = outcome(&record);
        format!("{} {}", state.name(), by.map_or("-", ClosedBy::name))
    }

    #[test]
    fn how_a_connection_ended_is_told_by_its_last_state_and_error() {
        const ESTABLISHED: u8 = 1;
        const CLOSE_WAIT: u8 = 8;
        let cases = [
            (SYN_SENT, libc::ECONNREFUSED, 0, "refused reset-by-peer"),
            (SYN_SENT, libc::ETIMEDOUT, 0, "timeout timeout"),
            (SYN_SENT, libc::EHOSTUNREACH, 0, "unreachable -"),
            (SYN_SENT, 0, 0, "abandoned local"),
            (ESTABLISHED, libc::ECONNRESET, 0, "reset reset-by-peer"),
            (ESTABLISHED, 0, 0, "reset reset-by-local"),
            (ESTABLISHED, libc::ECONNABORTED, 0, "reset reset-by-local"),
            (SYN_SENT, libc::ECONNABORTED, 0, "abandoned local"),
            (ESTABLISHED, libc::ETIMEDOUT, 0, "timeout timeout"),
            (ESTABLISHED, libc::EHOSTUNREACH, 0, "timeout timeout"),
            (CLOSE_WAIT, libc::EPIPE, CONNECTION_PEER_FIRST, "reset reset-by-peer"),
            (CLOSE_WAIT, 0, CONNECTION_PEER_FIRST, "reset reset-by-local"),
            (LAST_ACK, 0, CONNECTION_PEER_FIRST, "closed peer"),
            (FIN_WAIT2, 0, CONNECTION_LOCAL_FIRST, "closed local"),
            (FIN_WAIT2, libc::ECONNRESET, CONNECTION_LOCAL_FIRST, "reset reset-by-local"),
            (FIN_WAIT1, libc::ECONNRESET, CONNECTION_LOCAL_FIRST | CONNECTION_RESET, "reset reset-by-peer"),
            (ESTABLISHED, 0, CONNECTION_OPEN, "open -"),
            (CLOSE_WAIT, 0, CONNECTION_OPEN | CONNECTION_PEER_FIRST, "open peer"),
            (0, 0, CONNECTION_OVERFLOW, "overflow -"),
        ];
        for (state, error, flags, expected) in cases {
            assert_eq!(ends(state, error, flags), expected, "{state} {error} {flags:#x}");
        }
    }
}

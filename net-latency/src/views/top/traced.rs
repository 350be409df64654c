//! Which packets are traced, in the words of the command line.

use crate::cli::PacketFilter;

use super::columns::name;

/// The options that make this filter; empty if all packets with data are traced.
pub(super) fn options(filter: &PacketFilter) -> String {
    // Named one by one, so that no new one is forgotten here.
    let PacketFilter { pids, ports, direction, control } = filter;
    let mut options: Vec<String> = Vec::new();
    options.extend(pids.iter().map(|pid| format!("--pid {pid}")));
    options.extend(ports.iter().map(|port| format!("--port {port}")));
    options.extend(direction.map(|direction| format!("--direction {}", name(direction))));
    options.extend(control.then(|| "--control".to_owned()));
    options.join(" ")
}

#[cfg(test)]
mod tests {
    use net_latency_common::Direction;

    use super::*;

    #[test]
    fn what_was_asked_for_reads_as_it_was_asked_for() {
        assert_eq!(options(&PacketFilter::default()), "");
        let filter = PacketFilter {
            pids: vec![1, 2],
            ports: vec![443],
            direction: Some(Direction::Out),
            control: true,
        };
        assert_eq!(options(&filter), "--pid 1 --pid 2 --port 443 --direction out --control");
    }
}

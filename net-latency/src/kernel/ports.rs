//! Ephemeral ports: the kernel gives them to sockets that name none, those of clients.

use std::fs;

/// Those that it gives out unless told otherwise (Documentation/networking/ip-sysctl.rst, `ip_local_port_range`).
const USUAL: (u16, u16) = (32768, 60999);

/// The first and the last, in our own network namespace.
#[must_use]
pub(crate) fn ephemeral() -> (u16, u16) {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    port_range(&range).unwrap_or(USUAL)
}

/// Both in one word, as [`net_latency_common::service_port`] takes it.
#[must_use]
pub(crate) fn ephemeral_word() -> u32 {
    let (first, last) = ephemeral();
    u32::from(last) << 16 | u32::from(first)
}

fn port_range(text: &str) -> Option<(u16, u16)> {
    let mut ports = text.split_whitespace().map(str::parse::<u16>);
    Some((ports.next()?.ok()?, ports.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use net_latency_common::service_port;

    use super::*;

    #[test]
    fn the_range_of_ports_is_read() {
        assert_eq!(port_range("32768\t60999\n"), Some((32768, 60999)));
        assert_eq!(port_range(""), None);
    }

    #[test]
    fn a_client_counts_for_the_servers_port() {
        let range = 32_768 | 60_999 << 16;
        let ports = |local, remote| service_port(local, remote, range);
        assert_eq!((ports(443, 51_324), ports(51_324, 443)), (443, 443));
        // Which of two is the server's is unknown.
        assert_eq!((ports(40_000, 50_000), ports(8_080, 443)), (40_000, 8_080));
        assert_eq!(
            (ports(32_768, 60_999), ports(60_999, 61_000), ports(32_768, 32_767)),
            (32_768, 61_000, 32_767)
        );
    }
}

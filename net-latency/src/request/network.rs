//! Values of filters on what a packet carries: addresses, marks, a share.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU32;

use ipnet::IpNet;

/// What a packet's mark must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Its value.
    pub value: u32,
    /// The bits that count.
    pub mask: u32,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.value)?;
        if self.mask == u32::MAX { Ok(()) } else { write!(f, "/{:#x}", self.mask) }
    }
}

/// `ADDR` or `ADDR/BITS`. An IPv4 address that is written as IPv6 is an IPv4 address, and bits behind the prefix don't count.
pub(crate) fn parse_net(text: &str) -> Result<IpNet, String> {
    let wrong = || "write an address, or a network as ADDRESS/BITS: 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32";
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(parse_u32(prefix).ok_or_else(wrong)?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let most = IpNet::from(address).max_prefix_len();
    let too_long = || format!("an address of this kind has {most} bits");
    let prefix = prefix.map_or(Ok(most), |prefix| u8::try_from(prefix).map_err(|_| too_long()))?;
    let net = IpNet::new(address, prefix).map_err(|_| too_long())?;
    let mapped = match (address.to_canonical(), prefix) {
        (IpAddr::V4(inner), 96..) if address.is_ipv6() => IpNet::new(inner.into(), prefix - 96).ok(),
        _ => None,
    };
    Ok(mapped.unwrap_or(net).trunc())
}

/// As it is written: an address of its own without a prefix.
pub(crate) fn net_text(net: &IpNet) -> String {
    if net.prefix_len() == net.max_prefix_len() { net.addr().to_string() } else { net.to_string() }
}

/// `VALUE` or `VALUE/MASK`, each decimal, or hexadecimal after `0x`.
pub(crate) fn parse_mark(text: &str) -> Result<Mark, String> {
    let wrong = || "write VALUE or VALUE/MASK, each decimal or hexadecimal: 7, 0x10 or 0x10/0xf0".to_owned();
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (value, parse_u32(mask).ok_or_else(wrong)?),
        None => (text, u32::MAX),
    };
    let value = parse_u32(value).ok_or_else(wrong)?;
    if value & !mask != 0 {
        return Err(format!(
            "the value has bits that the mask lacks, so nothing would match; write {:#x}/{mask:#x}",
            value & mask
        ));
    }
    Ok(Mark { value, mask })
}

/// `1/N`: the N.
pub(crate) fn parse_sample(text: &str) -> Result<NonZeroU32, String> {
    text.strip_prefix("1/")
        .and_then(parse_u32)
        .and_then(NonZeroU32::new)
        .ok_or_else(|| "write 1/N for one packet in N: 1/100".to_owned())
}

/// Digits only: no sign, no space.
fn parse_u32(text: &str) -> Option<u32> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if !digits.starts_with(|first: char| first.is_digit(radix)) {
        return None;
    }
    u32::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn net(text: &str) -> Option<String> {
        parse_net(text).ok().map(|net| net.to_string())
    }

    #[test]
    fn networks_of_both_kinds() {
        for (text, read) in [
            ("192.0.2.7", "192.0.2.7/32"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("2001:db8:ffff::/33", "2001:db8:8000::/33"),
            ("::/0", "::/0"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
            ("::ffff:10.1.0.0/104", "10.0.0.0/8"),
            ("::ffff:0:0/80", "::/80"),
        ] {
            assert_eq!(net(text).as_deref(), Some(read), "{text}");
        }
        let wrong = ["", "/8", "10.0.0.0/33", "10.0.0/8", "10.0.0.0/", "10.0.0.0/-1", "10.0.0.0/+8"];
        for text in
            wrong.into_iter().chain(["::/129", "fe80::1%eth0", "localhost", "10.0.0.1 ", "1.2.3.4/8/8"])
        {
            assert_eq!(net(text), None, "{text}");
        }
        for (text, bits) in [("10.0.0.0/33", 32), ("10.0.0.0/300", 32), ("::ffff:10.0.0.0/129", 128)] {
            assert_eq!(parse_net(text), Err(format!("an address of this kind has {bits} bits")));
        }
    }

    #[test]
    fn marks_and_masks() {
        let mark = |value, mask| Ok(Mark { value, mask });
        assert_eq!(parse_mark("7"), mark(7, u32::MAX));
        assert_eq!(parse_mark("0x10/0xF0"), mark(0x10, 0xf0));
        assert_eq!(parse_mark("0/1"), mark(0, 1));
        assert_eq!(parse_mark("4294967295"), mark(u32::MAX, u32::MAX));
        for text in ["", "/1", "7/", "0x", "-1", "4294967296", "0x100000000", "ten", "1/2/3", "+7", "0x+7"] {
            assert!(parse_mark(text).is_err(), "{text}");
        }
        assert!(parse_mark("0x11/0x10").expect_err("can't match").ends_with("write 0x10/0x10"));
    }

    #[test]
    fn a_share_is_one_of_some() {
        assert_eq!(parse_sample("1/100").map(NonZeroU32::get), Ok(100));
        assert_eq!(parse_sample("1/1").map(NonZeroU32::get), Ok(1));
        for text in ["0", "1/0", "2/3", "1/", "1", "10%", "0.1", "1/-2", "1/4294967296"] {
            assert!(parse_sample(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_address_is_in_its_network(address in any::<u32>(), prefix in 0..=32u8) {
            let text = format!("{}/{prefix}", Ipv4Addr::from_bits(address));
            let net = parse_net(&text).expect("right");
            prop_assert_eq!(net.prefix_len(), prefix);
            prop_assert_eq!(parse_net(&net_text(&net)), Ok(net));
            let IpAddr::V4(read) = net.addr() else { panic!("IPv4") };
            let same = (read.to_bits() ^ address).leading_zeros();
            prop_assert!(same >= u32::from(prefix));
            prop_assert_eq!(read.to_bits().checked_shl(u32::from(prefix)).unwrap_or(0), 0);
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _unused = (parse_net(&text), parse_mark(&text), parse_sample(&text));
        }
    }
}

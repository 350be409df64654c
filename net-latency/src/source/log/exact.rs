//! A line of JSON just as the stream writes it: its fields in its order, no blanks between them, no escapes. Nearly all are,
//! and so are read in a third of the time. What differs in anything is for the parser of any [`json`](super::json).

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr},
};

use net_latency_common::Direction;

use super::packet::Fields;
use crate::packet::{
    event::Protocol,
    stages::{STAGES, crossed},
};

/// The fields of a line; `None` for one that has to be read otherwise, whatever it is.
///
/// Inlined, as what it is for is: they are written where they are read then, and not handed on from function to function.
#[inline(always)]
pub(super) fn read(line: &[u8]) -> Option<Fields<'_>> {
    let mut fields = Fields::default();
    let mut rest = Rest(line);
    rest.expect(b"{\"ts\":")?;
    fields.ts = Some(Cow::Borrowed(rest.text()?));
    let direction = if rest.expect(b",\"dir\":\"in\"").is_some() {
        Direction::In
    } else {
        rest.expect(b",\"dir\":\"out\"")?;
        Direction::Out
    };
    let protocol = if rest.expect(b",\"proto\":\"tcp\"").is_some() {
        Protocol::Tcp
    } else {
        rest.expect(b",\"proto\":\"udp\"")?;
        Protocol::Udp
    };
    (fields.direction, fields.protocol) = (Some(direction), Some(protocol));
    rest.expect(b",\"ipver\":")?;
    rest.digits()?;
    rest.expect(b",\"pid\":")?;
    fields.values.pid = rest.number()?;
    rest.expect(b",\"tid\":")?;
    fields.values.tid = rest.number()?;
    rest.expect(b",\"comm\":")?;
    fields.values.comm = rest.name()?;
    rest.expect(b",\"saddr\":")?;
    fields.saddr = Some(rest.address()?);
    rest.expect(b",\"sport\":")?;
    fields.sport = rest.number()?;
    rest.expect(b",\"daddr\":")?;
    fields.daddr = Some(rest.address()?);
    rest.expect(b",\"dport\":")?;
    fields.dport = rest.number()?;
    rest.expect(b",\"len\":")?;
    fields.len = rest.number()?;
    rest.expect(b",\"seq\":")?;
    fields.values.seq = rest.number()?;
    rest.expect(b",\"segs\":")?;
    fields.values.segs = rest.number()?;
    for place in crossed(direction, protocol) {
        rest.expect(b",\"")?;
        rest.expect(STAGES[place].field.as_bytes())?;
        rest.expect(b"\":")?;
        fields.times[place] = rest.number()?;
    }
    rest.expect(b",\"total_ns\":")?;
    fields.values.total_ns = rest.number()?;
    rest.expect(b",\"ifname\":")?;
    fields.values.ifname = rest.name()?;
    rest.expect(b",\"netns\":")?;
    fields.values.netns = rest.number()?;
    rest.expect(b",\"mark\":")?;
    fields.values.mark = rest.number()?;
    rest.expect(b",\"cpu\":")?;
    fields.values.cpu = rest.number()?;
    rest.expect(b",\"flags\":[")?;
    if rest.expect(b"]").is_none() {
        fields.values.flags.add(rest.text()?);
        while rest.expect(b"]").is_none() {
            rest.expect(b",")?;
            fields.values.flags.add(rest.text()?);
        }
    }
    rest.expect(b",\"first_send_age_ns\":")?;
    fields.values.first_send_age_ns = rest.number()?;
    rest.expect(b",\"last_drv_ip_ns\":")?;
    fields.values.last_drv_ip_ns = rest.number()?;
    rest.expect(b",\"ns_pid\":")?;
    fields.values.ns_pid = rest.number()?;
    // Older versions wrote none.
    if rest.expect(b",\"process\":").is_some() {
        fields.values.process = rest.name()?;
    }
    if rest.expect(b",\"rtt_ns\":").is_some() {
        fields.values.rtt_ns = rest.number()?;
    }
    if rest.expect(b",\"dsacks\":").is_some() {
        fields.values.dsacks = rest.number()?;
    }
    if rest.expect(b",\"netns_name\":").is_some() {
        fields.values.netns_name = rest.name()?;
    }
    if rest.expect(b",\"container\":").is_some() {
        fields.values.container = rest.name()?;
    }
    (rest.0 == b"}").then_some(fields)
}

/// What has not been read yet of a line.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    /// Passes over `text`, if it is next.
    #[inline(always)]
    fn expect(&mut self, text: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(text)?;
        Some(())
    }

    /// A string without escapes, all of it ASCII that can be printed.
    #[inline]
    fn text(&mut self) -> Option<&'a str> {
        self.expect(b"\"")?;
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        let len = self.0.iter().take_while(|byte| is_plain(byte)).count();
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        self.expect(b"\"")?;
        // SAFETY: each of its bytes is ASCII.
        Some(unsafe { str::from_utf8_unchecked(text) })
    }

    #[inline]
    fn name(&mut self) -> Option<Option<Cow<'a, str>>> {
        if self.expect(b"null").is_some() {
            return Some(None);
        }
        Some(Some(Cow::Borrowed(self.text()?)))
    }

    /// A number, `None` for `null`.
    #[inline(always)]
    fn number<T: TryFrom<u64>>(&mut self) -> Option<Option<T>> {
        if self.expect(b"null").is_some() {
            return Some(None);
        }
        Some(Some(self.digits()?.try_into().ok()?))
    }

    /// Decimal digits, without zeros in front: JSON has none.
    #[inline(always)]
    fn digits(&mut self) -> Option<u64> {
        /// So many always fit.
        const MOST: usize = 19;
        let mut number = 0;
        let mut len = 0;
        while let Some(byte @ b'0'..=b'9') = self.0.get(len) {
            if len == MOST {
                return None;
            }
            number = number * 10 + u64::from(byte - b'0');
            len += 1;
        }
        if len == 0 || (len > 1 && self.0[0] == b'0') {
            return None;
        }
        self.0 = &self.0[len..];
        Some(number)
    }

    #[inline]
    fn address(&mut self) -> Option<IpAddr> {
        let before = self.0;
        if let Some(address) = self.v4() {
            return Some(address.into());
        }
        self.0 = before;
        self.text()?.parse().ok()
    }

    #[inline]
    fn v4(&mut self) -> Option<Ipv4Addr> {
        self.expect(b"\"")?;
        let mut octets = [0; 4];
        for (place, octet) in octets.iter_mut().enumerate() {
            if place > 0 {
                self.expect(b".")?;
            }
            *octet = self.digits()?.try_into().ok()?;
        }
        self.expect(b"\"")?;
        Some(octets.into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        clock::Zone,
        output::{
            Options, Writer,
            tests::{any_name, any_place, any_record},
        },
        packet::event::{
            Event,
            fixtures::{WALL_NS, incoming, outgoing, udp, v6},
        },
        request::Format,
        source::log::json,
    };

    fn line(event: &Event<'_>) -> Vec<u8> {
        let mut line = Vec::new();
        let options = Options { zone: Zone::UTC, details: false, colour: false };
        Writer::new(Format::Json, &options).write(event, &mut line);
        line.pop();
        line
    }

    /// The same as the parser of any JSON reads, if it reads it at all.
    fn check(line: &[u8]) -> Result<(), TestCaseError> {
        if let Some(fields) = read(line) {
            let expected = json::read_any(line);
            prop_assert_eq!(Ok(fields), expected, "{}", String::from_utf8_lossy(line));
        }
        Ok(())
    }

    #[test]
    fn our_lines_are_read() {
        for record in [incoming(), v6(outgoing()), udp(incoming()), udp(v6(outgoing()))] {
            let event = Event::new(&record, WALL_NS, Some(b"eth0"));
            let line = line(&event.with_place(Some(b"shop/web-7d9f"), Some(b"0123456789ab")));
            assert!(read(&line).is_some(), "{}", String::from_utf8_lossy(&line));
            check(&line).expect("the same");
        }
    }

    #[test]
    fn numbers_that_json_refuses_are_refused() {
        let line = String::from_utf8(line(&Event::new(&incoming(), WALL_NS, None))).expect("UTF-8");
        for other in
            ["01", "-1", "1.5", "1e3", "18446744073709551616", "99999999999999999999", "", "4294967296"]
        {
            let other = line.replace("\"len\":1448", &format!("\"len\":{other}"));
            assert_ne!(other, line);
            assert_eq!(read(other.as_bytes()), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn any_line_of_ours_reads_as_json(record in any_record(), ifname in any_name(), is_udp: bool, (netns_name, container) in any_place()) {
            let record = if is_udp { udp(record) } else { record };
            let place = (netns_name.as_deref(), container.as_deref().map(str::as_bytes));
            check(&line(&Event::new(&record, WALL_NS, Some(&ifname)).with_place(place.0, place.1)))?;
        }

        /// Damaged in one place.
        #[test]
        fn any_other_line_reads_as_json_or_not(place: prop::sample::Index, byte: u8, is_cut: bool) {
            let mut line = line(&Event::new(&incoming(), WALL_NS, Some(b"eth0")));
            let place = place.index(line.len());
            if is_cut {
                line.remove(place);
            } else {
                line[place] = byte;
            }
            check(&line)?;
        }
    }
}

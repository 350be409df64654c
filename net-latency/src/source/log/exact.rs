//! A line of JSON just as the stream writes it: its fields in its order, no blanks between them, no escapes. Nearly all are,
//! and so are read in a third of the time. What differs in anything is for the parser of any [`json`](super::json).

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr},
};

use super::fields::{Fields, InOrder, Values};
use crate::packet::stages::Stage;

/// The fields of a line; `None` for one that has to be read otherwise, whatever it is.
///
/// Inlined, as what it is for is: they are written where they are read then, and not handed on from function to function.
#[inline(always)]
pub(super) fn read(line: &[u8]) -> Option<Fields<'_>> {
    let mut rest = Rest(line.strip_prefix(b"{")?);
    rest.expect(b"\"ts\":")?;
    let ts = rest.text().ok()?;
    let mut fields = Fields::read(&mut rest).ok()?;
    // One that comes twice is no line of ours.
    (rest.0 == b"}" && fields.ts.is_none()).then_some(())?;
    fields.ts = ts;
    Some(fields)
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
    fn string(&mut self) -> Option<&'a str> {
        self.expect(b"\"")?;
        let is_plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
        let len = self.0.iter().take_while(|byte| is_plain(byte)).count();
        let (text, rest) = self.0.split_at(len);
        self.0 = rest;
        self.expect(b"\"")?;
        // SAFETY: each of its bytes is ASCII.
        Some(unsafe { str::from_utf8_unchecked(text) })
    }

    /// What `read` reads, `None` for `null`.
    #[inline(always)]
    fn known<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.expect(b"null").is_some() {
            return Some(None);
        }
        read(self).map(Some)
    }

    /// Decimal digits, without zeros in front: JSON has none.
    #[inline(always)]
    fn digits(&mut self) -> Option<u64> {
        /// N always fit.
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
    fn ip(&mut self) -> Option<IpAddr> {
        let before = self.0;
        if let Some(address) = self.v4() {
            return Some(address.into());
        }
        self.0 = before;
        self.string()?.parse().ok()
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

/// On an error the parser of any JSON says what is wrong.
impl<'a> Values<'a> for Rest<'a> {
    type Error = ();

    fn wrong(&self) {}

    #[inline(always)]
    fn number(&mut self, most: u64) -> Result<Option<u64>, ()> {
        if self.expect(b"null").is_some() {
            return Ok(None);
        }
        match self.digits() {
            Some(number) if number <= most => Ok(Some(number)),
            _ => Err(()),
        }
    }

    #[inline]
    fn text(&mut self) -> Result<Option<Cow<'a, str>>, ()> {
        self.known(|rest| rest.string().map(Cow::Borrowed)).ok_or(())
    }

    #[inline]
    fn address(&mut self) -> Result<Option<IpAddr>, ()> {
        self.known(Self::ip).ok_or(())
    }

    #[inline]
    fn words(&mut self, mut take: impl FnMut(&str)) -> Result<(), ()> {
        self.expect(b"[").ok_or(())?;
        if self.expect(b"]").is_none() {
            take(self.string().ok_or(())?);
            while self.expect(b"]").is_none() {
                self.expect(b",").ok_or(())?;
                take(self.string().ok_or(())?);
            }
        }
        Ok(())
    }
}

impl<'a> InOrder<'a> for Rest<'a> {
    #[inline(always)]
    fn is_next(&mut self, key: &'static str) -> bool {
        self.expect(key.as_bytes()).is_some()
    }

    #[inline(always)]
    fn is_stage_next(&mut self, stage: &Stage) -> bool {
        let field = stage.field.as_bytes();
        // Its first letter tells it from what comes in place of it.
        if self.0.get(2) != field.first() {
            return false;
        }
        let rest =
            self.0.strip_prefix(b",\"").and_then(|rest| rest.strip_prefix(field)?.strip_prefix(b"\":"));
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
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

    /// It reads what the parser of any JSON reads, if it reads the line at all.
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

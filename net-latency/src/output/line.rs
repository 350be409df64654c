//! A line as it grows, where it is to stay: what all forms write with. Pieces of text are copied at a fixed size and numbers
//! eight digits at a time, which takes a few instructions for each and no call.

use std::{
    io::{self, Write},
    mem::MaybeUninit,
    net::{IpAddr, Ipv4Addr},
};

use net_latency_common::COMM_LEN;

use super::LONGEST_LINE;
use crate::clock::{TimeStyle, TimeText, Zone};

/// A piece of text in room of a fixed size, all of which is copied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<const ROOM: usize> {
    pub(super) bytes: [u8; ROOM],
    pub(super) len: usize,
}

impl<const ROOM: usize> Piece<ROOM> {
    pub(super) const EMPTY: Self = Self { bytes: [0; ROOM], len: 0 };

    pub(super) const fn new(text: &str, end: &str) -> Self {
        Self::of([text.as_bytes(), end.as_bytes(), b""])
    }

    pub(super) const fn of(parts: [&[u8]; 3]) -> Self {
        let (mut bytes, mut len, mut part) = ([0; ROOM], 0, 0);
        while part < parts.len() {
            let (_, rest) = bytes.split_at_mut(len);
            rest.split_at_mut(parts[part].len()).0.copy_from_slice(parts[part]);
            len += parts[part].len();
            part += 1;
        }
        Self { bytes, len }
    }
}

/// No piece has more room.
const LONGEST_PIECE: usize = 128;
/// Where pieces may begin. A power of two, so that a place is brought below it by one instruction, where comparing and branching
/// take four; no line is as long.
const PLACES: usize = LONGEST_LINE - LONGEST_PIECE;

const _: () = assert!(PLACES.is_power_of_two());

/// See the head of this module. No line, with the bytes copied beyond its end for a moment, is longer than [`LONGEST_LINE`].
pub(crate) struct Line<'a> {
    bytes: &'a mut [MaybeUninit<u8>; LONGEST_LINE],
    /// N of them are written.
    len: usize,
}

impl Line<'_> {
    /// Appends what `write` writes to `out`. Allocates nothing as long as that has room for [`LONGEST_LINE`].
    #[inline(always)]
    pub(crate) fn append(out: &mut Vec<u8>, write: impl FnOnce(&mut Line<'_>)) {
        out.reserve(LONGEST_LINE);
        let bytes = out.spare_capacity_mut().first_chunk_mut().expect("room was made");
        let mut line = Line { bytes, len: 0 };
        write(&mut line);
        let len = line.len;
        assert!(len <= PLACES, "a line is too long");
        // SAFETY: room was made for more, and this part of it is written: `len` grows only by the bytes that are written.
        unsafe { out.set_len(out.len() + len) };
    }

    #[inline(always)]
    pub(super) fn put<const ROOM: usize>(&mut self, piece: &Piece<ROOM>) {
        const { assert!(ROOM <= LONGEST_PIECE) };
        let place = self.len % PLACES;
        self.bytes[place..place + ROOM].write_copy_of_slice(&piece.bytes);
        self.len += piece.len;
    }

    /// Bytes so far.
    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub(crate) fn put_slice(&mut self, text: &[u8]) {
        self.bytes[self.len..self.len + text.len()].write_copy_of_slice(text);
        self.len += text.len();
    }

    /// N spaces, of which there is room for 24.
    #[inline(always)]
    pub(crate) fn put_spaces(&mut self, count: usize) {
        self.put(&Piece { bytes: [b' '; 24], len: count.min(24) });
    }

    #[inline(always)]
    pub(crate) fn put_byte(&mut self, byte: u8) {
        self.bytes[self.len % PLACES].write(byte);
        self.len += 1;
    }

    /// A name of a task or a device, if it is ASCII that can be printed and has none of the `special` bytes. Tells whether.
    #[inline(always)]
    pub(crate) fn put_plain<const SPECIAL: usize>(&mut self, name: &[u8], special: &[u8; SPECIAL]) -> bool {
        if name.len() > COMM_LEN {
            return false;
        }
        let mut bytes = [b'x'; COMM_LEN];
        bytes[..name.len()].copy_from_slice(name);
        // All bytes at once.
        let word = u128::from_le_bytes(bytes);
        let mut found = word | has_below(word, b' ') | has(word, 0x7f);
        for byte in special {
            found |= has(word, *byte);
        }
        let is_plain = found & every(0x80) == 0;
        if is_plain {
            self.put(&Piece { bytes, len: name.len() });
        }
        is_plain
    }

    /// In place of the first byte, of which there is one.
    #[inline(always)]
    pub(super) fn begin_with(&mut self, byte: u8) {
        self.bytes[0].write(byte);
    }

    /// Takes N bytes away again, which were put last.
    #[inline(always)]
    pub(super) fn take_back(&mut self, count: usize) {
        self.len -= count;
    }

    /// A number in decimal.
    #[inline(always)]
    pub(crate) fn put_number(&mut self, number: u64) {
        if number < 10 {
            self.put_byte(b'0' + number as u8);
        } else if number < EIGHT_DIGITS {
            self.put_short(number);
        } else {
            self.put_long(number);
        }
    }

    /// A number from 1 on, of at most eight digits.
    #[inline(always)]
    fn put_short(&mut self, number: u64) {
        let digits = digits(number);
        let zeros = digits.trailing_zeros() / 8;
        let text = (digits | ZEROS) >> (zeros * 8);
        self.put(&Piece { bytes: text.to_le_bytes(), len: 8 - zeros as usize });
    }

    fn put_long(&mut self, number: u64) {
        let (high, low) = (number / EIGHT_DIGITS, number % EIGHT_DIGITS);
        self.put_number(high);
        self.put(&Piece { bytes: (digits(low) | ZEROS).to_le_bytes(), len: 8 });
    }

    /// Nine digits behind a point: a part of a second, in ns.
    #[inline(always)]
    fn put_fraction(&mut self, ns: u64) {
        let mut bytes = [b'.'; 10];
        bytes[1..9].copy_from_slice(&(digits(ns / 10) | ZEROS).to_le_bytes());
        bytes[9] = b'0' + (ns % 10) as u8;
        self.put(&Piece { bytes, len: 10 });
    }

    #[inline(always)]
    pub(super) fn put_address(&mut self, address: IpAddr, kept: &mut Addresses) {
        match address {
            IpAddr::V4(address) => self.put_address_v4(address),
            IpAddr::V6(address) => self.put(kept.text(address.octets())),
        }
    }

    #[inline(always)]
    pub(crate) fn put_address_v4(&mut self, address: Ipv4Addr) {
        for octet in address.octets() {
            self.put(&OCTETS[usize::from(octet)]);
        }
        // The last dot.
        self.take_back(1);
    }
}

impl Write for Line<'_> {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.put_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// This byte in all places.
const fn every(byte: u8) -> u128 {
    u128::from_ne_bytes([byte; COMM_LEN])
}

/// Has the high bit of some byte if one of the word is below `least`, which is no more than 0x80; of bytes from 0x80 on that
/// says nothing.
const fn has_below(word: u128, least: u8) -> u128 {
    // The first byte that is less borrows, and no one before it.
    word.wrapping_sub(every(least)) & !word & every(0x80)
}

/// Has the high bit of some byte if one of the word is `byte`.
const fn has(word: u128, byte: u8) -> u128 {
    has_below(word ^ every(byte), 1)
}

const EIGHT_DIGITS: u64 = 100_000_000;
/// `00000000`
const ZEROS: u64 = u64::from_le_bytes([b'0'; 8]);

/// The eight digits of a number below [`EIGHT_DIGITS`], the first in the lowest byte. All are divided at once: into halves,
/// quarters, and single digits.
#[inline(always)]
const fn digits(number: u64) -> u64 {
    let halves = (number / 10_000) | ((number % 10_000) << 32);
    // A number below 10,000 times 10,486 / 2^20, rounded down, is a hundredth of it.
    let hundreds = ((halves * 10_486) >> 20) & 0x0000_007f_0000_007f;
    let quarters = hundreds | (halves - hundreds * 100) << 16;
    // Each remainder below 100 split into tens likewise.
    let tens = ((quarters * 103) >> 10) & 0x000f_000f_000f_000f;
    tens | (quarters - tens * 10) << 8
}

/// Each number of an IPv4 address, with a dot.
static OCTETS: [Piece<4>; 256] = octets();

const fn octets() -> [Piece<4>; 256] {
    let mut octets = [Piece::EMPTY; 256];
    let mut octet = 0;
    while octet < octets.len() {
        let digits = [b'0' + (octet / 100) as u8, b'0' + (octet / 10 % 10) as u8, b'0' + (octet % 10) as u8];
        let (_, digits) = digits.split_at(match octet {
            0..10 => 2,
            10..100 => 1,
            _ => 0,
        });
        octets[octet] = Piece::of([digits, b".", b""]);
        octet += 1;
    }
    octets
}

/// IPv6 addresses whose text is kept: making it takes as long as the rest of a line.
const ADDRESSES: usize = 64;

/// Texts of IPv6 addresses by a mixture of their bits.
#[derive(Debug)]
pub(super) struct Addresses(Box<[([u8; 16], Piece<40>); ADDRESSES]>);

impl Addresses {
    pub(super) fn new() -> Self {
        // An empty text is none of the address ::.
        Self(Box::new([([0; 16], Piece::EMPTY); ADDRESSES]))
    }

    #[inline]
    fn text(&mut self, octets: [u8; 16]) -> &Piece<40> {
        let bits = u128::from_ne_bytes(octets);
        let mixed = ((bits >> 64) as u64 ^ bits as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (kept, text) = &mut self.0[(mixed >> 58) as usize];
        if *kept != octets || text.len == 0 {
            *kept = octets;
            *text = render(octets);
        }
        text
    }
}

#[cold]
fn render(octets: [u8; 16]) -> Piece<40> {
    let mut piece = Piece::EMPTY;
    let mut rest = &mut piece.bytes[..];
    write!(rest, "{}", IpAddr::from(octets)).expect("an address has 39 characters at most");
    let left = rest.len();
    piece.len = piece.bytes.len() - left;
    piece
}

/// Times as JSON and CSV show them, of which the text of the last second is kept.
#[derive(Debug)]
pub(super) struct Timestamps {
    time: TimeText,
    /// Up to whole seconds, and what follows their fraction.
    head: Piece<24>,
    tail: Piece<8>,
}

impl Timestamps {
    pub(super) fn new(zone: Zone) -> Self {
        Self { time: TimeText::new(zone, TimeStyle::Rfc3339), head: Piece::EMPTY, tail: Piece::EMPTY }
    }

    #[inline(always)]
    pub(super) fn put(&mut self, wall_ns: i64, line: &mut Line<'_>) {
        let Self { time, head, tail } = self;
        if !time.is_kept(wall_ns) {
            let [before, after] = time.around_fraction(wall_ns);
            (*head, *tail) = (Piece::new(before, ""), Piece::new(after, ""));
        }
        line.put(head);
        line.put_fraction(wall_ns.rem_euclid(1_000_000_000).unsigned_abs());
        line.put(tail);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use proptest::prelude::*;

    use super::*;

    fn written(write: impl FnOnce(&mut Line<'_>)) -> String {
        let mut out = Vec::new();
        Line::append(&mut out, write);
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn numbers_of_each_length() {
        let powers = (0..20).map(|power| 10u64.pow(power));
        for number in powers.flat_map(|power| [power - 1, power, power + 1]).chain([u64::MAX]) {
            assert_eq!(written(|line| line.put_number(number)), number.to_string());
        }
        assert_eq!(written(|line| line.put_fraction(7)), ".000000007");
        assert_eq!(written(|line| line.put_fraction(999_999_999)), ".999999999");
    }

    #[test]
    fn every_pair_of_digits_is_its_own() {
        for number in 0..10_000 {
            assert_eq!((digits(number) | ZEROS).to_le_bytes(), *format!("{number:08}").as_bytes());
            let high = number * 10_000 + 9_999;
            assert_eq!((digits(high) | ZEROS).to_le_bytes(), *format!("{high:08}").as_bytes());
        }
    }

    #[test]
    fn one_byte_that_is_not_plain_is_found_in_any_place() {
        for byte in 0..=255u8 {
            let is_plain = matches!(byte, b' '..=b'~') && byte != b',';
            for (len, place) in (1..=COMM_LEN).flat_map(|len| (0..len).map(move |place| (len, place))) {
                for other in [b'a', b'~', b' ', b'-'] {
                    let mut name = [other; COMM_LEN];
                    name[place] = byte;
                    let mut found = false;
                    let text = written(|line| found = line.put_plain(&name[..len], b","));
                    assert_eq!(found, is_plain, "{byte}");
                    assert_eq!(text.as_bytes(), if is_plain { &name[..len] } else { b"" });
                }
            }
        }
        assert!(!written(|line| assert!(!line.put_plain(&[b'a'; 17], b","))).contains('a'));
    }

    #[test]
    fn a_kept_address_is_never_another_one() {
        let mut kept = Addresses::new();
        let addresses: Vec<_> = (0..4 * ADDRESSES as u128).map(|bits| Ipv6Addr::from(bits << 17)).collect();
        for address in addresses.iter().chain(addresses.iter().rev()) {
            let text = written(|line| line.put_address((*address).into(), &mut kept));
            assert_eq!(text, address.to_string());
        }
    }

    proptest! {
        #[test]
        fn any_number_reads_as_it_is(number: u64, shift in 0..64u32) {
            let number = number >> shift;
            prop_assert_eq!(written(|line| line.put_number(number)), number.to_string());
        }

        #[test]
        fn any_address_reads_as_it_is(octets: [u8; 16], mask: u16, v4: [u8; 4]) {
            // With zeros, which are left out.
            let octets = std::array::from_fn(|place| if mask >> place & 1 == 0 { 0 } else { octets[place] });
            let mut kept = Addresses::new();
            for address in [IpAddr::V6(Ipv6Addr::from(octets)), IpAddr::V4(Ipv4Addr::from(v4))] {
                for _ in 0..2 {
                    let text = written(|line| line.put_address(address, &mut kept));
                    prop_assert_eq!(text, address.to_string());
                }
            }
        }
    }
}

//! Packets for Wireshark: pcapng (draft-ietf-opsawg-pcapng-05), a block for each packet.
//!
//! What a block holds as the packet are its headers, made from the record: IP without a link layer, then TCP or UDP, and no
//! payload. Addresses, ports, sequence number and lengths are the packet's. What no record has is what Wireshark says nothing about:
//! no flag of TCP is set, its acknowledgement number is 0, its window is full, the hop limit is 64, and no checksum of TCP is right.
//! Times and the process stand in the packet's comment.

use std::{collections::HashMap, net::IpAddr};

use foldhash::fast::RandomState;
use net_latency_common::{COMM_LEN, Direction};

use crate::{
    escape::write_name,
    packet::{
        event::{Event, PARTS, Protocol},
        stages::{FINE_STAGES, columns, split},
    },
};

// Section 4 of the draft: types of blocks, and of their options.
const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;
const OPTIONS_END: u16 = 0;
const COMMENT: u16 = 1;
const SECTION_PROGRAM: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_DESCRIPTION: u16 = 3;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// LINKTYPE_RAW: IPv4 or IPv6, as the first four bits say.
const RAW_IP: u16 = 101;
/// Times are multiples of 10^-9 s.
const NANOSECONDS: u8 = 9;
/// A section that has described N interfaces is followed by another: others choose the names of devices.
const MOST_INTERFACES: usize = 1024;
const HOP_LIMIT: u8 = 64;
const WINDOW: u16 = u16::MAX;
const TCP_LEN: u16 = 20;
const UDP_LEN: u16 = 8;

/// A device in a network namespace.
type Interface = (u32, [u8; COMM_LEN]);

/// Writes sections: what they are, their interfaces when a packet first needs one, and packets.
#[derive(Debug, Default)]
pub(super) struct PcapngWriter {
    /// The numbers of the section's interfaces.
    interfaces: HashMap<Interface, u32, RandomState>,
    /// That of the last packet.
    last: Option<(Interface, u32)>,
}

impl PcapngWriter {
    /// Begins a section: of a file, or behind what it holds.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        self.interfaces.clear();
        self.last = None;
        block(SECTION, out, |out| {
            put_u32(BYTE_ORDER, out);
            // Version 1.0, and a length that is not known.
            out.extend_from_slice(&[1, 0, 0, 0]);
            out.extend_from_slice(&[0xff; 8]);
            let program = concat!("net-latency ", env!("CARGO_PKG_VERSION"));
            option(SECTION_PROGRAM, out, |out| out.extend_from_slice(program.as_bytes()));
            put_u32(OPTIONS_END.into(), out);
        });
    }

    pub(super) fn write(&mut self, event: &Event<'_>, out: &mut Vec<u8>) {
        let interface = self.interface(event, out);
        let transport = match event.protocol() {
            Protocol::Tcp => TCP_LEN,
            Protocol::Udp => UDP_LEN,
        };
        let network: u16 = if event.ip_version() == 4 { 20 } else { 40 };
        let captured = u32::from(network + transport);
        block(PACKET, out, |out| {
            put_u32(interface, out);
            let time = u64::try_from(event.wall_ns()).unwrap_or(0);
            put_u32((time >> 32) as u32, out);
            put_u32(time as u32, out);
            put_u32(captured, out);
            put_u32(captured.saturating_add(event.len()), out);
            // Both lengths are multiples of 4.
            put_network_header(event, transport, out);
            put_transport_header(event, out);
            option(COMMENT, out, |out| put_comment(event, out));
            let direction = match event.direction() {
                Direction::In => INBOUND,
                Direction::Out => OUTBOUND,
            };
            option(PACKET_FLAGS, out, |out| put_u32(direction, out));
            put_u32(OPTIONS_END.into(), out);
        });
    }

    /// The number of the packet's interface, which is described first if the section has not got it.
    fn interface(&mut self, event: &Event<'_>, out: &mut Vec<u8>) -> u32 {
        let mut name = [0; COMM_LEN];
        let known = event.ifname().unwrap_or_default();
        let len = known.len().min(COMM_LEN);
        name[..len].copy_from_slice(&known[..len]);
        let interface = (event.netns().unwrap_or(0), name);
        if let Some((last, number)) = self.last
            && last == interface
        {
            return number;
        }
        if self.interfaces.len() >= MOST_INTERFACES && !self.interfaces.contains_key(&interface) {
            self.begin(out);
        }
        let next = self.interfaces.len() as u32;
        let number = *self.interfaces.entry(interface).or_insert(next);
        if number == next {
            describe(event, out);
        }
        self.last = Some((interface, number));
        number
    }
}

/// Describes the interface of a packet.
fn describe(event: &Event<'_>, out: &mut Vec<u8>) {
    block(INTERFACE, out, |out| {
        out.extend_from_slice(&RAW_IP.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        // No limit on captured bytes.
        put_u32(0, out);
        if event.ifname().is_some() {
            option(INTERFACE_NAME, out, |out| write_name(event.ifname(), out));
        }
        if let Some(netns) = event.netns() {
            option(INTERFACE_DESCRIPTION, out, |out| {
                out.extend_from_slice(b"network namespace ");
                put_number(netns.into(), out);
                if event.netns_name().is_some() {
                    out.push(b' ');
                    write_name(event.netns_name(), out);
                }
            });
        }
        option(INTERFACE_RESOLUTION, out, |out| out.push(NANOSECONDS));
        put_u32(OPTIONS_END.into(), out);
    });
}

/// Appends a block of that type.
fn block(kind: u32, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    put_u32(kind, out);
    put_u32(0, out);
    body(out);
    let len = (out.len() - start + 4) as u32;
    put_u32(len, out);
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
}

/// Appends an option, filled up to a multiple of 4 bytes.
fn option(kind: u16, out: &mut Vec<u8>, value: impl FnOnce(&mut Vec<u8>)) {
    out.extend_from_slice(&kind.to_le_bytes());
    let start = out.len() + 2;
    out.extend_from_slice(&[0; 2]);
    value(out);
    // Names and numbers of a packet are far shorter.
    let len = u16::try_from(out.len() - start).expect("a short value");
    out[start - 2..start].copy_from_slice(&len.to_le_bytes());
    out.resize(start + usize::from(len).next_multiple_of(4), 0);
}

fn put_u32(number: u32, out: &mut Vec<u8>) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_number(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Length of a packet with such headers, or 0 where the field has no room for it, as Linux writes it of large packets.
fn total(headers: u16, event: &Event<'_>) -> u16 {
    u16::try_from(u32::from(headers).saturating_add(event.len())).unwrap_or(0)
}

/// IPv4 (RFC 791) or IPv6 (RFC 8200).
fn put_network_header(event: &Event<'_>, transport: u16, out: &mut Vec<u8>) {
    let protocol = event.record().protocol;
    match (event.saddr(), event.daddr()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let mut header = [0; 20];
            header[0] = 0x45;
            header[2..4].copy_from_slice(&total(20 + transport, event).to_be_bytes());
            (header[8], header[9]) = (HOP_LIMIT, protocol);
            header[12..16].copy_from_slice(&source.octets());
            header[16..].copy_from_slice(&destination.octets());
            let checksum = checksum(&header);
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
            out.extend_from_slice(&header);
        }
        // Both are of the record's family.
        (source, destination) => {
            let octets = |address| match address {
                IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
                IpAddr::V6(address) => address.octets(),
            };
            let mut header = [0; 40];
            header[0] = 0x60;
            header[4..6].copy_from_slice(&total(transport, event).to_be_bytes());
            (header[6], header[7]) = (protocol, HOP_LIMIT);
            header[8..24].copy_from_slice(&octets(source));
            header[24..].copy_from_slice(&octets(destination));
            out.extend_from_slice(&header);
        }
    }
}

/// RFC 1071.
fn checksum(header: &[u8; 20]) -> u16 {
    let (pairs, _) = header.as_chunks::<2>();
    let sum: u32 = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair))).sum();
    // Ten words carry less than 16 bits over, and that once.
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// TCP (RFC 9293) or UDP (RFC 768).
fn put_transport_header(event: &Event<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&event.sport().to_be_bytes());
    out.extend_from_slice(&event.dport().to_be_bytes());
    match event.protocol() {
        Protocol::Tcp => {
            out.extend_from_slice(&event.seq().unwrap_or(0).to_be_bytes());
            out.extend_from_slice(&[0, 0, 0, 0, 0x50, 0]);
            out.extend_from_slice(&WINDOW.to_be_bytes());
            out.extend_from_slice(&[0; 4]);
        }
        Protocol::Udp => {
            out.extend_from_slice(&total(UDP_LEN, event).to_be_bytes());
            // Over IPv4 there is none; over IPv6 there must be one, which can't be checked without the payload.
            let checksum: u16 = if event.ip_version() == 4 { 0 } else { u16::MAX };
            out.extend_from_slice(&checksum.to_be_bytes());
        }
    }
}

/// `drv-ip 41 us, ip-tcp 26 us, tcp-app 393 us; nginx, PID 143`, and flags behind that.
fn put_comment(event: &Event<'_>, out: &mut Vec<u8>) {
    let (direction, protocol) = (event.direction(), event.protocol());
    for (place, (name, time)) in columns(direction, protocol).into_iter().zip(event.stages()).enumerate() {
        put_time(if place == 0 { "" } else { ", " }, name, time, out);
    }
    if let Some(times) = event.parts() {
        put_parts(direction, protocol, &times, out);
    }
    out.extend_from_slice(b"; ");
    write_name(event.process(), out);
    out.extend_from_slice(b", PID ");
    match event.pid() {
        Some(pid) => put_number(pid.into(), out),
        None => out.push(b'-'),
    }
    for (place, flag) in event.flags().enumerate() {
        out.extend_from_slice(if place == 0 { b"; " } else { b", " });
        out.extend_from_slice(flag.as_bytes());
    }
}

/// Those of an incoming packet split its last stage; those of an outgoing one follow.
fn put_parts(direction: Direction, protocol: Protocol, times: &[Option<u64>; PARTS], out: &mut Vec<u8>) {
    let is_split = direction == Direction::In;
    let mut before = if is_split { " (" } else { ", " };
    for (place, time) in split(direction, protocol).into_iter().zip(times) {
        if let Some(place) = place {
            put_time(before, FINE_STAGES[place].column, *time, out);
            before = ", ";
        }
    }
    if is_split {
        out.push(b')');
    }
}

/// A stage's name and time, in whole microseconds as in text.
fn put_time(before: &str, name: &str, time: Option<u64>, out: &mut Vec<u8>) {
    out.extend_from_slice(before.as_bytes());
    out.extend_from_slice(name.as_bytes());
    match time {
        Some(ns) => {
            out.push(b' ');
            put_number(ns / 1000, out);
            out.extend_from_slice(b" us");
        }
        None => out.extend_from_slice(b" -"),
    }
}

/// The blocks of a buffer that ends with a whole one, and may begin within one.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// Bytes of the block that has begun before, and whether it is a packet.
    begun: (usize, bool),
}

impl Blocks {
    /// Where each block ends in `buffer`, and whether it is a packet.
    fn ends(&self, buffer: &[u8]) -> impl Iterator<Item = (usize, bool)> {
        let (mut next, _) = self.begun;
        let first = Some(self.begun).filter(|(end, _)| *end > 0);
        let others = std::iter::from_fn(move || {
            let [kind, len] = *buffer.get(next..)?.as_chunks::<4>().0.first_chunk()?;
            next += u32::from_le_bytes(len) as usize;
            Some((next, u32::from_le_bytes(kind) == PACKET))
        });
        first.into_iter().chain(others)
    }

    /// How many packets are not whole in the first `written` bytes.
    pub(super) fn left(&self, buffer: &[u8], written: usize) -> usize {
        self.ends(buffer).filter(|(end, is_packet)| *end > written && *is_packet).count()
    }

    /// How many bytes of the first `written` belong to whole blocks.
    pub(super) fn whole(&self, buffer: &[u8], written: usize) -> usize {
        self.ends(buffer).map(|(end, _)| end).take_while(|end| *end <= written).last().unwrap_or(0)
    }

    /// The first `written` bytes are to be taken off.
    pub(super) fn take(&mut self, buffer: &[u8], written: usize) {
        let next = self.ends(buffer).find(|(end, _)| *end > written);
        self.begun = next.map_or((0, false), |(end, is_packet)| (end - written, is_packet));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Zone,
        output::{Options, Writer, tests::any_record},
        packet::event::fixtures::{WALL_NS, incoming, outgoing, udp, v6},
        request::Format,
    };
    use net_latency_common::PacketRecord;
    use proptest::prelude::*;

    fn file<'a>(events: impl IntoIterator<Item = Event<'a>>) -> Vec<u8> {
        let options = Options { zone: Zone::UTC, details: false, colour: false };
        let mut writer = Writer::new(Format::Pcapng, &options);
        let mut out = Vec::new();
        writer.begin(&mut out);
        events.into_iter().for_each(|event| writer.write(&event, &mut out));
        out
    }

    /// Types and bodies of blocks, whose lengths agree.
    fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
        let mut blocks = Vec::new();
        while let Some((head, _)) = file.split_first_chunk::<8>() {
            let [kind, len] = [0, 4].map(|at| u32::from_le_bytes(head[at..at + 4].try_into().expect("four")));
            let (block, rest) = file.split_at(len as usize);
            assert!(len % 4 == 0 && block.ends_with(&len.to_le_bytes()));
            blocks.push((kind, &block[8..block.len() - 4]));
            file = rest;
        }
        assert!(file.is_empty());
        blocks
    }

    #[test]
    fn each_interface_is_described_once_before_its_packets() {
        let (one, other) = (incoming(), PacketRecord { netns: 7, ..outgoing() });
        let event = |record, name| Event::new(record, WALL_NS, name);
        let file = file([
            event(&one, Some(b"eth0")),
            event(&other, Some(b"eth0")),
            event(&one, Some(b"eth0")),
            event(&one, None),
        ]);
        let blocks = blocks(&file);
        let kinds: Vec<_> = blocks.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [SECTION, INTERFACE, PACKET, INTERFACE, PACKET, PACKET, INTERFACE, PACKET]);
        let numbers: Vec<_> =
            blocks.iter().filter(|(kind, _)| *kind == PACKET).map(|(_, body)| body[0]).collect();
        assert_eq!(numbers, [0, 1, 0, 2]);
    }

    #[test]
    fn headers_are_the_packet_s() {
        let record = incoming();
        let packet = &file([Event::new(&record, WALL_NS, None)]);
        let (_, body) = blocks(packet)[2];
        assert_eq!(body[12..20], [40, 0, 0, 0, 0xd0, 5, 0, 0], "40 of 1488 bytes");
        let ip = &body[20..40];
        assert_eq!(checksum(ip.try_into().expect("a header")), 0, "with its own checksum the sum is nothing");
        assert_eq!(ip[12..], [192, 0, 2, 7, 198, 51, 100, 20]);
        assert_eq!(body[40..48], [0x01, 0xbb, 0xc8, 0x7c, 0xee, 0x6b, 0x28, 0x7b]);
        let comment = String::from_utf8_lossy(&body[60..]);
        assert!(
            comment.contains("drv-ip 23 us, ip-tcp 34 us, tcp-app 189 us; firefox, PID 19550"),
            "{comment}"
        );
        // A length larger than the field is written as by Linux.
        let large = udp(v6(PacketRecord { len: 70_000, ..incoming() }));
        let packet = &file([Event::new(&large, WALL_NS, None)]);
        let (_, body) = blocks(packet)[2];
        assert_eq!((&body[16..20], &body[24..26]), (&70_048_u32.to_le_bytes()[..], &[0, 0][..]));
    }

    #[test]
    fn sections_end_before_their_interfaces_are_too_many() {
        let records: Vec<_> =
            (0..=MOST_INTERFACES as u32).map(|netns| PacketRecord { netns, ..incoming() }).collect();
        let file = file(records.iter().map(|record| Event::new(record, WALL_NS, None)));
        assert_eq!(blocks(&file).iter().filter(|(kind, _)| *kind == SECTION).count(), 2);
    }

    proptest! {
        #[test]
        fn any_packet_is_a_block(records in proptest::collection::vec(any_record(), 1..8), cut in any::<proptest::sample::Index>()) {
            let file = file(records.iter().map(|record| Event::new(record, WALL_NS, Some(b"a\x1bb"))));
            let all = blocks(&file);
            prop_assert_eq!(all.iter().filter(|(kind, _)| *kind == PACKET).count(), records.len());
            // However it is cut, the rest is counted from there.
            let written = cut.index(file.len() + 1);
            let mut counted = Blocks::default();
            let whole = counted.whole(&file, written);
            let left = counted.left(&file, written);
            prop_assert_eq!(blocks(&file[..whole]).iter().filter(|(kind, _)| *kind == PACKET).count() + left, records.len());
            counted.take(&file, written);
            prop_assert_eq!(counted.left(&file[written..], 0), left);
            prop_assert_eq!(counted.whole(&file[written..], file.len() - written), file.len() - written);
        }
    }
}

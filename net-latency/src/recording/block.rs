//! A block: N packets, packed, with a checksum. They follow each other as they came: who reads them puts them in order.
//!
//! Each packet is what differs from the last one of its connection and direction (a [`Slot`]) in the kernel side's own record: its fields
//! are made of it where it is read. What it is looked up by is no part of the form, since a packet names its slot: where two connections
//! have one, more differs.
//!
//! | bytes | what |
//! |---|---|
//! | 2 | the slot, in the lower 11 bits; [`BESIDE`], [`FINE`], [`CHANGED`]; and what it is in the upper 2: [`SHORT`], [`LONG`], [`CLOCK`], [`NAMES`] |
//! | 8, or 4 numbers | how much later than the packet before it was finished, and the times between its stamps, the last of them first |
//! | a number | with [`BESIDE`]: how much earlier than at the transport its other stamp is |
//! | a number; … | with [`CHANGED`]: a bit for each word that differs, in the order of [`WORDS_BY_BIT`]; and by how much each of them does |
//! | 4 numbers | with [`FINE`]: its parts |
//! | a number; 3 numbers | likewise, if it goes out: how long it took to serve it, 0 if it is no answer's beginning; where that is known, the rest of [`Served`] |
//!
//! A number has one to nine bytes ([`Out::put`]). A clock has a number: by how much the clock on the wall is at another distance from here on.
//! Names are a number and three texts ([`Found::write`]).

use std::{collections::HashMap, mem, mem::offset_of, ptr, rc::Rc};

use flate2::Crc;
use foldhash::fast::RandomState;
use net_latency_common::{
    COMM_LEN, Direction, IPPROTO_TCP, PART_FINISHED, PARTS, PacketRecord, STAMP_TRANSPORT, Served, part,
};

use crate::{
    clock::Clock,
    packet::event::{Found, direction_of, from_display_order, in_display_order},
};

/// Bytes of a block, at most. A connection's first packet is written in full in each block, so that smaller ones take more room.
const ROOM: usize = 256 << 10;
/// Bytes of a packet, or of names, at most.
const LONGEST: usize = 1 << 10;

/// Packed packets.
#[derive(Debug)]
pub struct Block {
    /// How many.
    pub(crate) rows: u32,
    /// What they are.
    pub(crate) bytes: Box<[u8]>,
}

impl Block {
    /// Bytes of memory that it takes.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + self.bytes.len()
    }

    /// The head of it in a file: packets, bytes, and a checksum (CRC-32) of all.
    pub(crate) fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&self.rows.to_le_bytes());
        head[4..8].copy_from_slice(&(self.bytes.len() as u32).to_le_bytes());
        let mut checksum = Crc::new();
        checksum.update(&head[..8]);
        checksum.update(&self.bytes);
        head[8..].copy_from_slice(&checksum.sum().to_le_bytes());
        head
    }

    /// How many bytes follow a head; `None` if no block is that long.
    pub(crate) fn following(head: &[u8; HEAD]) -> Option<usize> {
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        (len <= ROOM).then_some(len)
    }

    /// The block with this head; `None` if its checksum is another.
    pub(crate) fn with_head(head: &[u8; HEAD], bytes: Box<[u8]>) -> Option<Self> {
        let rows = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
        Some(Self { rows, bytes }).filter(|block| block.head() == *head)
    }
}

/// Bytes of a block's head in a file.
pub(crate) const HEAD: usize = 12;

/// Words of a record.
const ALL: usize = size_of::<PacketRecord>() / 4;
/// The first of them that are packed as such: before it are stamps.
const FIRST: usize = offset_of!(PacketRecord, saddr) / 4;
/// How many they are. More of them come behind these, with another version of the file.
const WORDS: usize = ALL - FIRST;

/// The word that a field is in.
const fn word(offset: usize) -> usize {
    offset / 4 - FIRST
}

const LEN: usize = word(offset_of!(PacketRecord, len));
const SEQ: usize = word(offset_of!(PacketRecord, seq));
/// Words that differ more often than others: theirs are the bits that make the smallest numbers.
const OFTEN: [usize; 7] = [
    word(offset_of!(PacketRecord, rtt_or_holder)),
    LEN,
    SEQ,
    word(offset_of!(PacketRecord, cpu)),
    word(offset_of!(PacketRecord, tid)),
    word(offset_of!(PacketRecord, flags)),
    word(offset_of!(PacketRecord, dsacks)),
];
/// The bit of the number of names, which is no word of the record.
const NAMED: u32 = 1 << OFTEN.len();
/// The word that each bit stands for.
const WORDS_BY_BIT: [usize; WORDS + 1] = {
    let mut words = [WORDS; WORDS + 1];
    let (mut bit, mut next) = (0, 0);
    while bit < OFTEN.len() {
        words[bit] = OFTEN[bit];
        bit += 1;
    }
    while next < WORDS {
        let mut place = 0;
        while place < OFTEN.len() && OFTEN[place] != next {
            place += 1;
        }
        if place == OFTEN.len() {
            bit += 1;
            words[bit] = next;
        }
        next += 1;
    }
    words
};
/// The bit that stands for each word.
const BITS: [u32; WORDS] = {
    let mut bits = [0; WORDS];
    let mut bit = 0;
    while bit <= WORDS {
        if WORDS_BY_BIT[bit] < WORDS {
            bits[WORDS_BY_BIT[bit]] = 1 << bit;
        }
        bit += 1;
    }
    bits
};
/// The words that names are found by.
const NAMED_BY: u32 = {
    let process = word(offset_of!(PacketRecord, process));
    let mut bits = BITS[word(offset_of!(PacketRecord, pid))]
        | BITS[word(offset_of!(PacketRecord, ifindex))]
        | BITS[word(offset_of!(PacketRecord, netns))];
    let mut at = process;
    while at < process + COMM_LEN / 4 {
        bits |= BITS[at];
        at += 1;
    }
    bits
};

/// Slots, a power of two. A block has all its connections in them, in each direction.
const SLOTS: usize = 1 << 11;
const _: () = assert!(WORDS < 32, "`differing` has a bit of 32 for each word");

/// It has another stamp besides.
const BESIDE: u16 = 1 << 11;
/// It has fine stages.
const FINE: u16 = 1 << 12;
/// Words of it differ from those of its slot.
const CHANGED: u16 = 1 << 13;
/// What it is.
const KIND: u16 = 3 << 14;
/// A packet whose four times have 16 bits each, as those of busy connections do.
const SHORT: u16 = 0;
/// A packet with longer ones.
const LONG: u16 = 1 << 14;
/// How far the clock on the wall is from here on.
const CLOCK: u16 = 2 << 14;
/// Names, which have the next number.
const NAMES: u16 = 3 << 14;

/// The last packet of a connection and direction.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Slot {
    /// The expected words of the next one.
    words: [u32; WORDS],
    /// The number of its names; none is 0.
    names: u32,
    /// Since when its names are known; 0 if this block has no packet of it.
    since: u32,
}

impl Slot {
    const NONE: Self = Self { words: [0; WORDS], names: 0, since: 0 };

    /// A packet of TCP begins where the one before has ended.
    #[inline(always)]
    fn go_on(&mut self, record: &PacketRecord) {
        if record.protocol == IPPROTO_TCP {
            self.words[SEQ] = record.seq.wrapping_add(record.len);
        }
    }
}

fn slots() -> Box<[Slot; SLOTS]> {
    vec![Slot::NONE; SLOTS].into_boxed_slice().try_into().expect("there are as many")
}

/// Packs packets, of which a block is made when there are enough.
#[derive(Debug)]
pub struct Packer {
    /// The first `len` are used.
    bytes: Box<[u8]>,
    len: usize,
    rows: u32,
    /// The last stamp of the packet before.
    moment: u64,
    slots: Box<[Slot; SLOTS]>,
    /// [`BITS`], where a compiler does not know them, which would take each word by itself.
    bits: [u32; WORDS],
    /// That of the packet before.
    last: usize,
    /// Distance of the clock on the wall, in ns, and the one that this block says.
    clock_ns: i64,
    told_ns: i64,
    /// Names that were found in another one may be others by now.
    turn: u32,
    names: HashMap<Box<[u8]>, u32, RandomState>,
}

impl Default for Packer {
    /// Nothing packed yet.
    fn default() -> Self {
        Self {
            bytes: vec![0; ROOM].into(),
            len: 0,
            rows: 0,
            moment: 0,
            slots: slots(),
            bits: BITS,
            last: 0,
            clock_ns: 0,
            told_ns: 0,
            turn: 1,
            names: HashMap::default(),
        }
    }
}

impl Packer {
    /// Whether no more may come into this block.
    #[must_use]
    #[inline(always)]
    pub fn is_full(&self) -> bool {
        // What comes next may be a clock, names and a packet.
        self.len > ROOM - 3 * LONGEST
    }

    /// Packets that wait to be a block.
    pub(crate) fn rows(&self) -> u32 {
        self.rows
    }

    /// Bytes of memory that it takes.
    pub(crate) fn size(&self) -> usize {
        size_of::<Self>() + ROOM + size_of::<[Slot; SLOTS]>() + self.names.capacity() * LONGEST / 4
    }

    /// What comes from now on is timed by this clock.
    pub fn set_clock(&mut self, clock: Clock) {
        self.clock_ns = clock.to_utc_ns(0);
        if self.rows > 0 {
            self.tell_clock();
        }
    }

    /// Names may have changed.
    pub(crate) fn forget_names(&mut self) {
        self.turn = self.turn.wrapping_add(1).max(1);
    }

    /// Packs a packet of this record, with its parts and the work for it as [`net_latency_common::FineRecord`] has them. Its names are
    /// looked up only where they may differ from those of the last packet of its connection.
    ///
    /// # Panics
    /// If it [is full](Self::is_full).
    #[inline(always)]
    pub fn pack<'a>(
        &mut self,
        record: &PacketRecord,
        parts: Option<&[u64; PARTS]>,
        served: Option<&Served>,
        find: impl FnOnce() -> Found<'a>,
    ) {
        let words = words(record);
        let number = slot_of(record);
        let slot = &self.slots[number];
        let mut changed = differing(&slot.words, words, &self.bits);
        if (slot.since ^ self.turn) | (changed & NAMED_BY) != 0 {
            changed = self.name(number, words, &find());
        }
        let Self { bytes, len, slots, moment, .. } = self;
        let slot = &mut slots[number];
        let mut out = Out::at(bytes, *len);
        let mut head = number as u16;
        let [first, second, third, last] = in_display_order(record);
        let times = [
            zigzag(last.wrapping_sub(*moment)),
            last.wrapping_sub(third),
            third.wrapping_sub(second),
            second.wrapping_sub(first),
        ];
        *moment = last;
        if (times[0] | times[1] | times[2] | times[3]) >> 16 == 0 {
            out.put_eight(times[0] | times[1] << 16 | times[2] << 32 | times[3] << 48);
        } else {
            head |= LONG;
            out.put(times[0]);
            out.put(times[1]);
            out.put(times[2]);
            out.put(times[3]);
        }
        if record.other != 0 {
            head |= BESIDE;
            out.put(zigzag(record.stamps[STAMP_TRANSPORT].wrapping_sub(record.other)));
        }
        if changed != 0 {
            head |= CHANGED;
            out.put(changed.into());
            if changed & NAMED != 0 {
                out.put(slot.names.into());
            }
            let mut rest = changed & !NAMED;
            while rest != 0 {
                let word = WORDS_BY_BIT[rest.trailing_zeros() as usize];
                rest &= rest - 1;
                let by = words[word].wrapping_sub(slot.words[word]).cast_signed();
                out.put(zigzag(i64::from(by).cast_unsigned()));
                slot.words[word] = words[word];
            }
        }
        if let Some(parts) = parts {
            head |= FINE;
            for (part, from) in parts.iter().zip(begins(record, last)) {
                out.put(zigzag(part.wrapping_sub(from)));
            }
            if is_out(record) {
                out.put_served(served.unwrap_or(&Served::NONE));
            }
        }
        slot.go_on(record);
        out.bytes[..2].copy_from_slice(&head.to_le_bytes());
        *len += out.len;
        self.rows += 1;
        self.last = number;
    }

    /// Sees to it that the slot has these names; which of its words differ.
    #[cold]
    #[inline(never)]
    fn name(&mut self, number: usize, words: &[u32; WORDS], found: &Found<'_>) -> u32 {
        self.tell_clock();
        let mut out = Out::at(&mut self.bytes, self.len);
        found.write(&mut out);
        let next = self.names.len() as u32 + 1;
        let names = match self.names.get(&out.bytes[2..out.len]) {
            Some(names) => *names,
            None => {
                out.bytes[..2].copy_from_slice(&NAMES.to_le_bytes());
                self.names.insert(out.bytes[2..out.len].into(), next);
                self.len += out.len;
                next
            }
        };
        // The first of its connection is like the one before: they are mostly two ends of one, or of one program.
        if self.slots[number].since == 0 {
            self.slots[number] = self.slots[self.last];
        }
        let slot = &mut self.slots[number];
        slot.since = self.turn;
        let changed = differing(&slot.words, words, &self.bits);
        if mem::replace(&mut slot.names, names) == names { changed } else { changed | NAMED }
    }

    fn tell_clock(&mut self) {
        let by = self.clock_ns.wrapping_sub(mem::replace(&mut self.told_ns, self.clock_ns));
        if by != 0 {
            let mut out = Out::at(&mut self.bytes, self.len);
            out.bytes[..2].copy_from_slice(&CLOCK.to_le_bytes());
            out.put(zigzag(by.cast_unsigned()));
            self.len += out.len;
        }
    }

    /// What waits, as a block; `None` if nothing does.
    pub fn finish(&mut self) -> Option<Block> {
        if self.rows == 0 {
            return None;
        }
        // The room goes with it, but for what is left, and is not copied.
        let mut bytes = mem::replace(&mut self.bytes, vec![0; ROOM].into()).into_vec();
        bytes.truncate(self.len);
        let block = Block { rows: self.rows, bytes: bytes.into() };
        self.slots.iter_mut().for_each(|slot| slot.since = 0);
        self.slots[0] = Slot::NONE;
        self.names.clear();
        (self.len, self.rows, self.moment, self.last, self.told_ns) = (0, 0, 0, 0, 0);
        Some(block)
    }
}

/// The words of a record behind its stamps.
#[inline(always)]
fn words(record: &PacketRecord) -> &[u32; WORDS] {
    // SAFETY: it has as many words, is aligned to more than they are, and has no padding.
    let words: &[u32; ALL] = unsafe { &*ptr::from_ref(record).cast() };
    words.last_chunk().expect("it is longer")
}

/// The bits of words that differ.
#[inline(always)]
fn differing(these: &[u32; WORDS], those: &[u32; WORDS], bits: &[u32; WORDS]) -> u32 {
    // In four lanes, for which processors have instructions, and compilers find them.
    let mut lanes = [0; 4];
    let differs = |word| {
        let is_same = u32::from(these[word] == those[word]).wrapping_neg();
        !is_same & bits[word]
    };
    for four in 0..WORDS / 4 {
        for (lane, differ) in lanes.iter_mut().enumerate() {
            *differ |= differs(4 * four + lane);
        }
    }
    for word in (0..WORDS).skip(WORDS / 4 * 4) {
        lanes[0] |= differs(word);
    }
    lanes[0] | lanes[1] | lanes[2] | lanes[3]
}

/// Where packets of this connection and direction are.
#[inline(always)]
fn slot_of(record: &PacketRecord) -> usize {
    let [from, to] = [record.saddr, record.daddr].map(|address| {
        let address = u128::from_le_bytes(address);
        (address ^ address >> 64) as u64
    });
    let ports = u64::from(record.sport) << 32 | u64::from(record.dport) << 1 | u64::from(record.direction);
    // Knuth's multiplicative hash: the golden ratio.
    let mixed = (from.rotate_left(20) ^ to ^ ports).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - SLOTS.ilog2())) as usize
}

#[inline(always)]
fn is_out(record: &PacketRecord) -> bool {
    record.direction != Direction::In as u8
}

/// What each part of a packet is near, which was finished then.
#[inline(always)]
fn begins(record: &PacketRecord, last: u64) -> [u64; PARTS] {
    let mut begins = [0; PARTS];
    if is_out(record) {
        begins[PART_FINISHED] = last;
    }
    begins
}

/// Small numbers for small distances, both ways.
#[inline(always)]
fn zigzag(distance: u64) -> u64 {
    (distance << 1) ^ (distance.cast_signed() >> 63).cast_unsigned()
}

/// The distance again.
fn unzigzag(number: u64) -> u64 {
    (number >> 1) ^ (number & 1).wrapping_neg()
}

/// Room for a packet or names.
pub(crate) struct Out<'a> {
    bytes: &'a mut [u8; LONGEST],
    len: usize,
}

impl<'a> Out<'a> {
    /// Behind the first `len` bytes, and a head.
    #[inline(always)]
    fn at(bytes: &'a mut [u8], len: usize) -> Self {
        Self { bytes: bytes[len..].first_chunk_mut().expect("there is room"), len: 2 }
    }

    /// Appends eight bytes.
    #[inline(always)]
    fn put_eight(&mut self, number: u64) {
        self.bytes[self.len..self.len + 8].copy_from_slice(&number.to_le_bytes());
        self.len += 8;
    }

    /// Appends a number of up to 56 bits in as many bytes as it needs, seven bits in each, behind a bit for the end of as many zeroes as
    /// there are more bytes; a longer one behind a byte that is 0.
    #[inline(always)]
    fn put(&mut self, number: u64) {
        // A seventh of it.
        let more = ((number | 1).ilog2() * 37) >> 8;
        if more >= 8 {
            return self.put_long(number);
        }
        let len = self.len;
        self.put_eight((number << 1 | 1) << more);
        self.len = len + more as usize + 1;
    }

    #[inline(always)]
    fn put_long(&mut self, number: u64) {
        self.bytes[self.len] = 0;
        self.len += 1;
        self.put_eight(number);
    }

    /// Why it is not known is a small number below 0.
    fn put_served(&mut self, served: &Served) {
        self.put(zigzag(served.all));
        if is_served(served.all) {
            self.put(served.asleep);
            self.put(served.waited);
            self.put(served.call);
        }
    }

    /// Appends a text of up to 255 bytes.
    fn put_text(&mut self, text: &[u8]) {
        let text = &text[..text.len().min(usize::from(u8::MAX))];
        self.bytes[self.len] = text.len() as u8;
        self.bytes[self.len + 1..][..text.len()].copy_from_slice(text);
        self.len += 1 + text.len();
    }
}

/// Whether a time that it took to serve is one.
fn is_served(all: u64) -> bool {
    all != 0 && part(all).is_ok()
}

impl Found<'_> {
    /// A number, 0 for none, and three texts, empty for none.
    fn write(&self, out: &mut Out<'_>) {
        out.put(self.ns_pid.unwrap_or(0).into());
        for text in [self.ifname, self.netns_name, self.container] {
            out.put_text(text.unwrap_or_default());
        }
    }
}

/// A packet as it was packed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) record: PacketRecord,
    pub(crate) parts: Option<[u64; PARTS]>,
    pub(crate) served: Served,
    /// How far the clock on the wall was from that of the stamps, ns.
    pub(crate) clock_ns: i64,
    pub(crate) named: Rc<Named>,
}

/// Names that packets of a block have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) ns_pid: Option<u32>,
    /// The device, the network namespace, the container.
    pub(crate) texts: [Option<Box<[u8]>>; 3],
}

/// The packets of a block, one after the other.
#[derive(Debug)]
pub(crate) struct Rows {
    block: Block,
    /// How far it is read.
    at: usize,
    moment: u64,
    slots: Box<[Slot; SLOTS]>,
    last: usize,
    clock_ns: i64,
    /// None are the first.
    names: Vec<Rc<Named>>,
}

impl Rows {
    /// Those of this block.
    pub(crate) fn of(block: Block) -> Self {
        Self { block, at: 0, moment: 0, slots: slots(), last: 0, clock_ns: 0, names: vec![Rc::default()] }
    }

    /// Whether all have been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.block.rows == 0
    }

    /// The next packet; `None` if what follows is none.
    pub(crate) fn next(&mut self) -> Option<Row> {
        self.block.rows = self.block.rows.checked_sub(1)?;
        loop {
            let head = u16::from_le_bytes(*self.bytes(2)?.first_chunk()?);
            match head & KIND {
                CLOCK => self.clock_ns = self.clock_ns.wrapping_add(unzigzag(self.number()?).cast_signed()),
                NAMES => {
                    let names = self.named()?;
                    self.names.push(names.into());
                }
                _ => return self.packet(head),
            }
        }
    }

    fn packet(&mut self, head: u16) -> Option<Row> {
        let number = usize::from(head) % SLOTS;
        let [since, times @ ..] = if head & KIND == SHORT {
            let times = self.eight()?;
            [0, 16, 32, 48].map(|shift| times >> shift & 0xffff)
        } else {
            [self.number()?, self.number()?, self.number()?, self.number()?]
        };
        let beside = if head & BESIDE == 0 { None } else { Some(unzigzag(self.number()?)) };
        let changed = if head & CHANGED == 0 { 0 } else { self.number()? };
        if mem::replace(&mut self.slots[number].since, 1) == 0 {
            self.slots[number] = Slot { since: 1, ..self.slots[self.last] };
        }
        let mut slot = self.slots[number];
        if changed & u64::from(NAMED) != 0 {
            slot.names =
                u32::try_from(self.number()?).ok().filter(|names| (*names as usize) < self.names.len())?;
        }
        let mut rest = changed & !u64::from(NAMED);
        while rest != 0 {
            let word = slot.words.get_mut(*WORDS_BY_BIT.get(rest.trailing_zeros() as usize)?)?;
            rest &= rest - 1;
            *word = word.wrapping_add(unzigzag(self.number()?) as u32);
        }
        let mut all = [0; ALL];
        all[FIRST..].copy_from_slice(&slot.words);
        // SAFETY: a record is of any bits.
        let mut record: PacketRecord = unsafe { mem::transmute(all) };
        let last = self.moment.wrapping_add(unzigzag(since));
        let third = last.wrapping_sub(times[0]);
        let second = third.wrapping_sub(times[1]);
        record.stamps =
            from_display_order(direction_of(&record), [second.wrapping_sub(times[2]), second, third, last]);
        record.other = beside.map_or(0, |beside| record.stamps[STAMP_TRANSPORT].wrapping_sub(beside));
        let parts = if head & FINE == 0 { None } else { Some(self.parts(&record, last)?) };
        let served = if parts.is_some() && is_out(&record) { self.served()? } else { Served::NONE };
        slot.go_on(&record);
        (self.slots[number], self.moment, self.last) = (slot, last, number);
        let named = Rc::clone(&self.names[slot.names as usize]);
        Some(Row { record, parts, served, clock_ns: self.clock_ns, named })
    }

    fn parts(&mut self, record: &PacketRecord, last: u64) -> Option<[u64; PARTS]> {
        let mut parts = begins(record, last);
        for part in &mut parts {
            *part = part.wrapping_add(unzigzag(self.number()?));
        }
        Some(parts)
    }

    fn served(&mut self) -> Option<Served> {
        let all = unzigzag(self.number()?);
        if !is_served(all) {
            return Some(Served { all, ..Served::NONE });
        }
        Some(Served { all, asleep: self.number()?, waited: self.number()?, call: self.number()? })
    }

    fn named(&mut self) -> Option<Named> {
        let ns_pid = u32::try_from(self.number()?).ok()?;
        let texts = [self.text()?, self.text()?, self.text()?];
        Some(Named { ns_pid: (ns_pid != 0).then_some(ns_pid), texts })
    }

    fn text(&mut self) -> Option<Option<Box<[u8]>>> {
        let len = self.bytes(1)?[0].into();
        let text = self.bytes(len)?;
        Some((len > 0).then(|| text.into()))
    }

    /// What [`Out::put`] has written.
    fn number(&mut self) -> Option<u64> {
        let more = self.block.bytes.get(self.at)?.trailing_zeros();
        if more == u8::BITS {
            self.at += 1;
            return self.eight();
        }
        let mut number = [0; 8];
        let len = more as usize + 1;
        number[..len].copy_from_slice(self.bytes(len)?);
        Some(u64::from_le_bytes(number) >> more >> 1)
    }

    fn eight(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(*self.bytes(8)?.first_chunk()?))
    }

    fn bytes(&mut self, len: usize) -> Option<&[u8]> {
        let bytes = self.block.bytes.get(self.at..)?.get(..len)?;
        self.at += len;
        Some(bytes)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use net_latency_common::Unknown;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        output::tests::{any_name, any_place, any_record},
        packet::event::fixtures::{WALL_NS, incoming, outgoing, udp},
    };

    /// All packets of a block.
    fn read(block: Block) -> Vec<Row> {
        let mut rows = Rows::of(block);
        let mut read = Vec::new();
        while !rows.is_empty() {
            read.push(rows.next().expect("a packet"));
        }
        assert_eq!(rows.at, rows.block.bytes.len());
        read
    }

    fn records(packed: Vec<Row>) -> Vec<PacketRecord> {
        packed.into_iter().map(|row| row.record).collect()
    }

    /// A layout that is another is another version of the file.
    #[test]
    fn version_3_is_this() {
        let mut packer = Packer::default();
        packer.set_clock(Clock::at(WALL_NS));
        let found = Found { ifname: Some(b"eth0"), ns_pid: Some(7), netns_name: None, container: None };
        let retransmission = PacketRecord { other: 900_000, mark: 1, ..outgoing() };
        let fine = [1, 2, 3, 1_500_000];
        packer.pack(&incoming(), None, None, || found);
        packer.pack(&retransmission, Some(&fine), Some(&Served::of(9_000, 8_000, 7_000, 36)), || found);
        packer.pack(&outgoing(), Some(&fine), Some(&Served::unknown(Unknown::OtherThread)), || found);
        packer.pack(&udp(incoming()), None, None, Found::default);
        let bytes = packer.finish().expect("packets").bytes;
        let hex: Vec<_> = bytes
            .chunks(32)
            .map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            .collect();
        insta::assert_snapshot!(hex.join("\n"));
    }

    #[test]
    fn a_packet_that_is_as_expected_takes_ten_bytes() {
        let mut packer = Packer::default();
        let mut record = PacketRecord { stamps: [1_000, 2_000, 9_000, 60_000], ..incoming() };
        packer.pack(&record, None, None, Found::default);
        let before = packer.len;
        record.stamps = record.stamps.map(|stamp| stamp + 30_000);
        record.seq = record.seq.wrapping_add(record.len);
        packer.pack(&record, None, None, || panic!("its names are known"));
        assert_eq!(packer.len - before, 10);
        packer.forget_names();
        let mut is_asked = false;
        packer.pack(&record, None, None, || {
            is_asked = true;
            Found { ifname: Some(b"renamed"), ..Found::default() }
        });
        assert!(is_asked);
        let packed = read(packer.finish().expect("packets"));
        let names: Vec<_> = packed.iter().map(|row| row.named.texts[0].as_deref()).collect();
        assert_eq!(names, [None, None, Some(&b"renamed"[..])]);
    }

    /// More connections than there are slots.
    #[test]
    fn connections_may_share_a_slot() {
        let all: Vec<_> = (0..9_000)
            .map(|n: u32| PacketRecord { sport: (n * 7 % 4_500) as u16, seq: n, ..incoming() })
            .collect();
        let mut packer = Packer::default();
        let mut read_again = Vec::new();
        for record in &all {
            packer.pack(record, None, None, Found::default);
            if packer.is_full() {
                read_again.extend(records(read(packer.finish().expect("packets"))));
            }
        }
        read_again.extend(records(read(packer.finish().expect("packets"))));
        assert!(read_again == all);
        assert!(packer.finish().is_none());
    }

    #[test]
    fn numbers_take_a_byte_for_seven_bits() {
        for bits in 0..64 {
            for number in [1_u64 << bits, (1 << bits) - 1, u64::MAX >> bits] {
                let mut bytes = [0; LONGEST];
                let mut out = Out { bytes: &mut bytes, len: 0 };
                out.put(number);
                let len = out.len;
                let used = (u64::BITS - number.leading_zeros()).max(1) as usize;
                assert_eq!(len, if used > 56 { 9 } else { used.div_ceil(7) }, "{number:x}");
                let mut rows = Rows::of(Block { rows: 0, bytes: bytes[..len].into() });
                assert_eq!((rows.number(), rows.at), (Some(number), len));
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_packed_is_unpacked(
            packets in proptest::collection::vec((any_record(), any_name(), any_place(), any::<[u64; 3]>(), 0..4u8), 1..60),
        ) {
            let mut packer = Packer::default();
            let mut expected = Vec::new();
            for (record, name, (netns, container), [other, ns_pid, part], kind) in &packets {
                let mut record = PacketRecord { other: other * u64::from(kind % 2), rtt_or_holder: *part as u32, ..*record };
                if *kind > 1 {
                    // As one connection's.
                    (record.saddr, record.daddr, record.sport, record.dport, record.direction) = ([7; 16], [9; 16], 1, 2, 1);
                }
                let parts = (*kind == 3).then_some([*part, u64::MAX - part % 9, 1, other.wrapping_add(*part)]);
                let ns_pid = Some(*ns_pid as u32).filter(|pid| *pid != 0);
                let found = Found { ifname: Some(name), ns_pid, netns_name: netns.as_deref(), container: container.as_deref().map(str::as_bytes) };
                let clock_ns = other.cast_signed() >> 3;
                packer.set_clock(Clock::at(clock_ns));
                packer.forget_names();
                let served = if parts.is_none() || record.direction == 0 { Served::NONE } else {
                    [Served::NONE, Served::unknown(Unknown::NoStamp), Served { all: *part, asleep: other >> 1, waited: part % 77, call: 5 }][(ns_pid.unwrap_or(0) % 3) as usize]
                };
                packer.pack(&record, parts.as_ref(), Some(&served), || found);
                let texts = [found.ifname, found.netns_name, found.container].map(|text| text.map(Into::into));
                expected.push(Row { record, parts, served, clock_ns, named: Named { ns_pid, texts }.into() });
            }
            let packed = read(packer.finish().expect("packets"));
            prop_assert_eq!(packed, expected);
        }
    }
}

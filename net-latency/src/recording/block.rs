//! A block: N packets, packed, with the span of their times and a checksum.

use std::collections::HashMap;
use std::ops::Range;

use flate2::Crc;
use foldhash::fast::RandomState;

use super::columns::{Change, MOST_COLUMNS, Moment, Role, Row, put_number, take_number};

/// Packets of a block at most. More of them share what stands in a block once; fewer are lost with it when it goes.
pub(crate) const MOST_ROWS: usize = 4096;
/// Bytes of a block that is not compressed, at most: no packet takes as many.
const MOST_BYTES: usize = MOST_ROWS * (MOST_COLUMNS + 2) * 10;
/// Numbers in the first column below those of connections: the connection is new, and like the last one of that direction and
/// protocol.
const NEW: u32 = 4;

/// Packed packets.
#[derive(Debug)]
pub struct Block {
    /// How many.
    pub(crate) rows: u32,
    /// The earliest and the latest completion, in ns since 1970.
    pub(crate) span: (i64, i64),
    /// Bytes of what is compressed.
    pub(crate) plain: u32,
    /// What is compressed.
    pub(crate) packed: Box<[u8]>,
}

impl Block {
    /// Bytes of memory that it takes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.packed.len()
    }

    /// The head of it in a file, without the checksum.
    fn fields(&self) -> [u8; 28] {
        let mut fields = [0; 28];
        fields[..4].copy_from_slice(&self.rows.to_le_bytes());
        fields[4..12].copy_from_slice(&self.span.0.to_le_bytes());
        fields[12..20].copy_from_slice(&self.span.1.to_le_bytes());
        fields[20..24].copy_from_slice(&self.plain.to_le_bytes());
        fields[24..].copy_from_slice(&(self.packed.len() as u32).to_le_bytes());
        fields
    }

    /// The head of it in a file: what it holds, and its checksum (CRC-32).
    pub(crate) fn head(&self) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..28].copy_from_slice(&self.fields());
        head[28..].copy_from_slice(&self.checksum().to_le_bytes());
        head
    }

    fn checksum(&self) -> u32 {
        let mut checksum = Crc::new();
        checksum.update(&self.fields());
        checksum.update(&self.packed);
        checksum.sum()
    }

    /// How many bytes follow a head; `None` if no block has so many.
    pub(crate) fn following(head: &[u8; HEAD]) -> Option<usize> {
        let len = u32::from_le_bytes([head[24], head[25], head[26], head[27]]) as usize;
        (len <= MOST_BYTES).then_some(len)
    }

    /// The block with this head; `None` if its checksum is another.
    pub(crate) fn with_head(head: &[u8; HEAD], packed: Box<[u8]>) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let time = |at: usize| (u64::from(word(at)) | u64::from(word(at + 4)) << 32).cast_signed();
        let block = Self { rows: word(0), span: (time(4), time(12)), plain: word(20), packed };
        (block.checksum() == word(28)).then_some(block)
    }
}

/// Bytes of a block's head in a file.
pub(crate) const HEAD: usize = 32;

/// What a block has once: names, addresses, words.
#[derive(Debug, Default)]
struct Texts {
    numbers: HashMap<Box<[u8]>, u32, RandomState>,
    places: Vec<Range<usize>>,
    bytes: Vec<u8>,
}

impl Texts {
    fn get(&self, number: u64) -> Option<&[u8]> {
        Some(&self.bytes[self.places.get(usize::try_from(number).ok()?)?.clone()])
    }

    /// The number of `text`. Only one that the block has not got yet is allocated.
    fn number(&mut self, text: &[u8]) -> u64 {
        if let Some(number) = self.numbers.get(text) {
            return u64::from(*number);
        }
        let number = self.places.len() as u32;
        self.numbers.insert(text.into(), number);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(text);
        self.places.push(start..self.bytes.len());
        u64::from(number)
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.places.clear();
        self.bytes.clear();
    }
}

/// What tells connections apart, and the directions of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flow {
    /// Both addresses.
    pub(crate) addresses: [[u8; 16]; 2],
    /// Both ports.
    pub(crate) ports: [u16; 2],
    /// The network namespace.
    pub(crate) netns: u32,
    /// The direction and the protocol: below 4.
    pub(crate) way: u8,
}

/// Packs packets, of which a block is made when there are enough.
#[derive(Debug)]
pub struct Packer {
    rows: usize,
    span: (i64, i64),
    moment: Moment,
    texts: Texts,
    flows: HashMap<Flow, u32, RandomState>,
    expected: Vec<Row>,
    /// The last connection of each way.
    recent: [Option<u32>; NEW as usize],
    masks: HashMap<u64, u32, RandomState>,
    flow_column: Vec<u8>,
    mask_column: Vec<u8>,
    columns: [Vec<u8>; MOST_COLUMNS],
    plain: Vec<u8>,
}

impl Default for Packer {
    /// Nothing packed yet.
    fn default() -> Self {
        Self {
            rows: 0,
            span: (i64::MAX, i64::MIN),
            moment: Moment::after(0),
            texts: Texts::default(),
            flows: HashMap::default(),
            expected: Vec::new(),
            recent: [None; NEW as usize],
            masks: HashMap::default(),
            flow_column: Vec::new(),
            mask_column: Vec::new(),
            columns: [const { Vec::new() }; MOST_COLUMNS],
            plain: Vec::new(),
        }
    }
}

impl Packer {
    /// Whether no more fit into this block.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rows >= MOST_ROWS
    }

    /// Packets that wait to be a block.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of memory that it takes: what it has ever needed for a block.
    pub(crate) fn bytes(&self) -> usize {
        let columns = self.columns.iter().chain([&self.flow_column, &self.mask_column, &self.plain]);
        size_of::<Self>()
            + columns.map(Vec::capacity).sum::<usize>()
            + self.expected.capacity() * size_of::<Row>()
            + self.flows.capacity() * size_of::<(Flow, u32)>()
            + self.texts.bytes.capacity() * 3
            + self.texts.places.capacity() * 64
    }

    /// Begins the row of a packet of that connection, completed at that time.
    #[inline(always)]
    pub(crate) fn begin(&mut self, flow: &Flow, wall_ns: i64) -> Packing<'_> {
        let next = self.expected.len() as u32;
        let way = usize::from(flow.way) % NEW as usize;
        let number = *self.flows.entry(*flow).or_insert(next);
        if number == next {
            let like = self.recent[way].map_or(Row::NONE, |recent| self.expected[recent as usize]);
            self.expected.push(like);
            put_number(way as u32, &mut self.flow_column);
        } else {
            put_number(number + NEW, &mut self.flow_column);
        }
        self.recent[way] = Some(number);
        self.rows += 1;
        self.span = (self.span.0.min(wall_ns), self.span.1.max(wall_ns));
        let Self { moment, texts, expected, masks, mask_column, columns, .. } = self;
        *moment = Moment::after(moment.time);
        Packing {
            row: &mut expected[number as usize],
            moment,
            texts,
            masks,
            mask_column,
            columns,
            there: 0,
            known: 0,
            changed: 0,
        }
    }

    /// What waits, as a block; `None` if nothing does.
    pub fn finish(&mut self) -> Option<Block> {
        if self.rows == 0 {
            return None;
        }
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        put_number(self.texts.places.len() as u32, &mut plain);
        for place in &self.texts.places {
            put_number(place.len() as u32, &mut plain);
        }
        plain.extend_from_slice(&self.texts.bytes);
        for column in [&self.flow_column, &self.mask_column].into_iter().chain(&self.columns) {
            put_number(column.len() as u32, &mut plain);
        }
        for column in [&mut self.flow_column, &mut self.mask_column].into_iter().chain(&mut self.columns) {
            plain.append(column);
        }
        let block = Block {
            rows: self.rows as u32,
            span: self.span,
            plain: plain.len() as u32,
            packed: compress(&plain).into(),
        };
        self.plain = plain;
        self.rows = 0;
        self.span = (i64::MAX, i64::MIN);
        self.moment = Moment::after(0);
        self.texts.clear();
        self.flows.clear();
        self.expected.clear();
        self.recent = [None; NEW as usize];
        self.masks.clear();
        Some(block)
    }
}

/// A row while it is written. [`Packing::end`] has to end it.
pub(crate) struct Packing<'a> {
    row: &'a mut Row,
    moment: &'a mut Moment,
    texts: &'a mut Texts,
    masks: &'a mut HashMap<u64, u32, RandomState>,
    mask_column: &'a mut Vec<u8>,
    columns: &'a mut [Vec<u8>; MOST_COLUMNS],
    there: u64,
    known: u64,
    changed: u64,
}

impl Packing<'_> {
    /// Puts a number into a column, or that it is unknown.
    #[inline(always)]
    pub(crate) fn put(&mut self, column: usize, role: Role, value: Option<u64>) {
        let bit = 1 << column;
        self.there |= bit;
        let Self { row, moment, columns, .. } = self;
        let was_there = row.there & bit != 0;
        let was_known = row.known & bit != 0;
        match value {
            Some(value) => {
                self.known |= bit;
                let expected = moment.expected(role, row.next[column]);
                row.next[column] = moment.learn(role, Some(value));
                if value != expected || !was_known {
                    self.changed |= bit;
                    Change::to(value, expected).put(&mut columns[column]);
                }
            }
            None => {
                moment.learn(role, None);
                if was_known || !was_there {
                    self.changed |= bit;
                    Change::Unknown.put(&mut columns[column]);
                }
            }
        }
    }

    /// The same of bytes, which the block has once.
    #[inline(always)]
    pub(crate) fn put_text(&mut self, column: usize, text: Option<&[u8]>) {
        let number = text.map(|text| {
            // That of the packet before, nearly always.
            let expected = self.row.next[column];
            match self.texts.get(expected) {
                Some(known) if known == text => expected,
                _ => self.texts.number(text),
            }
        });
        self.put(column, Role::Like, number);
    }

    /// All has been put.
    #[inline(always)]
    pub(crate) fn end(self) {
        let mut gone = self.row.there & !self.there;
        let changed = self.changed | gone;
        while gone != 0 {
            let column = gone.trailing_zeros() as usize;
            Change::Absent.put(&mut self.columns[column]);
            gone &= gone - 1;
        }
        (self.row.there, self.row.known) = (self.there, self.known);
        let next = self.masks.len() as u32;
        let number = *self.masks.entry(changed).or_insert(next);
        put_number(number, self.mask_column);
        if number == next {
            self.mask_column.extend_from_slice(&changed.to_le_bytes());
        }
    }
}

/// A row as it is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Values {
    /// A bit for each column that the line has.
    pub(crate) there: u64,
    known: u64,
    values: [u64; MOST_COLUMNS],
}

impl Values {
    /// The value of a column; `None` if it is unknown.
    #[inline]
    pub(crate) fn get(&self, column: usize) -> Option<u64> {
        (self.known >> column & 1 == 1).then(|| self.values[column])
    }
}

/// The packets of a block, one after the other.
#[derive(Debug)]
pub(crate) struct Rows {
    plain: Vec<u8>,
    /// What the block has once.
    texts: Vec<Box<[u8]>>,
    /// What is left of the columns in `plain`: connections, masks, and those of the fields.
    left: [Range<usize>; MOST_COLUMNS + 2],
    rows: u32,
    moment: Moment,
    /// Of each connection, and which way it goes.
    expected: Vec<(Row, usize)>,
    recent: [Option<usize>; NEW as usize],
    masks: Vec<u64>,
}

impl Rows {
    /// Unpacks a block; `None` for what is none.
    pub(crate) fn of(block: &Block) -> Option<Self> {
        let plain_len = block.plain as usize;
        if plain_len > MOST_BYTES || block.rows as usize > MOST_ROWS {
            return None;
        }
        let plain = decompress(&block.packed, plain_len)?;
        let mut rest = &plain[..];
        let number =
            |rest: &mut &[u8]| usize::try_from(take_number(rest)?).ok().filter(|len| *len <= plain_len);
        let count = number(&mut rest)?;
        // Each has taken a byte.
        let lens = (0..count).map(|_| number(&mut rest)).collect::<Option<Vec<_>>>()?;
        let texts = lens
            .into_iter()
            .map(|len| {
                let (text, behind) = rest.split_at_checked(len)?;
                rest = behind;
                Some(text.into())
            })
            .collect::<Option<_>>()?;
        let mut left = [const { 0..0 }; MOST_COLUMNS + 2];
        for column in &mut left {
            *column = 0..number(&mut rest)?;
        }
        let mut start = plain_len - rest.len();
        for column in &mut left {
            *column = start..start.checked_add(column.end)?;
            start = column.end;
        }
        if start != plain_len {
            return None;
        }
        Some(Self {
            texts,
            left,
            rows: block.rows,
            moment: Moment::after(0),
            expected: Vec::new(),
            recent: [None; NEW as usize],
            masks: Vec::new(),
            plain,
        })
    }

    /// Whether all have been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes that the block has once.
    pub(crate) fn text(&self, number: u64) -> Option<&[u8]> {
        self.texts.get(usize::try_from(number).ok()?).map(AsRef::as_ref)
    }

    /// Reads a packet, with columns of these roles; `None` if there is none.
    pub(crate) fn next(&mut self, roles: &[Role]) -> Option<Values> {
        self.rows = self.rows.checked_sub(1)?;
        let Self { plain, left, moment, expected, recent, masks, .. } = self;
        let mut take = |column: usize| {
            let mut rest = &plain[left[column].clone()];
            let number = take_number(&mut rest)?;
            left[column].start = left[column].end - rest.len();
            u32::try_from(number).ok()
        };
        let flow = match take(0)? {
            way @ 0..NEW => {
                let like = recent[way as usize].map_or(Row::NONE, |recent| expected[recent].0);
                expected.push((like, way as usize));
                expected.len() - 1
            }
            number => (number - NEW) as usize,
        };
        let number = take(1)? as usize;
        if number == masks.len() {
            let mask = &plain[left[1].clone()];
            let (mask, _) = mask.split_first_chunk()?;
            masks.push(u64::from_le_bytes(*mask));
            left[1].start += mask.len();
        }
        let changed = *masks.get(number)?;
        let (row, way) = expected.get_mut(flow)?;
        recent[*way] = Some(flow);
        *moment = Moment::after(moment.time);
        let mut found = Values { there: row.there, known: row.known, values: [0; MOST_COLUMNS] };
        for (column, role) in roles.iter().enumerate() {
            let bit = 1 << column;
            let expected = moment.expected(*role, row.next[column]);
            let mut value = expected;
            if changed & bit != 0 {
                let place = &mut left[column + 2];
                let mut rest = &plain[place.clone()];
                let change = Change::take(&mut rest)?;
                place.start = place.end - rest.len();
                let (is_there, is_known) = match change {
                    Change::Absent => (false, false),
                    Change::Unknown => (true, false),
                    Change::By(distance) => {
                        value = expected.wrapping_add(distance);
                        (true, true)
                    }
                };
                found.there = if is_there { found.there | bit } else { found.there & !bit };
                found.known = if is_known { found.known | bit } else { found.known & !bit };
            }
            if found.known & bit != 0 {
                found.values[column] = value;
                row.next[column] = moment.learn(*role, Some(value));
            } else if found.there & bit != 0 {
                moment.learn(*role, None);
            }
        }
        (row.there, row.known) = (found.there, found.known);
        Some(found)
    }
}

/// The bytes, compressed.
fn compress(plain: &[u8]) -> Vec<u8> {
    lz4_flex::block::compress(plain)
}

/// The same again, of which there are so many; `None` for what is none.
fn decompress(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    lz4_flex::block::decompress(packed, len).ok().filter(|plain| plain.len() == len)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a block is when it is not compressed.
    pub(crate) fn plain(block: &Block) -> Vec<u8> {
        decompress(&block.packed, block.plain as usize).expect("a block")
    }

    /// The block of it.
    pub(crate) fn of_plain(plain: &[u8], rows: u32) -> Block {
        Block { rows, span: (0, 0), plain: plain.len() as u32, packed: compress(plain).into() }
    }

    #[test]
    fn texts_have_one_number_each() {
        let mut texts = Texts::default();
        let numbers = [&b"one"[..], b"", b"one", b"two"].map(|text| texts.number(text));
        assert_eq!(numbers, [0, 1, 0, 2]);
        assert_eq!(texts.get(2), Some(&b"two"[..]));
        texts.clear();
        assert_eq!(texts.get(0), None);
        assert_eq!(texts.number(b"two"), 0);
    }
}

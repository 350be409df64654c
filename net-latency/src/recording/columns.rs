//! What a row of a block has, and what is expected of it: the same for whoever writes and whoever reads.
//!
//! Columns are the fields of a packet's line (`packet/fields.rs`) by their names, each stage one of its own. A field is packed
//! whether or not anything is known of it here; a [`Role`] only makes it smaller.

use crate::packet::{
    fields::with_fields,
    stages::{FINE_STAGES, STAGES, Stage},
};

macro_rules! declared {
    ($($name:ident: $kind:ident = $method:ident, $of:expr, $what:literal;)*) => {
        /// The fields as they are declared; two of them stand for several.
        const DECLARED: &[&str] = &[$(stringify!($name)),*];
    };
}

with_fields!(declared);

/// How many columns there are.
pub(crate) const COLUMNS: usize = DECLARED.len() - 2 + STAGES.len() + FINE_STAGES.len();
/// N have a bit in a mask.
pub(crate) const MOST_COLUMNS: usize = 64;
const _: () =
    assert!(COLUMNS <= MOST_COLUMNS, "masks of columns need more bits: u128, and a new version of the file");

/// Their names, in the order in which a line has them.
pub(crate) const NAMES: [&str; COLUMNS] = {
    let mut names = [""; COLUMNS];
    let (mut field, mut column) = (0, 0);
    while field < DECLARED.len() {
        let stages: &[Stage] = if is_same(DECLARED[field], "stages") {
            &STAGES
        } else if is_same(DECLARED[field], "fine_stages") {
            &FINE_STAGES
        } else {
            names[column] = DECLARED[field];
            column += 1;
            &[]
        };
        let mut place = 0;
        while place < stages.len() {
            names[column] = stages[place].field;
            column += 1;
            place += 1;
        }
        field += 1;
    }
    names
};

/// The fields as they are declared, but for the stages.
pub(crate) fn fields() -> impl Iterator<Item = &'static str> {
    DECLARED.iter().copied().filter(|name| !matches!(*name, "stages" | "fine_stages"))
}

const fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut place = 0;
    while place < one.len() && place < other.len() && one[place] == other[place] {
        place += 1;
    }
    place == one.len() && place == other.len()
}

/// The column of a field; [`COLUMNS`] for what is none.
pub(crate) const fn column(name: &str) -> usize {
    let mut column = 0;
    while column < COLUMNS && !is_same(NAMES[column], name) {
        column += 1;
    }
    column
}

/// What is expected of a column's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// What the packet before on this connection, in this direction, had.
    Like,
    /// That of the row before.
    Time,
    /// As [`Self::Like`]; sequence numbers go on behind it.
    Len,
    /// The end of the packet before.
    Seq,
    /// As [`Self::Like`]; the total is the sum of these.
    Stage,
    /// The sum of the stages.
    Total,
}

impl Role {
    /// That of the column of this name.
    pub(crate) const fn of(name: &str) -> Self {
        if is_same(name, "ts") {
            return Self::Time;
        }
        if is_same(name, "len") {
            return Self::Len;
        }
        if is_same(name, "seq") {
            return Self::Seq;
        }
        if is_same(name, "total_ns") {
            return Self::Total;
        }
        let mut place = 0;
        while place < STAGES.len() {
            if is_same(name, STAGES[place].field) {
                return Self::Stage;
            }
            place += 1;
        }
        Self::Like
    }
}

/// The columns of a packet, and what is expected of the next one of its connection and direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// A bit for each column that the line has.
    pub(crate) there: u64,
    /// A bit for each of them whose value is known.
    pub(crate) known: u64,
    /// What is expected.
    pub(crate) next: [u64; MOST_COLUMNS],
}

impl Row {
    pub(crate) const NONE: Self = Self { there: 0, known: 0, next: [0; MOST_COLUMNS] };
}

/// What a row's earlier columns say of its later ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The time of the row before.
    pub(crate) time: u64,
    len: u64,
    /// Of the stages so far; `None` if one is unknown.
    sum: Option<u64>,
}

impl Moment {
    /// Behind a row of that time.
    pub(crate) fn after(time: u64) -> Self {
        Self { time, len: 0, sum: Some(0) }
    }

    /// The value that is expected in a column.
    #[inline(always)]
    pub(crate) fn expected(&self, role: Role, next: u64) -> u64 {
        match role {
            Role::Time => self.time,
            Role::Total => self.sum.unwrap_or(next),
            _ => next,
        }
    }

    /// It has this value, or an unknown one; what is expected there next, of a known one.
    #[inline(always)]
    pub(crate) fn learn(&mut self, role: Role, value: Option<u64>) -> u64 {
        match (role, value) {
            (Role::Stage, value) => {
                self.sum = self.sum.zip(value).map(|(sum, value)| sum.wrapping_add(value));
            }
            (Role::Time, Some(value)) => self.time = value,
            (Role::Len, Some(value)) => self.len = value,
            (Role::Seq, Some(value)) => return u64::from((value as u32).wrapping_add(self.len as u32)),
            _ => {}
        }
        value.unwrap_or(0)
    }
}

/// What a column holds for a row that is not as expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The line has no such field.
    Absent,
    /// It is unknown.
    Unknown,
    /// Its distance from what was expected.
    By(u64),
}

/// Numbers of changes below those of distances.
const DISTANCES: u8 = 2;

impl Change {
    /// From what was expected to that value.
    #[inline(always)]
    pub(crate) fn to(value: u64, expected: u64) -> Self {
        Self::By(value.wrapping_sub(expected))
    }

    /// Appends it in one to ten bytes, seven bits of its number in each: small distances, both ways, are short.
    #[inline(always)]
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        let distance = match self {
            Self::Absent => return out.push(0),
            Self::Unknown => return out.push(1),
            // Zigzag: the sign is the lowest bit.
            Self::By(distance) => (distance << 1) ^ (distance.cast_signed() >> 63).cast_unsigned(),
        };
        put_number(u128::from(distance) + u128::from(DISTANCES), out);
    }

    /// Reads it; `None` at the end, or for what is none.
    #[inline(always)]
    pub(crate) fn take(from: &mut &[u8]) -> Option<Self> {
        let number = take_number(from)?;
        Some(match number {
            0 => Self::Absent,
            1 => Self::Unknown,
            number => {
                let number = u64::try_from(number - u128::from(DISTANCES)).ok()?;
                Self::By((number >> 1) ^ (number & 1).wrapping_neg())
            }
        })
    }
}

/// Appends a number, seven bits in each byte, the lowest first (LEB128).
#[inline(always)]
pub(crate) fn put_number(number: impl Into<u128>, out: &mut Vec<u8>) {
    let number = number.into();
    let Ok(mut short) = u64::try_from(number) else { return put_long(number, out) };
    while short >= 0x80 {
        out.push(short as u8 | 0x80);
        short >>= 7;
    }
    out.push(short as u8);
}

#[cold]
fn put_long(mut number: u128, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Reads such a number; `None` at the end, or if it is larger than ten bytes can say.
#[inline(always)]
pub(crate) fn take_number(from: &mut &[u8]) -> Option<u128> {
    let (first, rest) = from.split_first()?;
    if *first < 0x80 {
        *from = rest;
        return Some(u128::from(*first));
    }
    let mut number = 0;
    for (place, byte) in from.iter().take(10).enumerate() {
        number |= u128::from(byte & 0x7f) << (7 * place);
        if *byte < 0x80 {
            *from = &from[place + 1..];
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_field_has_a_column() {
        let names = HashSet::from(NAMES);
        assert_eq!(names.len(), COLUMNS, "no name twice");
        assert!(fields().all(|name| column(name) < COLUMNS));
        for stage in STAGES.iter().chain(&FINE_STAGES) {
            assert!(column(stage.field) < COLUMNS, "{}", stage.field);
        }
        assert_eq!(column("no field"), COLUMNS);
        for role in [Role::Time, Role::Len, Role::Seq, Role::Stage, Role::Total] {
            assert!(
                NAMES.iter().any(|name| Role::of(name) == role),
                "{role:?} is of a field that has another name now"
            );
        }
    }

    proptest! {
        #[test]
        fn changes_are_read_as_they_were_written(value in any::<u64>(), expected in any::<u64>(), near in 0..100u64) {
            for change in [Change::Absent, Change::Unknown, Change::to(value, expected), Change::to(value.wrapping_add(near), value)] {
                let mut bytes = Vec::new();
                change.put(&mut bytes);
                let mut rest = &bytes[..];
                prop_assert_eq!(Change::take(&mut rest), Some(change));
                prop_assert!(rest.is_empty() && bytes.len() <= 10);
            }
        }
    }
}

//! What JSON and CSV have in common: they differ in how they write a field ([`Form`]), never in which there are.

use std::net::IpAddr;

use super::line::Piece;
use crate::packet::{
    event::{Event, held_name},
    fields::{Of, with_fields},
    stages::{FINE_STAGES, STAGES, Stage, crossed, dir, split},
};

/// The name of a field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The name as a key of JSON behind another field.
    pub(super) key: Piece<24>,
}

impl Field {
    pub(super) const fn new(name: &'static str) -> Self {
        let key = Piece::of([b",\"", name.as_bytes(), b"\":"]);
        Self { name, key }
    }
}

/// The fields of [`STAGES`].
pub(super) static STAGE_FIELDS: [Field; STAGES.len()] = fields_of(&STAGES);
/// The fields of [`FINE_STAGES`].
pub(super) static FINE_FIELDS: [Field; FINE_STAGES.len()] = fields_of(&FINE_STAGES);

const fn fields_of<const COUNT: usize>(stages: &[Stage; COUNT]) -> [Field; COUNT] {
    let mut fields = [Field::new(""); COUNT];
    let mut place = 0;
    while place < COUNT {
        fields[place] = Field::new(stages[place].field);
        place += 1;
    }
    fields
}

/// How a form writes each kind of field. What is unknown is `None`.
pub(super) trait Form {
    /// Completion, in ns since 1970 in UTC.
    fn time(&mut self, field: &Field, wall_ns: i64);
    /// One of a few words.
    fn word(&mut self, field: &Field, word: &'static str);
    fn number(&mut self, field: &Field, number: Option<u64>);
    /// A number that packets of other kinds don't have.
    fn number_of_some(&mut self, field: &Field, is_there: bool, number: Option<u64>);
    /// One of a few words, likewise.
    fn word_of_some(&mut self, field: &Field, is_there: bool, word: Option<&'static str>);
    /// A name: any bytes that a user chose.
    fn name(&mut self, field: &Field, name: Option<&[u8]>);
    /// A name that packets of other kinds don't have.
    fn name_of_some(&mut self, field: &Field, is_there: bool, name: Option<&[u8]>) {
        if is_there {
            self.name(field, name);
        }
    }
    fn address(&mut self, field: &Field, address: IpAddr);
    /// Some of a few words.
    fn words(&mut self, field: &Field, words: impl Iterator<Item = &'static str>);
    /// The times of the stages that the packet has crossed, by their places in [`STAGES`].
    fn stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>);
    /// The times of fine stages, by their places in [`FINE_STAGES`].
    fn fine_stages(&mut self, stages: impl Iterator<Item = (usize, Option<u64>)>);
}

/// A number that may be unknown.
trait Number {
    fn number(self) -> Option<u64>;
}

impl<T: Into<u64>> Number for Option<T> {
    #[inline(always)]
    fn number(self) -> Option<u64> {
        self.map(Into::into)
    }
}

macro_rules! known_numbers {
    ($($kind:ty)*) => {
        $(impl Number for $kind {
            #[inline(always)]
            fn number(self) -> Option<u64> {
                Some(self.into())
            }
        })*
    };
}

known_numbers!(u8 u16 u32);

/// Has a form write a field of the kind.
macro_rules! write_field {
    (time $form:ident $event:ident $method:ident $of:expr, $field:expr) => {
        $form.time($field, $event.$method())
    };
    (direction $form:ident $event:ident $method:ident $of:expr, $field:expr) => {
        $form.word($field, dir($event.$method()))
    };
    (protocol $form:ident $event:ident $method:ident $of:expr, $field:expr) => {
        $form.word($field, $event.$method().name())
    };
    (name $form:ident $event:ident $method:ident $of:expr, $field:expr) => {{
        let name = $event.$method();
        if const { $of.is_of_all() } {
            $form.name($field, name);
        } else {
            let is_there = $of.is_there($event.direction(), $event.protocol(), name.is_some());
            $form.name_of_some($field, is_there, name);
        }
    }};
    (address $form:ident $event:ident $method:ident $of:expr, $field:expr) => {
        $form.address($field, $event.$method())
    };
    (flags $form:ident $event:ident $method:ident $of:expr, $field:expr) => {
        $form.words($field, $event.$method())
    };
    (held $form:ident $event:ident $method:ident $of:expr, $field:expr) => {{
        let word = $event.$method().map(held_name);
        let is_there = $of.is_there($event.direction(), $event.protocol(), word.is_some());
        $form.word_of_some($field, is_there, word);
    }};
    (stages $form:ident $event:ident $method:ident $of:expr, $field:expr) => {
        $form.stages(crossed($event.direction(), $event.protocol()).into_iter().zip($event.$method()))
    };
    (fine_stages $form:ident $event:ident $method:ident $of:expr, $field:expr) => {
        if let Some(parts) = $event.$method() {
            let places = split($event.direction(), $event.protocol()).into_iter().zip(parts);
            $form.fine_stages(places.filter_map(|(place, time)| Some((place?, time))));
        }
    };
    ($number:ident $form:ident $event:ident $method:ident $of:expr, $field:expr) => {{
        let number = $event.$method().number();
        if const { $of.is_of_all() } {
            $form.number($field, number);
        } else {
            let is_there = $of.is_there($event.direction(), $event.protocol(), number.is_some());
            $form.number_of_some($field, is_there, number);
        }
    }};
}

macro_rules! writer {
    ($($name:ident: $kind:ident = $method:ident $([$($stored:tt)*])?, $of:expr, $what:literal;)*) => {
        /// Has `form` write each field of `event`.
        #[inline(always)]
        pub(super) fn write(event: &Event<'_>, form: &mut impl Form) {
            $(if !const { $of.is_fine } || event.has_parts() {
                write_field!($kind form event $method $of, const { &Field::new(stringify!($name)) });
            })*
        }
    };
}

with_fields!(writer);

//! The fields of a line, as both forms give them.

use std::{borrow::Cow, net::IpAddr};

use net_latency_common::{Direction, Held};

use crate::{
    kernel::netns::NAME_LEN,
    packet::{
        event::{Protocol, flag_named, held_named},
        fields::with_fields,
        stages::{FINE_STAGES, STAGES, Stage, crossed, split},
    },
};

/// Bytes of a name: of the kernel's, which have 15, each may be written as four characters. What the names of a log may be
/// decides how much memory its report takes.
const LONGEST_NAME: usize = 128;

/// Flags that the kernel side sets. Others say what the times say, or are of a later version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(pub(super) u16);

impl Flags {
    pub(super) fn add(&mut self, name: &str) {
        self.0 |= flag_named(name).unwrap_or(0);
    }
}

/// The type of a field of the kind, as a line gives it.
macro_rules! value {
    (time $life:lifetime) => { Option<Cow<$life, str>> };
    (name $life:lifetime) => { Option<Cow<$life, str>> };
    (direction $life:lifetime) => { Option<Direction> };
    (protocol $life:lifetime) => { Option<Protocol> };
    (address $life:lifetime) => { Option<IpAddr> };
    (flags $life:lifetime) => { Flags };
    (held $life:lifetime) => { Option<Held> };
    // By their places in `STAGES`; a line has those of its own direction and protocol.
    (stages $life:lifetime) => { [Option<u64>; STAGES.len()] };
    // By their places in `FINE_STAGES`. Each that a line has is there, known or not.
    (fine_stages $life:lifetime) => { Option<[Option<u64>; FINE_STAGES.len()]> };
    ($number:ident $life:lifetime) => { Option<$number> };
}

/// Values of a line, read one after the other as a form writes them. Unknown is `None`.
pub(super) trait Values<'a> {
    type Error;
    /// The value is not of the field's kind.
    fn wrong(&self) -> Self::Error;
    /// A number up to `most`.
    fn number(&mut self, most: u64) -> Result<Option<u64>, Self::Error>;
    fn text(&mut self) -> Result<Option<Cow<'a, str>>, Self::Error>;
    fn address(&mut self) -> Result<Option<IpAddr>, Self::Error>;
    /// Hands on some words.
    fn words(&mut self, take: impl FnMut(&str)) -> Result<(), Self::Error>;
}

/// The value of a field of the kind.
macro_rules! read_value {
    (time $values:ident) => {
        $values.text()?
    };
    (name $values:ident) => {
        $values.text()?
    };
    (address $values:ident) => {
        $values.address()?
    };
    (direction $values:ident) => {
        match $values.text()?.as_deref() {
            Some("in") => Some(Direction::In),
            Some("out") => Some(Direction::Out),
            Some(_) => return Err($values.wrong()),
            None => None,
        }
    };
    (protocol $values:ident) => {
        match $values.text()?.as_deref() {
            Some("tcp") => Some(Protocol::Tcp),
            Some("udp") => Some(Protocol::Udp),
            Some(_) => return Err($values.wrong()),
            None => None,
        }
    };
    (held $values:ident) => {
        $values.text()?.and_then(|name| held_named(&name))
    };
    (flags $values:ident) => {{
        let mut flags = Flags::default();
        $values.words(|name| flags.add(name))?;
        flags
    }};
    ($number:ident $values:ident) => {
        $values.number($number::MAX.into())?.map(|number| number as $number)
    };
}

/// Runs `then`, unless the kind stands for several fields.
macro_rules! unless_stages {
    (stages $then:expr) => {{}};
    (fine_stages $then:expr) => {{}};
    ($kind:ident $then:expr) => {
        $then
    };
}

/// Reads a field of the kind, or several, if it comes next.
macro_rules! read_next {
    (stages $line:ident $fields:ident $name:ident) => {
        if let (Some(direction), Some(protocol)) = ($fields.dir, $fields.proto) {
            for place in crossed(direction, protocol) {
                if $line.is_stage_next(&STAGES[place]) {
                    $fields.$name[place] = $line.number(u64::MAX)?;
                }
            }
        }
    };
    (fine_stages $line:ident $fields:ident $name:ident) => {
        if let (Some(direction), Some(protocol)) = ($fields.dir, $fields.proto) {
            for place in split(direction, protocol).into_iter().flatten() {
                if $line.is_stage_next(&FINE_STAGES[place]) {
                    $fields.$name.get_or_insert_default()[place] = $line.number(u64::MAX)?;
                }
            }
        }
    };
    ($kind:ident $line:ident $fields:ident $name:ident) => {
        if $line.is_next(concat!(",\"", stringify!($name), "\":")) {
            $fields.$name = read_value!($kind $line);
        }
    };
}

/// A line that has its fields in their order, whichever it has.
pub(super) trait InOrder<'a>: Values<'a> {
    /// Whether this key of JSON comes next, behind a comma. Then its value does.
    fn is_next(&mut self, key: &'static str) -> bool;
    /// Whether the key of this stage's field comes next.
    fn is_stage_next(&mut self, stage: &Stage) -> bool;
}

macro_rules! reader {
    ($($name:ident: $kind:ident = $method:ident $([$($stored:tt)*])?, $of:expr, $what:literal;)*) => {
        /// What a line says. Unknown, and left out, is `None`: a log from which fields were removed can still be read.
        #[derive(Debug, Default, PartialEq, Eq)]
        pub(super) struct Fields<'a> {
            $(pub(super) $name: value!($kind 'a),)*
        }

        impl<'a> Fields<'a> {
            /// The fields of a line that has them in their order.
            #[inline(always)]
            pub(super) fn read<L: InOrder<'a>>(line: &mut L) -> Result<Self, L::Error> {
                let mut fields = Self::default();
                $(read_next!($kind line fields $name);)*
                Ok(fields)
            }

            /// Takes the value of a field.
            #[inline(always)]
            pub(super) fn set<V: Values<'a>>(&mut self, name: Name, values: &mut V) -> Result<(), V::Error> {
                match name {
                    $(Name::$name => unless_stages!($kind self.$name = read_value!($kind values)),)*
                    Name::Stage(place) => self.stages[place] = values.number(u64::MAX)?,
                    Name::FineStage(place) => {
                        self.fine_stages.get_or_insert_default()[place] = values.number(u64::MAX)?;
                    }
                }
                Ok(())
            }
        }

        /// Which field it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[expect(non_camel_case_types, reason = "they are named as the fields are")]
        pub(super) enum Name {
            $($name,)*
            /// By its place in [`STAGES`].
            Stage(usize),
            /// By its place in [`FINE_STAGES`].
            FineStage(usize),
        }

        impl Name {
            /// `None` for a field that this version doesn't know.
            #[inline]
            pub(super) fn of(field: &str) -> Option<Self> {
                let name = match field {
                    $(stringify!($name) => Some(Self::$name),)*
                    _ => {
                        let place = |stages: &[Stage]| stages.iter().position(|stage| stage.field == field);
                        place(&STAGES).map(Self::Stage).or_else(|| place(&FINE_STAGES).map(Self::FineStage))
                    }
                };
                // They stand for others.
                name.filter(|name| !matches!(name, Self::stages | Self::fine_stages))
            }
        }
    };
}

with_fields!(reader);

impl Fields<'_> {
    /// Whether a name in it is longer than any that we write.
    pub(super) fn have_long_name(&self) -> bool {
        let Self { comm, process, ifname, container, netns_name, .. } = self;
        let is_longer =
            |name: &Option<Cow<'_, str>>, most| name.as_ref().is_some_and(|name| name.len() > most);
        [comm, process, ifname, container].into_iter().any(|name| is_longer(name, LONGEST_NAME))
            || is_longer(netns_name, 4 * NAME_LEN)
    }
}

//! A reader of BTF, the kernel's description of its own types: just enough to find fields, functions
//! and tracepoints, in one pass and without copying.
//!
//! The format is that of Documentation/bpf/btf.rst in the Linux source.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use rustc_hash::FxHashSet;

const MAGIC: u16 = 0xeb9f;
const HEADER_LEN: usize = 24;
const TYPE_LEN: usize = 12;
const MEMBER_LEN: usize = 12;
const PARAMETER_LEN: usize = 8;
const VALUE_LEN: usize = 8;

// Kinds of types (enum in include/uapi/linux/btf.h).
const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FWD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// Begins the name of the type that describes a tracepoint.
const TRACEPOINT: &str = "btf_trace_";

/// How deep structs are searched; kernel types nest less, and a loop in a broken file ends here.
const MAX_DEPTH: u32 = 16;
/// Members that are looked at for a field: many times what the kernel's largest structs have. In a broken file a struct may
/// hold itself several times.
const MOST_LOOKS: u32 = 1 << 16;

/// Why BTF can't be read, or doesn't have what is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BtfError {
    /// It does not begin like BTF of this machine's byte order.
    NotBtf,
    /// It ends within a type.
    Truncated,
    /// It has a kind of type that this reader does not know, and so can't skip.
    UnknownKind(u32),
    /// There is no such field.
    NoField(String),
}

impl fmt::Display for BtfError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBtf => f.write_str("it is not BTF of this byte order"),
            Self::Truncated => f.write_str("it ends too early"),
            Self::UnknownKind(kind) => write!(f, "it has types of the unknown kind {kind}"),
            Self::NoField(field) => write!(f, "the kernel has no field {field}"),
        }
    }
}

impl std::error::Error for BtfError {}

/// For [`Btf::parse`]: whether a name is one of these, or a tracepoint's of that name. It is asked of each of the kernel's
/// names, of which there are 100,000.
pub(crate) fn named(names: impl Iterator<Item = &'static str>) -> impl Fn(&[u8]) -> bool {
    let names: FxHashSet<&[u8]> = names.map(str::as_bytes).collect();
    move |name| names.contains(name.strip_prefix(TRACEPOINT.as_bytes()).unwrap_or(name))
}

/// Parsed BTF.
#[derive(Debug)]
pub(crate) struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type starts in `types`, by id; id 0 is void.
    starts: Vec<u32>,
    structs: HashMap<&'a [u8], u32>,
    functions: HashMap<&'a [u8], u32>,
    tracepoints: HashMap<&'a [u8], u32>,
}

#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    /// Number of members, parameters or values.
    count: usize,
    /// Bit offsets of members carry a bit-field size in their upper byte.
    kind_flag: bool,
    /// A size or another type's id.
    size_or_type: u32,
}

impl<'a> Btf<'a> {
    /// Parses `data`; `wanted` says which names of structs, functions and tracepoints (`btf_trace_…`) will be
    /// requested.
    ///
    /// # Errors
    /// If `data` is not whole BTF in this machine's byte order.
    pub(crate) fn parse(data: &'a [u8], wanted: impl Fn(&[u8]) -> bool) -> Result<Self, BtfError> {
        let header = data.get(..HEADER_LEN).ok_or(BtfError::NotBtf)?;
        if u16::from_ne_bytes([header[0], header[1]]) != MAGIC {
            return Err(BtfError::NotBtf);
        }
        let word = |at| read_u32(header, at).map(|value| value as usize).ok_or(BtfError::NotBtf);
        let (header_len, type_off, type_len) = (word(4)?, word(8)?, word(12)?);
        let (str_off, str_len) = (word(16)?, word(20)?);
        let section = |offset: usize, len: usize| {
            let start = header_len.checked_add(offset)?;
            data.get(start..start.checked_add(len)?)
        };
        let types = section(type_off, type_len).ok_or(BtfError::Truncated)?;
        let strings = section(str_off, str_len).ok_or(BtfError::Truncated)?;

        let mut btf = Self {
            types,
            strings,
            starts: vec![0],
            structs: HashMap::new(),
            functions: HashMap::new(),
            tracepoints: HashMap::new(),
        };
        let mut at = 0;
        while at < types.len() {
            let ty = btf.type_at(at).ok_or(BtfError::Truncated)?;
            let id = u32::try_from(btf.starts.len()).map_err(|_| BtfError::Truncated)?;
            btf.starts.push(u32::try_from(at).map_err(|_| BtfError::Truncated)?);
            match ty.kind {
                // The first definition counts: modules and duplicates come later.
                STRUCT => btf.index(ty.name, id, &wanted, |btf| &mut btf.structs),
                FUNC => btf.index(ty.name, id, &wanted, |btf| &mut btf.functions),
                TYPEDEF => btf.index(ty.name, id, &wanted, |btf| &mut btf.tracepoints),
                _ => {}
            }
            at += TYPE_LEN + trailer_len(&ty)?;
            if at > types.len() {
                return Err(BtfError::Truncated);
            }
        }
        Ok(btf)
    }

    fn index(
        &mut self,
        name: u32,
        id: u32,
        wanted: impl Fn(&[u8]) -> bool,
        map: impl Fn(&mut Self) -> &mut HashMap<&'a [u8], u32>,
    ) {
        let name = self.string(name);
        if !name.is_empty() && wanted(name) {
            map(self).entry(name).or_insert(id);
        }
    }

    /// Whether the kernel has a function of this name that can be probed. Functions that the compiler
    /// inlined everywhere, or renamed (`.isra`, `.constprop`), are not in BTF.
    #[must_use]
    pub(crate) fn has_function(&self, name: &str) -> bool {
        self.functions.contains_key(name.as_bytes())
    }

    /// How many arguments a function has.
    #[must_use]
    pub(crate) fn parameters(&self, name: &str) -> Option<usize> {
        let (_, function) = self.resolve(*self.functions.get(name.as_bytes())?)?;
        Some(self.resolve(function.size_or_type)?.1.count)
    }

    /// Whether a struct has this member, which may be a bit-field.
    #[must_use]
    pub(crate) fn has_member(&self, name: &str, member: &str) -> bool {
        let Some((start, ty)) = self.structs.get(name.as_bytes()).and_then(|id| self.resolve(*id)) else {
            return false;
        };
        (0..ty.count).any(|index| {
            read_u32(self.types, start + TYPE_LEN + index * MEMBER_LEN)
                .is_some_and(|offset| self.string(offset) == member.as_bytes())
        })
    }

    /// Whether the kernel has a tracepoint of this name (it describes each by a typedef `btf_trace_…`).
    #[must_use]
    pub(crate) fn has_tracepoint(&self, name: &str) -> bool {
        self.tracepoints.contains_key(tracepoint(name).as_bytes())
    }

    /// BTF in which these functions and these tracepoints have the ids that they have here, and nothing else has a name. Who
    /// looks for ids by name reads it in a fraction of the time.
    #[must_use]
    pub(crate) fn only<'n>(
        &self,
        functions: impl Iterator<Item = &'n str>,
        tracepoints: impl Iterator<Item = &'n str>,
    ) -> Vec<u8> {
        let functions = functions.filter_map(|name| {
            let id = *self.functions.get(name.as_bytes())?;
            Some((id, FUNC, name.to_owned()))
        });
        let tracepoints = tracepoints.filter_map(|name| {
            let name = tracepoint(name);
            let id = *self.tracepoints.get(name.as_bytes())?;
            Some((id, TYPEDEF, name))
        });
        naming(functions.chain(tracepoints).collect())
    }

    /// All functions that take a pointer to this struct, which of their arguments is the first such one, and the function's id.
    #[must_use]
    pub(crate) fn functions_taking(&self, name: &str) -> Vec<(&'a [u8], usize, u32)> {
        let takes = |id: u32| {
            let (_, pointer) = self.resolve(id)?;
            let (_, target) = (pointer.kind == PTR).then(|| self.resolve(pointer.size_or_type))??;
            (target.kind == STRUCT && self.string(target.name) == name.as_bytes()).then_some(())
        };
        let mut found = Vec::new();
        for (id, &start) in (0..).zip(&self.starts).skip(1) {
            let Some(function) = self.type_at(start as usize).filter(|ty| ty.kind == FUNC) else { continue };
            let Some((prototype, ty)) = self.resolve(function.size_or_type) else { continue };
            let parameter = |index| read_u32(self.types, prototype + TYPE_LEN + index * PARAMETER_LEN + 4);
            let position = (0..ty.count).find(|index| parameter(*index).and_then(takes).is_some());
            found.extend(position.map(|position| (self.string(function.name), position, id)));
        }
        found
    }

    /// The names of an enumeration's values, as far as they fit; none if there is no such one.
    #[must_use]
    pub(crate) fn enumeration(&self, name: &str) -> Vec<(u32, &'a [u8])> {
        let mut types = self.starts[1..].iter().filter_map(|start| {
            let ty = self.type_at(*start as usize)?;
            (ty.kind == ENUM && ty.count > 0 && self.string(ty.name) == name.as_bytes())
                .then_some((*start as usize, ty.count))
        });
        let Some((start, count)) = types.next() else { return Vec::new() };
        let value = |index: usize| {
            let at = start + TYPE_LEN + index * VALUE_LEN;
            Some((read_u32(self.types, at + 4)?, self.string(read_u32(self.types, at)?)))
        };
        (0..count).filter_map(value).collect()
    }

    /// The kernel's reasons for drops, by number, as its names have them behind what they share. None before Linux 5.17.
    #[must_use]
    pub(crate) fn drop_reasons(&self) -> BTreeMap<u32, String> {
        let reason = |(number, name): (u32, &[u8])| {
            let name = std::str::from_utf8(name).ok()?;
            let name = name.strip_prefix("SKB_DROP_REASON_").or_else(|| name.strip_prefix("SKB_"))?;
            Some((number, name.to_owned()))
        };
        self.enumeration("skb_drop_reason").into_iter().filter_map(reason).collect()
    }

    /// Byte offset of a field such as `sock.__sk_common.skc_family`: the struct, then members by name;
    /// anonymous structs and unions between them need no mention.
    ///
    /// # Errors
    /// [`BtfError::NoField`] if there is none, or if it is a bit-field.
    pub(crate) fn offset(&self, path: &str) -> Result<u32, BtfError> {
        match self.walk(path, false)? {
            bits if bits.is_multiple_of(8) => Ok(bits / 8),
            _ => Err(BtfError::NoField(path.to_owned())),
        }
    }

    /// Bytes of a struct.
    ///
    /// # Errors
    /// [`BtfError::NoField`] if there is none.
    pub(crate) fn size(&self, name: &str) -> Result<u32, BtfError> {
        let missing = || BtfError::NoField(name.to_owned());
        let id = *self.structs.get(name.as_bytes()).ok_or_else(missing)?;
        self.resolve(id).map(|(_, ty)| ty.size_or_type).ok_or_else(missing)
    }

    /// The offset in bits of a field that may be a bit-field.
    ///
    /// # Errors
    /// [`BtfError::NoField`] if there is none.
    pub(crate) fn offset_in_bits(&self, path: &str) -> Result<u32, BtfError> {
        self.walk(path, true)
    }

    fn walk(&self, path: &str, takes_bit_fields: bool) -> Result<u32, BtfError> {
        let missing = || BtfError::NoField(path.to_owned());
        let mut names = path.split('.');
        let root = names.next().ok_or_else(missing)?;
        let mut id = *self.structs.get(root.as_bytes()).ok_or_else(missing)?;
        let mut bits: u32 = 0;
        let mut looks = MOST_LOOKS;
        for name in names {
            let found = self.member(id, name.as_bytes(), takes_bit_fields, 0, &mut looks);
            let (member_bits, member_type) = found.ok_or_else(missing)?;
            bits = bits.checked_add(member_bits).ok_or_else(missing)?;
            id = member_type;
        }
        Ok(bits)
    }

    /// Bit offset and type of a member, also of anonymous structs and unions within, as long as `looks` last.
    fn member(
        &self,
        id: u32,
        name: &[u8],
        takes_bit_fields: bool,
        depth: u32,
        looks: &mut u32,
    ) -> Option<(u32, u32)> {
        if depth > MAX_DEPTH {
            return None;
        }
        let (start, ty) = self.resolve(id)?;
        if !matches!(ty.kind, STRUCT | UNION) {
            return None;
        }
        for index in 0..ty.count {
            *looks = looks.checked_sub(1)?;
            let at = start + TYPE_LEN + index * MEMBER_LEN;
            let member_name = self.string(read_u32(self.types, at)?);
            let member_type = read_u32(self.types, at + 4)?;
            let offset = read_u32(self.types, at + 8)?;
            // With the flag, the upper byte is the size of a bit-field, 0 for none.
            let (bit_field, bits) =
                if ty.kind_flag { (offset >> 24 != 0, offset & 0x00ff_ffff) } else { (false, offset) };
            if member_name == name && (!bit_field || takes_bit_fields) {
                return Some((bits, member_type));
            }
            if member_name.is_empty()
                && let Some((inner, inner_type)) =
                    self.member(member_type, name, takes_bit_fields, depth + 1, looks)
            {
                return Some((bits.checked_add(inner)?, inner_type));
            }
        }
        None
    }

    /// The type behind typedefs and qualifiers, and where it starts.
    fn resolve(&self, mut id: u32) -> Option<(usize, Type)> {
        for _ in 0..MAX_DEPTH {
            let start = *self.starts.get(id as usize).filter(|_| id != 0)? as usize;
            let ty = self.type_at(start)?;
            if !matches!(ty.kind, TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG) {
                return Some((start, ty));
            }
            id = ty.size_or_type;
        }
        None
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let info = read_u32(self.types, at + 4)?;
        Some(Type {
            name: read_u32(self.types, at)?,
            kind: info >> 24 & 0x1f,
            count: (info & 0xffff) as usize,
            kind_flag: info >> 31 != 0,
            size_or_type: read_u32(self.types, at + 8)?,
        })
    }

    fn string(&self, offset: u32) -> &'a [u8] {
        let rest = self.strings.get(offset as usize..).unwrap_or_default();
        rest.split(|&byte| byte == 0).next().unwrap_or_default()
    }
}

/// [`Btf::only`] for functions whose ids are known.
#[must_use]
pub(crate) fn only_functions<'n>(functions: impl Iterator<Item = (u32, &'n str)>) -> Vec<u8> {
    naming(functions.map(|(id, name)| (id, FUNC, name.to_owned())).collect())
}

/// BTF in which these types have these ids, kinds and names, and nothing else has a name.
fn naming(mut named: Vec<(u32, u32, String)>) -> Vec<u8> {
    named.sort_unstable();
    named.dedup();
    let last = named.last().map_or(0, |(id, ..)| *id);
    // A forward declaration is the shortest type there is.
    let mut types = fixed_part(0, FWD).repeat(last as usize);
    let mut strings = vec![0];
    for (id, kind, name) in named {
        let start = (id as usize - 1) * TYPE_LEN;
        let string = u32::try_from(strings.len()).unwrap_or(0);
        types[start..start + TYPE_LEN].copy_from_slice(&fixed_part(string, kind));
        strings.extend_from_slice(name.as_bytes());
        strings.push(0);
    }
    write(&types, &strings)
}

/// What each type begins with: its name and its kind, and of some another type, here none.
fn fixed_part(name: u32, kind: u32) -> [u8; TYPE_LEN] {
    let mut bytes = [0; TYPE_LEN];
    bytes[..4].copy_from_slice(&name.to_ne_bytes());
    bytes[4..8].copy_from_slice(&(kind << 24).to_ne_bytes());
    bytes
}

/// The typedef that stands for a tracepoint.
fn tracepoint(name: &str) -> String {
    format!("{TRACEPOINT}{name}")
}

/// The two sections behind their header.
fn write(types: &[u8], strings: &[u8]) -> Vec<u8> {
    let len = |section: &[u8]| u32::try_from(section.len()).expect("type information is less than 4 GiB");
    let mut out = Vec::with_capacity(HEADER_LEN + types.len() + strings.len());
    out.extend(MAGIC.to_ne_bytes());
    // Version and flags; then the lengths of header and sections, and where they begin behind the header.
    out.extend([1, 0]);
    for word in [24, 0, len(types), len(types), len(strings)] {
        out.extend(u32::to_ne_bytes(word));
    }
    out.extend_from_slice(types);
    out.extend_from_slice(strings);
    out
}

/// Bytes that follow a type's fixed part.
fn trailer_len(ty: &Type) -> Result<usize, BtfError> {
    Ok(match ty.kind {
        INT | VAR | DECL_TAG => 4,
        ARRAY => 12,
        STRUCT | UNION | DATASEC | ENUM64 => ty.count * MEMBER_LEN,
        ENUM | FUNC_PROTO => ty.count * 8,
        // PTR, FWD, TYPEDEF, VOLATILE, CONST, RESTRICT, FUNC, FLOAT, TYPE_TAG
        PTR | 7..=12 | 16 | 18 => 0,
        kind => return Err(BtfError::UnknownKind(kind)),
    })
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use aya_obj::btf::BtfKind;
    use proptest::prelude::*;

    use super::*;
    use crate::fuzz;

    /// Builds BTF by hand.
    #[derive(Default)]
    pub(crate) struct Builder {
        types: Vec<u8>,
        strings: Vec<u8>,
        count: u32,
    }

    impl Builder {
        pub(crate) fn new() -> Self {
            Self { strings: vec![0], ..Self::default() }
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend(name.as_bytes());
            self.strings.push(0);
            at
        }

        fn words(&mut self, words: &[u32]) {
            self.types.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        }

        pub(crate) fn add(
            &mut self,
            kind: u32,
            name: &str,
            flag: bool,
            size_or_type: u32,
            trailer: &[u32],
            count: u32,
        ) -> u32 {
            let name = self.name(name);
            self.words(&[name, kind << 24 | u32::from(flag) << 31 | count, size_or_type]);
            self.words(trailer);
            self.count += 1;
            self.count
        }

        pub(crate) fn structure(
            &mut self,
            kind: u32,
            name: &str,
            flag: bool,
            members: &[(&str, u32, u32)],
        ) -> u32 {
            let trailer: Vec<u32> =
                members.iter().flat_map(|&(name, ty, bits)| [self.name(name), ty, bits]).collect();
            self.add(kind, name, flag, 64, &trailer, members.len() as u32)
        }

        pub(crate) fn build(&self) -> Vec<u8> {
            write(&self.types, &self.strings)
        }
    }

    fn sample() -> Vec<u8> {
        let mut b = Builder::new();
        let int = b.add(INT, "int", false, 4, &[32], 0);
        let inner = b.structure(STRUCT, "", false, &[("low", int, 0), ("high", int, 32)]);
        let union = b.structure(UNION, "", false, &[("whole", int, 0), ("", inner, 0)]);
        let alias = b.add(TYPEDEF, "alias_t", false, inner, &[], 0);
        b.structure(
            STRUCT,
            "outer",
            true,
            &[("first", int, 0), ("flag", int, 1 << 24 | 32), ("", union, 64), ("named", alias, 128)],
        );
        let proto = b.add(FUNC_PROTO, "", false, int, &[0, int], 1);
        b.add(FUNC, "tcp_v4_rcv", false, proto, &[], 1);
        b.add(TYPEDEF, "btf_trace_netif_rx", false, proto, &[], 0);
        b.structure(STRUCT, "outer", false, &[("first", int, 512)]);
        b.build()
    }

    #[test]
    fn fields_are_found_through_anonymous_members_and_typedefs() {
        let data = sample();
        let btf = Btf::parse(&data, |_| true).unwrap();
        assert_eq!(btf.offset("outer.first"), Ok(0));
        assert_eq!(btf.offset("outer.whole"), Ok(8));
        assert_eq!(btf.offset("outer.high"), Ok(12));
        assert_eq!(btf.offset("outer.named.high"), Ok(20));
    }

    #[test]
    fn what_is_not_there_is_named() {
        let data = sample();
        let btf = Btf::parse(&data, |_| true).unwrap();
        for path in ["outer.none", "none.first", "outer.first.deeper", "outer.flag"] {
            assert_eq!(btf.offset(path), Err(BtfError::NoField(path.to_owned())));
        }
    }

    #[test]
    fn functions_and_tracepoints_are_found() {
        let data = sample();
        let btf = Btf::parse(&data, |_| true).unwrap();
        assert!(btf.has_function("tcp_v4_rcv") && !btf.has_function("outer"));
        assert!(btf.has_tracepoint("netif_rx") && !btf.has_tracepoint("alias_t"));
    }

    #[test]
    fn what_is_left_has_its_ids() {
        let data = sample();
        let btf = Btf::parse(&data, |_| true).unwrap();
        let only = btf.only(["tcp_v4_rcv", "none"].into_iter(), ["netif_rx"].into_iter());
        assert!(only.len() < data.len());
        let read = aya::Btf::parse(&only, aya::Endianness::default()).unwrap();
        let whole = aya::Btf::parse(&data, aya::Endianness::default()).unwrap();
        for (name, kind) in [("tcp_v4_rcv", BtfKind::Func), ("btf_trace_netif_rx", BtfKind::Typedef)] {
            assert_eq!(
                read.id_by_type_name_kind(name, kind).unwrap(),
                whole.id_by_type_name_kind(name, kind).unwrap()
            );
        }
        assert!(read.id_by_type_name_kind("none", BtfKind::Func).is_err());
        assert!(read.id_by_type_name_kind("outer", BtfKind::Struct).is_err());
    }

    #[test]
    fn names_nobody_asks_for_are_not_kept() {
        let data = sample();
        let btf = Btf::parse(&data, |name| name == b"outer").unwrap();
        assert_eq!(btf.offset("outer.whole"), Ok(8));
        assert!(!btf.has_function("tcp_v4_rcv"));
    }

    #[test]
    fn other_files_are_refused() {
        assert_eq!(Btf::parse(b"", |_| true).unwrap_err(), BtfError::NotBtf);
        assert_eq!(Btf::parse(&[0; 64], |_| true).unwrap_err(), BtfError::NotBtf);
        let data = sample();
        assert_eq!(Btf::parse(&data[..data.len() - 1], |_| true).unwrap_err(), BtfError::Truncated);
        let mut b = Builder::new();
        b.add(31, "future", false, 0, &[], 0);
        assert_eq!(Btf::parse(&b.build(), |_| true).unwrap_err(), BtfError::UnknownKind(31));
    }

    #[test]
    fn offsets_beyond_any_struct_are_none() {
        let mut b = Builder::new();
        let int = b.add(INT, "int", false, 4, &[32], 0);
        let inner = b.structure(STRUCT, "", false, &[("deep", int, u32::MAX - 7)]);
        b.structure(STRUCT, "outer", false, &[("", inner, 16), ("named", inner, 16)]);
        let data = b.build();
        let btf = Btf::parse(&data, |_| true).unwrap();
        for path in ["outer.deep", "outer.named.deep"] {
            assert_eq!(btf.offset(path), Err(BtfError::NoField(path.to_owned())));
        }
    }

    #[test]
    fn a_struct_that_holds_itself_ends_the_search() {
        let mut b = Builder::new();
        // Eight anonymous members that are the struct itself: as deep as is looked, 8^16 of them.
        b.structure(STRUCT, "outer", false, &[("", 1, 0); 8]);
        let data = b.build();
        let btf = Btf::parse(&data, |_| true).unwrap();
        assert_eq!(btf.offset("outer.none"), Err(BtfError::NoField("outer.none".to_owned())));
    }

    #[test]
    fn fuzz_btf() {
        let wanted = |name: &[u8]| name.len() < 32;
        fuzz::run("btf", 1_000, [sample()], &["btf_trace_", "outer"], |bytes| {
            // Where it is in memory is the kernel's to say, how it is aligned too.
            if let Ok(btf) = Btf::parse(bytes, wanted) {
                for path in ["outer", "outer.named.high", "outer.high", "outer.flag", "outer.named.named.low"]
                {
                    let _ = btf.offset(path);
                }
                let _ = (btf.has_member("outer", "first"), btf.enumeration("outer"));
                let _ = btf.functions_taking("outer");
                let only = btf.only(["tcp_v4_rcv"].into_iter(), ["netif_rx"].into_iter());
                let again = Btf::parse(&only, wanted).expect("what was written can be read");
                assert_eq!(again.has_function("tcp_v4_rcv"), btf.has_function("tcp_v4_rcv"));
            }
        });
    }

    proptest! {
        #[test]
        fn no_damage_makes_it_panic(at in 0usize..400, value: u8, cut in 0usize..400) {
            let mut data = sample();
            let at = at % data.len();
            data[at] = value;
            let cut = data.len() - cut % data.len();
            if let Ok(btf) = Btf::parse(&data[..cut], |_| true) {
                let _ = btf.offset("outer.named.high");
                let _ = btf.offset("outer.high");
            }
        }
    }
}

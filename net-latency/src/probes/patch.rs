//! Writes field offsets of the running kernel's structs and the settings into the kernel side's instructions ([`Place`]).

use std::ops::Range;

use anyhow::{Context as _, Result};
use net_latency_common::{Offsets, Place, Settings, words};
use object::{
    LittleEndian,
    elf::{FileHeader64, SHF_EXECINSTR},
    read::elf::{FileHeader as _, SectionHeader as _},
};

/// Bytes of an instruction: operation, registers, offset (16 bits), immediate operand (32 bits).
const INSTRUCTION: usize = 8;
const OFFSET: Range<usize> = 2..4;
const IMMEDIATE: Range<usize> = 4..8;

/// `BPF_LD | BPF_DW | BPF_IMM`, which is two instructions long: the second has the upper half of the operand.
const MOVE_64_BITS: u8 = 0x18;
/// `BPF_ALU | BPF_MOV | BPF_K`.
const MOVE_32_BITS: u8 = 0xb4;
/// `BPF_ALU64 | BPF_ADD | BPF_K`.
const ADD: u8 = 0x07;

/// `BPF_LDX | BPF_MEM` of any size.
fn is_load(operation: u8) -> bool {
    const SIZE: u8 = 0x18;
    operation & !SIZE == 0x61
}

/// The object with these offsets and settings in it.
///
/// # Errors
/// What is wrong with the object, or with an offset.
pub(super) fn patched(object: &[u8], offsets: &Offsets, settings: &Settings) -> Result<Vec<u8>> {
    let words = words(offsets, settings);
    let mut patched = object.to_vec();
    each(object, |at, operation, place| {
        let value = words[place.word].wrapping_add(u32::try_from(place.behind)?);
        let too_far = || format!("a field of this kernel lies {value} bytes within its struct");
        if is_load(operation) {
            let offset = i16::try_from(value).with_context(too_far)?;
            patched[at..][OFFSET].copy_from_slice(&offset.to_le_bytes());
        } else {
            if operation == ADD {
                i32::try_from(value).with_context(too_far)?;
            }
            patched[at..][IMMEDIATE].copy_from_slice(&value.to_le_bytes());
        }
        if operation == MOVE_64_BITS {
            patched[at + INSTRUCTION..][IMMEDIATE].copy_from_slice(&words[place.word + 1].to_le_bytes());
        }
        Ok(())
    })?;
    Ok(patched)
}

/// Calls `found` for each instruction that names a place, with its position in the object and its operation.
fn each(object: &[u8], mut found: impl FnMut(usize, u8, Place) -> Result<()>) -> Result<()> {
    let header = FileHeader64::<LittleEndian>::parse(object)?;
    for section in header.sections(LittleEndian, object)?.iter() {
        if section.sh_flags(LittleEndian) & u64::from(SHF_EXECINSTR) == 0 {
            continue;
        }
        let Some((start, len)) = section.file_range(LittleEndian) else { continue };
        let start = usize::try_from(start)?;
        let code = object.get(start..start + usize::try_from(len)?).context("a section without its end")?;
        let mut instructions = code.chunks_exact(INSTRUCTION).enumerate();
        while let Some((number, instruction)) = instructions.next() {
            let operation = instruction[0];
            let place = match operation {
                ADD | MOVE_32_BITS | MOVE_64_BITS => {
                    Place::of_immediate(i32::from_le_bytes(instruction[IMMEDIATE].try_into()?))
                }
                _ if is_load(operation) => {
                    Place::of_load(i16::from_le_bytes(instruction[OFFSET].try_into()?))
                }
                _ => None,
            };
            if operation == MOVE_64_BITS {
                instructions.next();
            }
            if let Some(place) = place {
                found(start + number * INSTRUCTION, operation, place)?;
            }
        }
    }
    Ok(())
}

/// The words that an object names.
#[cfg(test)]
pub(super) fn words_in(object: &[u8]) -> std::collections::BTreeSet<usize> {
    let mut found = std::collections::BTreeSet::new();
    each(object, |_, operation, place| {
        found.insert(place.word);
        found.extend((operation == MOVE_64_BITS).then_some(place.word + 1));
        Ok(())
    })
    .expect("an object of ours");
    found
}

#[cfg(test)]
mod tests {
    use net_latency_common::{
        WORDS,
        offsets::{Field, Group},
    };

    use super::*;

    static FULL: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-full-bpf"));
    static STREAM: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-bpf"));
    static COUNTS: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-counts-bpf"));

    static CONNECTIONS: &[u8] =
        aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-connections-bpf"));

    fn offsets() -> Offsets {
        Offsets { sk_buff_next: 8, sk_buff_sk: 24, task_struct_comm: 3000, ..Offsets::default() }
    }

    fn settings() -> Settings {
        Settings { slower_ns: 5_000_000_000, seed: u64::MAX - 1, mark: u32::MAX, ..Settings::default() }
    }

    #[test]
    fn each_word_is_named_by_an_object() {
        let named = &(&words_in(FULL) | &words_in(COUNTS)) | &words_in(CONNECTIONS);
        assert_eq!(named, (0..WORDS).collect());
    }

    /// They would read some other field.
    #[test]
    fn objects_without_fine_stages_name_no_offset_that_is_known_with_them_alone() {
        let mut fine = Offsets::default();
        for field in [Group::Held, Group::Calls].into_iter().flat_map(Field::of) {
            *(field.offset)(&mut fine) = 1;
        }
        let known_later = words(&fine, &Settings::default());
        for object in [STREAM, COUNTS] {
            let unknown: Vec<_> =
                words_in(object).into_iter().filter(|word| known_later[*word] != 0).collect();
            assert!(unknown.is_empty(), "words {unknown:?}");
        }
    }

    #[test]
    fn nothing_is_changed_but_what_names_a_word() {
        let mut patched = patched(FULL, &offsets(), &settings()).unwrap();
        assert_eq!(words_in(&patched), [].into());
        let words = words(&offsets(), &settings());
        let (mut loads, mut longs) = (0, 0);
        each(FULL, |at, operation, place| {
            let value = words[place.word] + u32::try_from(place.behind)?;
            let [first, second] = [at, at + 8].map(|at| at + 4..at + 8);
            if is_load(operation) {
                loads += 1;
                assert_eq!(patched[at + 2..at + 4], value.to_le_bytes()[..2]);
            } else {
                assert_eq!(patched[first], value.to_le_bytes());
            }
            if operation == MOVE_64_BITS {
                longs += 1;
                assert_eq!(patched[second.clone()], words[place.word + 1].to_le_bytes());
                patched[second.clone()].copy_from_slice(&FULL[second]);
            }
            patched[at..at + 8].copy_from_slice(&FULL[at..at + 8]);
            Ok(())
        })
        .unwrap();
        assert!(loads > 100 && longs > 3, "{loads} loads, {longs} long ones");
        assert_eq!(patched, FULL);
    }

    #[test]
    fn what_no_instruction_can_say_is_refused() {
        let far = Offsets { sk_buff_len: 40_000, ..offsets() };
        let error = patched(FULL, &far, &settings()).unwrap_err();
        assert_eq!(error.to_string(), "a field of this kernel lies 40000 bytes within its struct");
        assert!(patched(&FULL[..100], &far, &settings()).is_err());
    }
}

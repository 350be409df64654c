//! Constants in instructions. The layout of the kernel's structs, and the settings, are known when programs are loaded, and not when they
//! are compiled. So an instruction of the kernel side names a word of [`Offsets`] or [`Settings`] where its value belongs, and the user
//! side writes the value there before it loads the programs: a field is read by one instruction. (With a read-only global it takes five:
//! two to read that, two to add, one to read the field.) To the verifier they are constants like all others, and a branch that a setting
//! switches off is no code at all.

use crate::{Offsets, Settings};

/// Words of [`Offsets`], which are the first.
const OFFSETS: usize = size_of::<Offsets>() / size_of::<u32>();
/// Words of both.
pub const WORDS: usize = OFFSETS + size_of::<Settings>() / size_of::<u32>();

/// N bytes behind a field's beginning can be named.
const STEP: usize = 32;
/// What the offset of a load begins with. No entry of a map, and no stack, is that long: no other load has such an offset.
const IN_LOADS: usize = 0x4000;
/// What an immediate operand begins with.
const IN_IMMEDIATES: usize = 0x4e4c_0000;

const _: () = assert!(OFFSETS * STEP <= 0x4000, "a load's offset has 15 bits");

/// What an instruction names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The word.
    pub word: usize,
    /// To add to it: of a field, bytes behind its beginning.
    pub behind: usize,
}

impl Place {
    /// The place of the setting that begins N bytes within [`Settings`].
    #[must_use]
    pub const fn of_setting(at: usize) -> Self {
        Self { word: OFFSETS + at / size_of::<u32>(), behind: 0 }
    }

    /// Of N bytes behind the beginning of the field whose offset begins N bytes within [`Offsets`].
    #[must_use]
    pub const fn of_field(at: usize, behind: usize) -> Self {
        Self { word: at / size_of::<u32>(), behind }
    }

    /// What stands in place of a load's offset.
    #[must_use]
    pub const fn in_load(self) -> i16 {
        assert!(self.word < OFFSETS, "no offset");
        (IN_LOADS + self.number()) as i16
    }

    /// What stands in place of an immediate operand.
    #[must_use]
    pub const fn in_immediate(self) -> i32 {
        (IN_IMMEDIATES + self.number()) as i32
    }

    /// What a load with this offset names, if it names anything.
    #[must_use]
    pub fn of_load(offset: i16) -> Option<Self> {
        Self::numbered(usize::try_from(offset).ok()?.checked_sub(IN_LOADS)?, OFFSETS)
    }

    /// What an immediate operand names, if it names anything.
    #[must_use]
    pub fn of_immediate(operand: i32) -> Option<Self> {
        Self::numbered(usize::try_from(operand).ok()?.checked_sub(IN_IMMEDIATES)?, WORDS)
    }

    const fn number(self) -> usize {
        assert!(self.word < WORDS && self.behind < STEP, "no such place");
        self.word * STEP + self.behind
    }

    fn numbered(number: usize, words: usize) -> Option<Self> {
        let place = Self { word: number / STEP, behind: number % STEP };
        (place.word < words).then_some(place)
    }
}

/// All words, in their order.
#[must_use]
pub fn words(offsets: &Offsets, settings: &Settings) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    // SAFETY: both are `repr(C)`, of integers alone and without padding, and have N words.
    unsafe {
        core::ptr::copy_nonoverlapping(core::ptr::from_ref(offsets).cast(), words.as_mut_ptr(), OFFSETS);
        let rest = words[OFFSETS..].as_mut_ptr();
        core::ptr::copy_nonoverlapping(core::ptr::from_ref(settings).cast(), rest, WORDS - OFFSETS);
    }
    words
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn each_place_is_named_and_found_again() {
        for word in 0..WORDS {
            for behind in 0..STEP {
                let place = Place { word, behind };
                assert_eq!(Place::of_immediate(place.in_immediate()), Some(place));
                if word < OFFSETS {
                    assert_eq!(Place::of_load(place.in_load()), Some(place));
                }
            }
        }
        for offset in [0, -8, 24, 0x3fff, i16::MIN, i16::MAX] {
            assert_eq!(Place::of_load(offset), None);
        }
        for operand in [0, -1, i32::MAX, i32::MIN, 0x4e4b_ffff] {
            assert_eq!(Place::of_immediate(operand), None);
        }
    }

    #[test]
    fn each_word_is_where_its_place_says() {
        let offsets = Offsets { sk_buff_next: 1, task_struct_comm: 2, ..Offsets::default() };
        let settings = Settings { slower_ns: 3 | 4 << 32, ephemeral_ports: 5, ..Settings::default() };
        let words = words(&offsets, &settings);
        let field = |at| words[Place::of_field(at, 0).word];
        let setting = |at| words[Place::of_setting(at).word];
        assert_eq!(field(offset_of!(Offsets, sk_buff_next)), 1);
        assert_eq!(field(offset_of!(Offsets, task_struct_comm)), 2);
        assert_eq!(setting(offset_of!(Settings, slower_ns)), 3);
        assert_eq!(setting(offset_of!(Settings, slower_ns) + 4), 4);
        assert_eq!(setting(offset_of!(Settings, ephemeral_ports)), 5);
    }
}

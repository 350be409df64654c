//! Globs for names of processes, and what the kernel side makes of them.

use std::{fmt, str::FromStr};

use net_latency_common::{Bank, COMM_LEN, GLOBS_PER_BANK, MAX_BANKS};

/// Globs that a filter can have at most.
pub(crate) const MAX_GLOBS: usize = GLOBS_PER_BANK * MAX_BANKS;
/// Bytes that a name has at most.
const NAME_LEN: usize = COMM_LEN - 1;
/// Bits of a [`Bank`] that a glob has.
const LANE: usize = u64::BITS as usize / GLOBS_PER_BANK;

const _: () = assert!(NAME_LEN < LANE, "a bit before each byte of a name, and one behind the last");

/// A pattern for names: `*` is any text, `?` any character, `[a-z]` one of these, `[!a-z]` none of these; `\`
/// takes the next character's meaning.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glob {
    /// As it was written.
    text: String,
    /// What each byte of a name must be.
    elements: Vec<Set>,
    /// Whether there is a star before each of the elements, and behind the last.
    stars: Vec<bool>,
}

/// A set of bytes.
type Set = [u64; 4];

fn add(set: &mut Set, byte: u8) {
    set[usize::from(byte) / 64] |= 1 << (byte % 64);
}

fn has(set: &Set, byte: u8) -> bool {
    set[usize::from(byte) / 64] >> (byte % 64) & 1 == 1
}

impl FromStr for Glob {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("write a name or a pattern, such as nginx, 'ngin*' or 'worker-?'".to_owned());
        }
        let mut elements = Vec::new();
        let mut stars = vec![false];
        let mut rest = text.as_bytes();
        while let Some((&byte, behind)) = rest.split_first() {
            rest = behind;
            let mut set = Set::default();
            match byte {
                b'*' => {
                    *stars.last_mut().expect("there is always one") = true;
                    continue;
                }
                b'?' => set = [u64::MAX; 4],
                b'[' => {
                    let end = take_set(behind, &mut set);
                    rest = &behind[end.ok_or("a set is not closed: write [abc], [a-z] or [!a-z]")?..];
                }
                b'\\' => {
                    let (&next, behind) = rest.split_first().ok_or("nothing follows the last \\")?;
                    add(&mut set, next);
                    rest = behind;
                }
                byte => add(&mut set, byte),
            }
            elements.push(set);
            stars.push(false);
        }
        if elements.len() > NAME_LEN {
            return Err(format!(
                "the kernel keeps {NAME_LEN} bytes of a name, so this would never match; write the first \
                 ones and a *"
            ));
        }
        Ok(Self { text: text.to_owned(), elements, stars })
    }
}

/// Reads what follows a `[` into `set`; how long it is, the closing `]` included, if there is one.
fn take_set(text: &[u8], set: &mut Set) -> Option<usize> {
    let is_negated = matches!(text.first(), Some(b'!' | b'^'));
    let start = usize::from(is_negated);
    let mut at = start;
    loop {
        let from = *text.get(at)?;
        // A bracket in the first place is one of the set.
        if from == b']' && at > start {
            break;
        }
        let to = match text.get(at + 1..at + 3) {
            Some(&[b'-', to]) if to != b']' => {
                at += 2;
                to
            }
            _ => from,
        };
        at += 1;
        (from..=to).for_each(|byte| add(set, byte));
    }
    if is_negated {
        *set = set.map(|word| !word);
    }
    Some(at + 1)
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Glob({:?})", self.text)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The globs as the kernel side reads them. There are [`MAX_GLOBS`] at most.
#[must_use]
pub(crate) fn banks(globs: &[Glob]) -> Vec<Bank> {
    let bank = |globs: &[Glob]| {
        let mut bank = Bank::EMPTY;
        for (number, glob) in globs.iter().enumerate() {
            glob.compile(number * LANE, &mut bank);
        }
        bank
    };
    globs.chunks(GLOBS_PER_BANK).map(bank).collect()
}

impl Glob {
    /// Whether it matches the whole of `name`.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        // How many elements may have been met so far: a bit for each number.
        let mut met = 1_u32;
        for &byte in name {
            let mut next = 0;
            for (number, is_star) in
                self.stars.iter().enumerate().filter(|(number, _)| met >> number & 1 == 1)
            {
                next |= u32::from(*is_star) << number;
                next |=
                    u32::from(self.elements.get(number).is_some_and(|set| has(set, byte))) << (number + 1);
            }
            met = next;
        }
        met >> self.elements.len() & 1 == 1
    }

    /// Adds it to `bank`, in the bits from `lane` on.
    fn compile(&self, lane: usize, bank: &mut Bank) {
        bank.start |= 1 << lane;
        bank.accept |= 1 << (lane + self.elements.len());
        for (number, is_star) in self.stars.iter().enumerate() {
            bank.stay |= u64::from(*is_star) << (lane + number);
        }
        for (number, set) in self.elements.iter().enumerate() {
            for byte in (1..=u8::MAX).filter(|&byte| has(set, byte)) {
                bank.step[usize::from(byte)] |= 1 << (lane + number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;
    use crate::fuzz;

    fn words(name: &[u8]) -> [u64; 2] {
        let mut bytes = [0; COMM_LEN];
        bytes[..name.len()].copy_from_slice(name);
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        [word(0), word(8)]
    }

    fn matches(globs: &[&str], name: &[u8]) -> bool {
        let globs: Vec<Glob> = globs.iter().map(|text| text.parse().expect("a glob")).collect();
        let by_banks = banks(&globs).iter().any(|bank| bank.matches(words(name)));
        assert_eq!(globs.iter().any(|glob| glob.matches(name)), by_banks, "{globs:?} {name:?}");
        by_banks
    }

    /// Whether a name matches by the definition, for globs without sets and escapes.
    fn by_definition(glob: &[u8], name: &[u8]) -> bool {
        match glob.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|taken| by_definition(rest, &name[taken..])),
            Some((b'?', rest)) => !name.is_empty() && by_definition(rest, &name[1..]),
            Some((byte, rest)) => name.first() == Some(byte) && by_definition(rest, &name[1..]),
        }
    }

    /// Whether a set, which begins behind its `[`, has `byte`, and what follows it; `None` if it is not closed.
    fn set_has(set: &[u8], byte: u8) -> Option<(bool, &[u8])> {
        let (is_negated, set) = match set {
            [b'!' | b'^', rest @ ..] => (true, rest),
            _ => (false, set),
        };
        let (mut rest, mut found, mut is_first) = (set, false, true);
        loop {
            rest = match rest {
                [] => return None,
                [b']', behind @ ..] if !is_first => return Some((found != is_negated, behind)),
                [from, b'-', to, behind @ ..] if *to != b']' => {
                    found |= *from <= byte && byte <= *to;
                    behind
                }
                [one, behind @ ..] => {
                    found |= *one == byte;
                    behind
                }
            };
            is_first = false;
        }
    }

    /// Whether a name matches by the definition, sets and escapes included: the latest star takes as little as it can.
    fn by_backtracking(glob: &[u8], name: &[u8]) -> bool {
        let (mut glob, mut name) = (glob, name);
        let mut star = None;
        loop {
            let step = match (glob, name) {
                ([], []) => return true,
                ([b'*', rest @ ..], _) => {
                    star = Some((rest, name));
                    glob = rest;
                    continue;
                }
                ([b'?', rest @ ..], [_, behind @ ..]) => Some((rest, behind)),
                ([b'[', set @ ..], [byte, behind @ ..]) => {
                    let (has, rest) = set_has(set, *byte).expect("it was taken as a glob");
                    has.then_some((rest, behind))
                }
                ([b'\\', one, rest @ ..] | [one, rest @ ..], [byte, behind @ ..]) => {
                    (one == byte).then_some((rest, behind))
                }
                _ => None,
            };
            (glob, name) = match (step, star) {
                (Some(next), _) => next,
                (None, Some((rest, [_, behind @ ..]))) => {
                    star = Some((rest, behind));
                    (rest, behind)
                }
                (None, _) => return false,
            };
        }
    }

    /// The name is what stands behind the last newline.
    #[test]
    fn fuzz_globs() {
        let seeds =
            ["ngin*\nnginx", "[!a-y]?[]x]*\nzz]", "\\*a\\[b*c\n*a[bxc", "*a*b*a\nabba", "w[0-9a]-[a-]\nw1--"];
        fuzz::run("globs", 1_500, seeds.map(Vec::from), &["*", "?", "[a-c]", "[!", "]", "\\"], |bytes| {
            let at = bytes.iter().rposition(|&byte| byte == b'\n').unwrap_or(bytes.len());
            let (glob, name) = (&bytes[..at], bytes.get(at + 1..).unwrap_or_default());
            let name = &name[..name.iter().position(|&byte| byte == 0).unwrap_or(name.len()).min(NAME_LEN)];
            let Ok(text) = str::from_utf8(glob) else { return };
            if text.parse::<Glob>().is_ok() {
                assert_eq!(matches(&[text], name), by_backtracking(glob, name), "{text:?} {name:?}");
            }
        });
    }

    #[test]
    fn a_name_matches_whole() {
        assert!(matches(&["nginx"], b"nginx"));
        for other in [&b"ngin"[..], b"nginx2", b"xnginx", b"NGINX", b""] {
            assert!(!matches(&["nginx"], other), "{other:?}");
        }
        assert!(matches(&["fifteen-letters"], b"fifteen-letters"));
        assert!(matches(&["*"], b"") && matches(&["*"], b"fifteen-letters"));
    }

    #[test]
    fn sets_and_escapes() {
        assert!(matches(&["w[0-9a]*"], b"w7") && matches(&["w[0-9a]*"], b"wab"));
        assert!(!matches(&["w[0-9a]*"], b"wb"));
        assert!(matches(&["[!a-y]"], b"z") && !matches(&["[!a-y]"], b"b"));
        assert!(matches(&["[]x]"], b"]") && matches(&["[a-]"], b"-"));
        assert!(matches(&[r"\*\[\\"], br"*[\") && !matches(&[r"\*"], b"a"));
        assert!(matches(&["?"], b"\xff") && matches(&["[!a]"], b"\x80"));
    }

    #[test]
    fn any_of_several_matches() {
        let globs = ["a*", "b?", "c", "fifteen-letters", "*-end", "?x*y", "q", "r"];
        for (name, is_wanted) in [
            (&b"abc"[..], true),
            (b"b1", true),
            (b"b", false),
            (b"c", true),
            (b"cc", false),
            (b"fifteen-letters", true),
            (b"fifteen-lettera", false),
            (b"front-end", true),
            (b"zx--y", true),
            (b"q", true),
            (b"r", true),
            (b"s", false),
        ] {
            assert_eq!(matches(&globs, name), is_wanted, "{name:?}");
        }
    }

    #[test]
    fn what_can_never_match_is_refused() {
        for text in ["", "[abc", "[", "[!", "a\\", "sixteen-letters!", "sixteen-l?tters!*"] {
            assert!(text.parse::<Glob>().is_err(), "{text}");
        }
        assert!("*a*".parse::<Glob>().is_ok());
    }

    /// Few different characters, so that they often match.
    fn character() -> impl Strategy<Value = u8> {
        prop_oneof![Just(b'a'), Just(b'b'), Just(b'c'), Just(0xe4)]
    }

    proptest! {
        #[test]
        fn the_machine_agrees_with_the_definition(
            globs in vec(vec(prop_oneof![3 => character().prop_filter("ASCII", u8::is_ascii), 1 => Just(b'*'), 1 => Just(b'?')], 1..12), 1..=MAX_GLOBS),
            names in vec(vec(character(), 0..=NAME_LEN), 20),
        ) {
            let texts: Vec<_> = globs.iter().map(|glob| str::from_utf8(glob).expect("ASCII")).collect();
            for name in names {
                let expected = globs.iter().any(|glob| by_definition(glob, &name));
                prop_assert_eq!(matches(&texts, &name), expected, "{:?} {:?}", texts, name);
            }
        }

        #[test]
        fn a_name_made_from_a_glob_matches_it(pieces in vec(vec(character().prop_filter("ASCII", u8::is_ascii), 0..4), 1..5), filler in vec(character(), 0..2)) {
            let glob = pieces.join(&b'*');
            let name = pieces.join(&filler[..]);
            prop_assume!(!glob.is_empty() && name.len() <= NAME_LEN);
            prop_assert!(matches(&[str::from_utf8(&glob).expect("ASCII")], &name));
        }

        #[test]
        fn no_text_panics(text in ".*", set in r"\[[!^]?[\]a-]*") {
            let _unused = (text.parse::<Glob>(), set.parse::<Glob>());
        }
    }
}

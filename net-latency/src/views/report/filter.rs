//! Which of a log's packets the report is about.

use net_latency_common::Direction;

use super::packet::Packet;

/// Packets that meet every condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Process ids; all if empty.
    pub pids: Vec<u32>,
    /// Ports at either end; all if empty.
    pub ports: Vec<u16>,
    /// Patterns for the task's name, with `*` and `?`; all if empty.
    pub comms: Vec<String>,
    /// The only direction.
    pub direction: Option<Direction>,
}

impl Filter {
    /// Whether it lets anything through.
    pub(super) fn is_open(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn matches(&self, packet: &Packet<'_>) -> bool {
        let has_port =
            |port: &u16| packet.ends.is_some_and(|ends| ends.iter().any(|end| end.port() == *port));
        let has_name = |pattern: &String| packet.comm.as_deref().is_some_and(|comm| glob(pattern, comm));
        (self.pids.is_empty() || packet.pid.is_some_and(|pid| self.pids.contains(&pid)))
            && (self.ports.is_empty() || self.ports.iter().any(has_port))
            && (self.comms.is_empty() || self.comms.iter().any(has_name))
            && self.direction.is_none_or(|direction| direction == packet.direction)
    }
}

/// Whether the whole of `text` fits `pattern`, in which `*` is any text and `?` any character.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on if this doesn't fit: behind the last star, one more character left to it.
    let mut retry = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((after, from)) => {
                    retry = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::glob;

    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((b'*', rest)), None) => naive(rest, text),
            (Some((b'*', rest)), Some((_, tail))) => naive(rest, text) || naive(pattern, tail),
            (Some((b'?', rest)), Some((_, tail))) => naive(rest, tail),
            (Some((c, rest)), Some((d, tail))) => c == d && naive(rest, tail),
            (Some(_), None) => false,
        }
    }

    #[test]
    fn a_character_is_one_whatever_its_bytes() {
        assert!(glob("?狐", "火狐") && !glob("?", "火狐"));
    }

    proptest! {
        #[test]
        fn patterns_fit_as_they_read(pattern in "[ab*?]{0,7}", text in "[ab]{0,7}") {
            prop_assert_eq!(glob(&pattern, &text), naive(pattern.as_bytes(), text.as_bytes()));
        }
    }
}

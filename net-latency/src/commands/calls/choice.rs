//! Which functions to trace: those requested that the running kernel has and lets be probed.

use std::{
    collections::BTreeSet,
    io::{self},
};

use glob::Pattern;

use crate::message::tell;
use crate::{
    error::Failure,
    kernel::functions::{self, Addresses, Function, Refused},
    probes::{calls, presets},
    request::{CallsConfig, Preset},
};

/// Functions that can be traced at a time: each is two probes, which take their time to attach and detach.
const MOST: usize = 500;

/// What came of the choice.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) functions: Vec<Function>,
    pub(super) refused: Vec<(String, Refused)>,
    /// Of these functions, and of what else the kernel side needs to know.
    pub(super) addresses: Addresses,
}

impl Choice {
    pub(super) fn make(config: &CallsConfig) -> Result<Self, Failure> {
        let unreadable = |error: io::Error| {
            Failure::cannot_trace(
                format!("cannot read the list of functions: {error}"),
                "run net-latency as root",
            )
        };
        let known = functions::traceable().map_err(unreadable)?;
        let names = choose(&known, &config.functions, &config.presets)?;
        let wanted = names.iter().map(String::as_str).chain(calls::symbols());
        let addresses = functions::addresses(wanted).map_err(unreadable)?;
        let (functions, refused) = functions::probeable(&names, &addresses, &functions::blacklist());
        if let ([], Some((name, reason))) = (functions.as_slice(), refused.first()) {
            return Err(Failure::Usage(format!(
                "{name} can't be traced: {}; name another function",
                reason.reason()
            )));
        }
        Ok(Self { functions, refused, addresses })
    }

    /// Tells stderr what can't be traced.
    pub(super) fn tell(&self) {
        for (name, reason) in &self.refused {
            tell(format_args!("{name} can't be traced: {}", reason.reason()));
        }
    }
}

/// The names among `known`, which are those of the kernel, that are wanted.
fn choose(known: &[String], patterns: &[Pattern], presets: &[Preset]) -> Result<Vec<String>, Failure> {
    let mut names = BTreeSet::new();
    for preset in presets {
        let functions: BTreeSet<_> = presets::functions(*preset).iter().copied().collect();
        let before = names.len();
        names.extend(known.iter().filter(|name| functions.contains(base(name))));
        if names.len() == before && patterns.is_empty() && presets.len() == 1 {
            return Err(Failure::Usage(
                "none of this --preset's functions can be traced on this kernel; choose another preset"
                    .to_owned(),
            ));
        }
    }
    for pattern in patterns {
        let found: Vec<_> = known.iter().filter(|name| pattern.matches(name)).collect();
        if found.is_empty() {
            return Err(Failure::Usage(format!(
                "this kernel has no function {pattern} that can be traced; \
                 /sys/kernel/tracing/available_filter_functions lists those that can"
            )));
        }
        names.extend(found);
    }
    if names.len() > MOST {
        return Err(Failure::Usage(format!(
            "these are {} functions, and at most {MOST} can be traced at a time; name fewer",
            names.len()
        )));
    }
    Ok(names.into_iter().cloned().collect())
}

/// A name without what the compiler put behind it when it changed the function.
fn base(name: &str) -> &str {
    name.split_once('.').map_or(name, |(base, _)| base)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Vec<String> {
        let mut known =
            ["sock_poll", "sock_recvmsg", "__sys_recvfrom", "do_accept.isra.0", "vfs_read", "tcp_sendmsg"]
                .map(str::to_owned)
                .to_vec();
        known.extend((0..=MOST).map(|number| format!("many_{number}")));
        known
    }

    fn chosen(patterns: &[&str], presets: &[Preset]) -> Result<Vec<String>, String> {
        let patterns: Vec<_> = patterns.iter().map(|text| Pattern::new(text).expect("a pattern")).collect();
        choose(&known(), &patterns, presets).map_err(|failure| {
            assert_eq!(failure.exit_code(), 2);
            failure.to_string()
        })
    }

    #[test]
    fn presets_are_what_the_kernel_has_of_them() {
        let found = chosen(&[], &[Preset::Socket]).expect("some");
        assert_eq!(found, ["__sys_recvfrom", "do_accept.isra.0", "sock_poll", "sock_recvmsg"]);
    }

    #[test]
    fn patterns_add_to_presets() {
        let found = chosen(&["vfs_*", "sock_poll"], &[Preset::Tcp]).expect("some");
        assert_eq!(found, ["sock_poll", "tcp_sendmsg", "vfs_read"]);
    }

    #[test]
    fn what_cannot_be_is_said() {
        let said =
            [chosen(&["vfs_*", "no_such_*"], &[]), chosen(&["many_*"], &[]), chosen(&[], &[Preset::Netlink])];
        insta::assert_snapshot!(said.map(|one| one.expect_err("refused")).join("\n"));
    }
}

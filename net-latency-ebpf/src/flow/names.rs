//! Tasks that are wanted by what may change: their name or cgroup.

use net_latency_common::{Bank, MAX_BANKS, MAX_CGROUPS};

use super::{processes, settings::setting};
use crate::bpf::{Array, CgroupArray, map};
use crate::kernel::{memory::hidden, task::Name};

/// Names of tasks to show. When full: an error at the start.
#[map]
static GLOBS: Array<Bank> = Array::with_max_entries(MAX_BANKS as u32, 0);

/// Cgroups of tasks to show. When full: an error at the start.
#[map]
static CGROUPS: CgroupArray = CgroupArray::with_max_entries(MAX_CGROUPS, 0);

/// Whether the task this CPU runs is wanted, which has these names: the thread's, and its process'.
#[inline(always)]
pub(crate) fn current_is_wanted([thread, process]: [Name; 2]) -> bool {
    // Word by word: of a comparison of arrays the compiler makes a call. One name at a time: for two, the function's stack would
    // not fit beside that of its callers.
    let has_other = setting!(filter_comm) != 0 && (thread[0] != process[0] || thread[1] != process[1]);
    named_is_wanted(thread[0], thread[1]) != 0 || has_other && named_is_wanted(process[0], process[1]) != 0
}

/// Whether one name, in two words, is wanted.
///
/// A global function, which the verifier checks once by itself instead of wherever it is called.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn named_is_wanted(start: u64, end: u64) -> u32 {
    let is_wanted = processes::current_is_wanted()
        && (setting!(filter_comm) == 0 || name_matches([start, end]))
        && (setting!(filter_cgroup) == 0 || current_is_in_cgroup());
    u32::from(is_wanted)
}

#[inline(always)]
fn name_matches(name: Name) -> bool {
    let mut index = 0;
    while index < MAX_BANKS as u32 && index < setting!(filter_comm) {
        if let Some(bank) = GLOBS.get(index)
            && bank.matches(name.map(hidden))
        {
            return true;
        }
        index += 1;
    }
    false
}

/// Checked while the task gives or takes bytes, so that the answer holds for bytes that a softirq sends later.
#[inline(always)]
fn current_is_in_cgroup() -> bool {
    let mut index = 0;
    while index < MAX_CGROUPS && index < setting!(filter_cgroup) {
        if CGROUPS.current_task_under_cgroup(index) == Ok(true) {
            return true;
        }
        index += 1;
    }
    false
}

/// Wants tasks whose name ends with this byte, as the user side does.
#[cfg(test)]
pub(crate) fn want_last(byte: u8) {
    let mut bank = Bank { start: 1, stay: 1, accept: 2, ..Bank::EMPTY };
    bank.step[usize::from(byte)] = 1;
    put(0, bank);
}

#[cfg(test)]
fn put(number: u32, bank: Bank) {
    let place = GLOBS.get_ptr_mut(number).expect("a place");
    // SAFETY: an entry of this thread's table, which nothing else refers to.
    unsafe { place.write(bank) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::host::Machine;

    #[test]
    fn only_banks_that_are_in_use_are_looked_at() {
        // The first matches nothing, the second everything.
        let everything = Bank { start: 1, stay: 1, accept: 1, ..Bank::EMPTY };
        for (count, is_wanted) in [(1, false), (2, true)] {
            Machine::reset();
            Machine::with(|machine| machine.settings.filter_comm = count);
            put(1, everything);
            assert_eq!(name_matches([u64::from_le_bytes(*b"nginx\0\0\0"), 0]), is_wanted, "{count} banks");
        }
    }

    /// A bank that matches a name of one byte, which is this one.
    fn is_called(byte: u8) -> Bank {
        let mut bank = Bank { start: 1, accept: 2, ..Bank::EMPTY };
        bank.step[usize::from(byte)] = 1;
        bank
    }

    fn ask(banks: &[Bank], cgroups: u32) {
        Machine::reset();
        for (number, bank) in banks.iter().enumerate() {
            put(number as u32, *bank);
        }
        Machine::with(|machine| {
            machine.settings.filter_comm = banks.len() as u32;
            machine.settings.filter_cgroup = cgroups;
        });
    }

    #[test]
    fn a_thread_is_wanted_by_its_name_or_its_process() {
        let name = |byte: u8| [u64::from(byte), 0];
        ask(&[is_called(b'a'), is_called(b'b')], 0);
        for (thread, process, wanted) in [
            (b'a', b'x', true),
            (b'x', b'b', true),
            (b'b', b'b', true),
            (b'x', b'x', false),
            (b'x', b'y', false),
        ] {
            assert_eq!(current_is_wanted([name(thread), name(process)]), wanted, "{thread} {process}");
        }
        // What differs behind the first word is another name.
        assert!(!current_is_wanted([[u64::MAX >> 8, 1], [u64::MAX >> 8, 2]]));
        Machine::with(|machine| machine.settings.filter_pid = 7);
        assert!(!current_is_wanted([name(b'a'), name(b'a')]));
        Machine::with(|machine| machine.ids = 7 << 32 | 9);
        assert!(current_is_wanted([name(b'a'), name(b'a')]));
    }

    #[test]
    fn cgroups_that_are_asked_for_are_looked_at() {
        for (count, is_in, wanted) in
            [(1, 0b1, true), (1, 0b10, false), (2, 0b10, true), (2, 0b100, false), (0, 0, true)]
        {
            ask(&[], count);
            Machine::with(|machine| machine.in_cgroups = is_in);
            assert_eq!(named_is_wanted(0, 0) != 0, wanted, "{is_in:b} of {count}");
        }
        // Both are wanted.
        ask(&[is_called(b'a')], 1);
        assert_eq!(named_is_wanted(u64::from(b'a'), 0), 0);
        Machine::with(|machine| machine.in_cgroups = 1);
        assert_eq!((named_is_wanted(u64::from(b'a'), 0), named_is_wanted(u64::from(b'b'), 0)), (1, 0));
    }
}

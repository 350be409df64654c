//! Order in memory. On this machine all is in order. A test can have loom show what CPUs see that swap what nothing keeps in order, as
//! arm64's do ([`explore`]): then loom has the words. It does not show all: of the reads of a word it remembers the last, and leaves out
//! some orders for that.

#[cfg(test)]
pub(crate) use model::{explore, read, watch, wrote};

use crate::bpf::entry;

/// Reads a word, once.
pub(crate) fn load(word: *const u64) -> u64 {
    #[cfg(test)]
    if let Some(word) = model::word(word) {
        return word.load();
    }
    // SAFETY: in a map's entry.
    unsafe { word.read_volatile() }
}

/// Returns the pointer; reads by it come after the read of the word that `loaded` gives.
pub(crate) fn after<T>(pointer: *mut T, _loaded: impl FnOnce() -> u64) -> *mut T {
    #[cfg(test)]
    if model::is_running() {
        _loaded();
        model::hold_reads();
    }
    pointer
}

/// All that was read and written before is so before what follows is.
pub(crate) fn in_order(word: *mut u64) {
    add_in_order(word, 0);
}

/// [`in_order`] between reads alone.
pub(crate) fn read_before(word: *mut u64) {
    in_order(word);
}

/// Adds to a word after all that was read and written before, and before all that follows.
pub(crate) fn add_in_order(word: *mut u64, more: u64) {
    #[cfg(test)]
    if let Some(word) = model::word(word) {
        return word.add_in_order(more);
    }
    entry::add(word, more);
}

/// Writes a word after all that was read and written before, and before all that follows.
pub(crate) fn write_in_order(word: *mut u64, value: u64) {
    #[cfg(test)]
    if let Some(word) = model::word(word) {
        return word.write_in_order(value);
    }
    // SAFETY: in a map's entry.
    unsafe { word.write_volatile(value) };
}

#[cfg(test)]
mod model {
    use std::{cell::RefCell, collections::HashMap, rc::Rc, vec::Vec};

    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    /// Words of a model by their address.
    type Words = HashMap<usize, Rc<AtomicU64>>;

    std::thread_local! {
        static WORDS: RefCell<Option<Words>> = const { RefCell::new(None) };
    }

    /// A word that loom has.
    pub(super) struct Word(Rc<AtomicU64>);

    impl Word {
        pub(super) fn load(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }

        /// As arm64 does the kernel's `BPF_FETCH` (a full barrier on both sides: Documentation/bpf/standardization, `bpf_jit_comp.c`).
        pub(super) fn add_in_order(&self, more: u64) {
            fence(Ordering::SeqCst);
            self.0.fetch_add(more, Ordering::AcqRel);
            fence(Ordering::SeqCst);
        }

        pub(super) fn write_in_order(&self, value: u64) {
            fence(Ordering::SeqCst);
            self.0.swap(value, Ordering::AcqRel);
            fence(Ordering::SeqCst);
        }
    }

    /// Whether loom has the words.
    pub(super) fn is_running() -> bool {
        WORDS.with_borrow(Option::is_some)
    }

    /// The word at this address, if loom has it.
    pub(super) fn word(at: *const u64) -> Option<Word> {
        WORDS.with_borrow(|words| words.as_ref()?.get(&at.addr()).cloned().map(Word))
    }

    /// What follows is read after what was read before. More than an address that depends on a word does, which is for what is read by it.
    pub(super) fn hold_reads() {
        fence(Ordering::Acquire);
    }

    /// Has loom run `test` in the orders that it tells apart, with few switches of a thread that could go on.
    pub(crate) fn explore(test: impl Fn() + Send + Sync + 'static) {
        const SWITCHES: usize = 3;
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(SWITCHES);
        model.check(move || {
            WORDS.set(Some(HashMap::new()));
            test();
            WORDS.set(None);
        });
    }

    /// Loom has the words of this value from now on.
    pub(crate) fn watch<T>(value: *mut T) {
        for at in words_of(value) {
            // SAFETY: a word of the value, which is mapped.
            let word = Rc::new(AtomicU64::new(unsafe { at.read() }));
            WORDS.with_borrow_mut(|words| words.as_mut().expect("a model runs").insert(at.addr(), word));
        }
    }

    /// An entry was written where others may read it: for them, a word at a time, in any order.
    pub(crate) fn wrote<T>(entry: *const T) {
        if is_running() {
            // SAFETY: as in `watch`. All of it before another thread goes on.
            let values: Vec<_> = words_of(entry).map(|at| (at, unsafe { at.read() })).collect();
            for (at, value) in values {
                if let Some(Word(word)) = word(at) {
                    word.store(value, Ordering::Relaxed);
                }
            }
        }
    }

    /// The words of an entry as this thread sees them.
    pub(crate) fn read<T>(entry: *const T) -> Vec<u64> {
        words_of(entry).map(super::load).collect()
    }

    fn words_of<T>(value: *const T) -> impl Iterator<Item = *const u64> {
        let first = value.cast::<u64>();
        (0..size_of::<T>() / size_of::<u64>()).map(move |number| first.wrapping_add(number))
    }
}

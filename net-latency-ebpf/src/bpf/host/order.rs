//! Order in memory. On this machine all is in order. A test can have loom show what CPUs of arm64 see of each other
//! ([`model`]).

#[cfg(test)]
pub(crate) use model::{Barrier, explore, is_running, race, share, wrote};
#[cfg(test)]
pub(super) use model::{change, found, share_head};

use crate::bpf::entry;

/// Reads a value that others may write, once.
#[inline]
pub(crate) fn load<T>(from: *const T) -> T {
    // SAFETY: in a map's entry, or what is put there: words, of which any copy is as good.
    let value = unsafe { from.read_volatile() };
    #[cfg(test)]
    let value = model::load(from, value);
    value
}

/// Returns the pointer; reads by it come after the read of the word that `loaded` gives.
#[inline]
pub(crate) fn after<T>(pointer: *mut T, _loaded: impl FnOnce() -> u64) -> *mut T {
    #[cfg(test)]
    if is_running() {
        _loaded();
        model::hold(Barrier::After);
    }
    pointer
}

/// All that was read and written before is so before what follows is.
#[inline]
pub(crate) fn in_order(_word: *mut u64) {
    #[cfg(test)]
    model::hold(Barrier::InOrder);
}

/// [`in_order`] between reads alone.
#[inline]
pub(crate) fn read_before(_word: *mut u64) {
    #[cfg(test)]
    model::hold(Barrier::ReadBefore);
}

/// Adds to a word after all that was read and written before, and before all that follows.
#[inline]
pub(crate) fn add_in_order(word: *mut u64, more: u64) {
    #[cfg(test)]
    model::add(word, more);
    entry::add(word, more);
}

/// Writes a word after all that was read and written before, and before all that follows.
#[inline]
pub(crate) fn write_in_order(word: *mut u64, value: u64) {
    #[cfg(test)]
    model::hold(Barrier::Write);
    // SAFETY: in a map's entry.
    unsafe { word.write_volatile(value) };
    #[cfg(test)]
    {
        wrote(word);
        model::hold(Barrier::Write);
    }
}

/// Memory as CPUs of arm64 have it: loom runs a test in every order of steps, with few switches of a CPU that could go
/// on, and has each read get every value that it may get.
///
/// What a test shares is loom's, and a plain read or write of it is a relaxed one: it may get an older value than is
/// there, unless something keeps the order. A fetching atomic instruction does: it is between two full barriers, as
/// LDADDAL and SWPAL are, and STLXR with its barrier. An address that depends on a word is an acquiring fence behind
/// the read of that word. All else is in order, as it always is here.
///
/// Two things are not as on arm64. No read gets what is written behind it in time, so nobody notices if a read and a
/// later write are swapped. And an address that depends on a word keeps what is read by it behind all that was read
/// before, not behind that word alone.
#[cfg(test)]
mod model {
    use std::{
        cell::{Cell, RefCell},
        collections::HashMap,
        rc::Rc,
        string::String,
        vec::Vec,
    };

    use loom::sync::atomic::{AtomicU64, Ordering, fence};

    use crate::bpf::host::Machine;

    /// What keeps memory in order, of `kernel::arch`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Barrier {
        After,
        InOrder,
        ReadBefore,
        Add,
        Write,
    }

    /// Words by their address.
    type Words = HashMap<usize, Rc<AtomicU64>>;
    /// Where a map begins to look for a key, by the map's number and the key: the address of the value, or 0.
    type Heads = HashMap<(usize, Vec<u8>), Rc<AtomicU64>>;

    /// The place in [`Words`] of one that each step writes.
    const TURN: usize = 0;

    std::thread_local! {
        static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
        static WITHOUT: Cell<Option<Barrier>> = const { Cell::new(None) };
        static WORDS: RefCell<Words> = RefCell::new(Words::new());
        static HEADS: RefCell<Heads> = RefCell::new(Heads::new());
    }

    /// Runs a test, which begins on a machine as new, shares what it will, and has two CPUs race. Then without each of
    /// these barriers: it fails and says so. A test that can't fail proves nothing.
    pub(crate) fn explore(needs: &[(Barrier, &str)], test: fn()) {
        run(None, test);
        for (barrier, said) in needs {
            let barrier = *barrier;
            let failure = std::thread::spawn(move || run(Some(barrier), test)).join();
            let text = failure.err().and_then(|failure| {
                let text = failure.downcast_ref::<&str>().map(|text| String::from(*text));
                text.or_else(|| failure.downcast_ref().cloned())
            });
            assert!(text.as_ref().is_some_and(|text| text.contains(said)), "without {barrier:?}: {text:?}");
        }
    }

    fn run(without: Option<Barrier>, test: fn()) {
        const SWITCHES: usize = 2;
        WITHOUT.set(without);
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(SWITCHES);
        model.check(move || {
            Machine::reset();
            IS_RUNNING.set(true);
            WORDS.set(HashMap::from([(TURN, Rc::new(AtomicU64::new(0)))]));
            HEADS.take();
            test();
            // Loom's are of this run alone.
            WORDS.take();
            HEADS.take();
            IS_RUNNING.set(false);
        });
    }

    /// Another CPU does something while this one does.
    pub(crate) fn race<A: 'static, B>(
        there: impl FnOnce() -> A + 'static,
        here: impl FnOnce() -> B,
    ) -> (A, B) {
        let other = loom::thread::spawn(there);
        let here = here();
        (other.join().expect("it ends"), here)
    }

    /// Whether a model runs. Of most accesses none does.
    #[inline]
    pub(crate) fn is_running() -> bool {
        IS_RUNNING.try_with(Cell::get).expect("the thread runs")
    }

    /// Other CPUs may read and write this value, each word of it by itself. It is what it is now at first.
    pub(crate) fn share<T>(value: *const T) {
        for number in 0..size_of::<T>() / size_of::<u64>() {
            let at = value.cast::<u64>().wrapping_add(number);
            // SAFETY: a word of the value, which has no padding.
            let word = Rc::new(AtomicU64::new(unsafe { at.read_unaligned() }));
            WORDS.with_borrow_mut(|words| words.insert(at.addr(), word));
        }
    }

    /// Other CPUs may look for the key in this map.
    pub(crate) fn share_head(map: usize, key: &[u8]) {
        let head = Rc::new(AtomicU64::new(0));
        HEADS.with_borrow_mut(|heads| heads.insert((map, key.into()), head));
    }

    /// A step in memory, before which other CPUs may work.
    ///
    /// Loom tries both orders of two steps of which one depends on the other. Of a word that is read twice it knows the
    /// last read alone, and would miss that a write may come before another CPU's read (0.7.3). So each step writes a
    /// word that is never read.
    fn step<R>(access: impl FnOnce() -> R) -> R {
        if let Some(turn) = word(TURN) {
            turn.store(0, Ordering::Relaxed);
        }
        access()
    }

    /// The barrier holds back what follows, unless the test is to do without it. Other CPUs may work before a full one.
    #[inline]
    pub(super) fn hold(barrier: Barrier) {
        if is_running() && WITHOUT.get() != Some(barrier) {
            match barrier {
                Barrier::After => fence(Ordering::Acquire),
                _ => step(|| fence(Ordering::SeqCst)),
            }
        }
    }

    fn word(at: usize) -> Option<Rc<AtomicU64>> {
        WORDS.with_borrow(|words| words.get(&at).cloned())
    }

    /// The words of a value that are shared.
    fn shared<T>(value: *const T) -> Vec<(usize, Rc<AtomicU64>)> {
        let word = |number| Some((number, word(value.cast::<u64>().wrapping_add(number).addr())?));
        (0..size_of::<T>() / size_of::<u64>()).filter_map(word).collect()
    }

    /// What this CPU may see of a value in place of what is there.
    #[inline]
    pub(super) fn load<T>(from: *const T, mut value: T) -> T {
        if !is_running() {
            return value;
        }
        for (number, word) in shared(from) {
            let seen = step(|| word.load(Ordering::Relaxed));
            // SAFETY: a word of the value, which has no padding.
            unsafe { (&raw mut value).cast::<u64>().add(number).write_unaligned(seen) };
        }
        value
    }

    /// This CPU has just written a value: others see each word of it some time from now on.
    #[inline]
    pub(crate) fn wrote<T>(value: *const T) {
        if !is_running() {
            return;
        }
        // SAFETY: as in `load`. All of it before another CPU goes on.
        let read = |number| unsafe { value.cast::<u64>().add(number).read_unaligned() };
        let words: Vec<_> = shared(value).into_iter().map(|(number, word)| (word, read(number))).collect();
        for (word, value) in words {
            step(|| word.store(value, Ordering::Relaxed));
        }
    }

    #[inline]
    pub(super) fn add(at: *mut u64, more: u64) {
        if !is_running() {
            return;
        }
        hold(Barrier::Add);
        for (_, word) in shared(at) {
            step(|| word.fetch_add(more, Ordering::Relaxed));
        }
        hold(Barrier::Add);
    }

    #[inline]
    fn head(map: usize, key: &[u8]) -> Option<Rc<AtomicU64>> {
        if is_running() { HEADS.with_borrow(|heads| heads.get(&(map, key.into())).cloned()) } else { None }
    }

    /// What a map has for a key: a lookup depends on what it finds at the head of a list.
    pub(crate) fn found<V>(map: usize, key: &[u8], find: impl FnOnce() -> Option<*mut V>) -> Option<*mut V> {
        let Some(head) = head(map, key) else { return find() };
        let value = step(|| head.load(Ordering::Acquire)) as *mut V;
        (!value.is_null()).then_some(value)
    }

    /// A map gets or loses a value, null for none. It is written before it can be found, and can't be found any more
    /// before its memory is written again, since the list's lock is let go between.
    pub(crate) fn change<V, R>(
        map: usize,
        key: &[u8],
        (value, is_first): (*const V, bool),
        change: impl FnOnce() -> R,
    ) -> R {
        let Some(head) = head(map, key) else { return change() };
        let value = value.addr() as u64;
        // And the change before another step.
        let _ = step(|| match is_first {
            true => head.compare_exchange(0, value, Ordering::Release, Ordering::Relaxed),
            false => Ok(head.swap(value, Ordering::Release)),
        });
        let changed = change();
        if value == 0 {
            fence(Ordering::SeqCst);
        }
        changed
    }
}

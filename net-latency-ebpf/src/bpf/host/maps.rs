//! Maps.
use core::{
    any::Any,
    borrow::Borrow,
    marker::PhantomData,
    mem::{MaybeUninit, size_of},
    ops::{Deref, DerefMut},
    slice,
    sync::atomic::{AtomicUsize, Ordering},
};
use std::{boxed::Box, cell::RefCell, vec, vec::Vec};

#[cfg(test)]
use super::Records;
use super::{CPUS, Machine, local, order};

/// `EEXIST`, `ENOENT` and `E2BIG`, as the kernel returns them.
const EXISTS: i32 = -17;
const IS_NOT_THERE: i32 = -2;
const IS_FULL: i32 = -7;

/// What a thread has in a map.
trait Storage: Any {
    fn reset(&mut self);
}

std::thread_local! {
    static STORES: RefCell<Vec<Option<Box<dyn Storage>>>> = const { RefCell::new(Vec::new()) };
    static RESERVED: RefCell<Vec<Reserved>> = const { RefCell::new(Vec::new()) };
}

/// All maps of this thread are empty.
pub(super) fn reset() {
    local(&STORES, |stores| stores.iter_mut().flatten().for_each(|store| store.reset()));
    local(&RESERVED, Vec::clear);
}

/// A number for a static, by which each thread finds what it has in its place.
pub(crate) struct Place(AtomicUsize);

static NUMBERS: AtomicUsize = AtomicUsize::new(1);

impl Place {
    pub(crate) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    #[inline]
    fn number(&self) -> usize {
        let number = self.0.load(Ordering::Relaxed);
        if number != 0 {
            return number;
        }
        let new = NUMBERS.fetch_add(1, Ordering::Relaxed);
        match self.0.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => new,
            Err(there) => there,
        }
    }

    #[inline]
    fn with<S: Storage, R>(&self, make: impl FnOnce() -> S, work: impl FnOnce(&mut S) -> R) -> R {
        let number = self.number();
        local(&STORES, |stores| {
            if stores.len() <= number {
                stores.resize_with(number + 1, || None);
            }
            let store = stores[number].get_or_insert_with(|| Box::new(make()));
            let store: &mut dyn Any = &mut **store;
            work(store.downcast_mut().expect("a place is of one kind"))
        })
    }
}

/// Entries that are there from the beginning, all zeroes.
pub(crate) struct Entries<T> {
    entries: Box<[MaybeUninit<T>]>,
    touched: Vec<usize>,
    is_touched: Vec<bool>,
}

impl<T: 'static> Entries<T> {
    fn new(count: usize) -> Self {
        Self { entries: Box::new_zeroed_slice(count), touched: Vec::new(), is_touched: vec![false; count] }
    }

    #[inline]
    fn at(&mut self, index: usize) -> Option<*mut T> {
        let entry = self.entries.get_mut(index)?;
        if !self.is_touched[index] {
            self.is_touched[index] = true;
            self.touched.push(index);
        }
        Some(entry.as_mut_ptr())
    }
}

impl<T: 'static> Storage for Entries<T> {
    fn reset(&mut self) {
        for index in self.touched.drain(..) {
            self.entries[index] = MaybeUninit::zeroed();
            self.is_touched[index] = false;
        }
    }
}

/// What [`crate::bpf::entry::Own`] is here.
pub(crate) struct Table<T> {
    place: Place,
    of: PhantomData<fn() -> T>,
}

impl<T: 'static> Table<T> {
    pub(crate) const fn new() -> Self {
        Self { place: Place::new(), of: PhantomData }
    }

    pub(crate) fn at(&self, index: usize, count: usize) -> *mut T {
        self.get(index, count).expect("within the table")
    }

    fn get(&self, index: usize, count: usize) -> Option<*mut T> {
        self.place.with(|| Entries::new(count), |entries| entries.at(index))
    }

    /// Entries that were looked at, with their indices: all others are zeroes.
    #[cfg(test)]
    pub(crate) fn touched(&self, count: usize) -> Vec<(usize, *mut T)> {
        self.place.with(
            || Entries::new(count),
            |entries| {
                entries.touched.iter().map(|index| (*index, entries.entries[*index].as_mut_ptr())).collect()
            },
        )
    }
}

/// `BPF_MAP_TYPE_ARRAY`.
pub(crate) struct Array<T> {
    table: Table<T>,
    entries: AtomicUsize,
}

impl<T: 'static> Array<T> {
    pub(crate) const fn with_max_entries(entries: u32, _flags: u32) -> Self {
        Self { table: Table::new(), entries: AtomicUsize::new(entries as usize) }
    }

    pub(crate) fn get_ptr_mut(&self, index: u32) -> Option<*mut T> {
        self.table.get(index as usize, self.entries.load(Ordering::Relaxed))
    }

    /// Entries that were looked at.
    #[cfg(test)]
    pub(crate) fn touched(&self) -> Vec<*mut T> {
        self.table.touched(self.entries.load(Ordering::Relaxed)).into_iter().map(|(_, entry)| entry).collect()
    }

    pub(crate) fn get_ptr(&self, index: u32) -> Option<*const T> {
        self.get_ptr_mut(index).map(<*mut T>::cast_const)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        // SAFETY: mapped as long as the thread lives, as the kernel's is while programs run; all zeroes are a value, as there.
        self.get_ptr_mut(index).map(|entry| unsafe { &*entry })
    }
}

/// `BPF_MAP_TYPE_PERCPU_ARRAY`.
pub(crate) struct PerCpuArray<T> {
    table: Table<T>,
    entries: usize,
}

impl<T: 'static> PerCpuArray<T> {
    pub(crate) const fn with_max_entries(entries: u32, _flags: u32) -> Self {
        Self { table: Table::new(), entries: entries as usize }
    }

    fn count(&self) -> usize {
        if self.entries == 1 { Machine::with(|machine| machine.room) } else { self.entries }
    }

    /// The entries that were looked at, of any CPU.
    #[cfg(test)]
    pub(crate) fn touched(&self) -> impl Iterator<Item = (u32, *mut T)> {
        let count = self.count();
        let all = self.table.touched(count * CPUS).into_iter();
        all.map(move |(index, entry)| ((index % count) as u32, entry))
    }

    pub(crate) fn get_ptr_mut(&self, index: u32) -> Option<*mut T> {
        let (count, index) = (self.count(), index as usize);
        if index >= count {
            return None;
        }
        self.table.get(super::cpu() as usize * count + index, count * CPUS)
    }

    pub(crate) fn get_ptr(&self, index: u32) -> Option<*const T> {
        self.get_ptr_mut(index).map(<*mut T>::cast_const)
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        // SAFETY: as `Array::get`.
        self.get_ptr_mut(index).map(|entry| unsafe { &*entry })
    }
}

/// An entry of a hash table. Its memory stays what it is when the entry is gone, and is another's later.
struct Node<K, V> {
    key: K,
    value: *mut MaybeUninit<V>,
    used: u64,
}

pub(crate) struct Hash<K, V> {
    nodes: Vec<Node<K, V>>,
    free: Vec<*mut MaybeUninit<V>>,
    looks: u64,
}

impl<K: Copy + 'static, V: 'static> Storage for Hash<K, V> {
    fn reset(&mut self) {
        self.free.extend(self.nodes.drain(..).map(|node| node.value));
    }
}

fn bytes<K>(key: &K) -> &[u8] {
    // SAFETY: keys have no padding, as the kernel compares all of their bytes.
    unsafe { slice::from_raw_parts((&raw const *key).cast(), size_of::<K>()) }
}

impl<K: Copy + 'static, V: 'static> Hash<K, V> {
    fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new(), looks: 0 }
    }

    fn find(&mut self, key: &K) -> Option<*mut V> {
        self.looks += 1;
        let node = self.nodes.iter_mut().find(|node| bytes(&node.key) == bytes(key))?;
        node.used = self.looks;
        Some(node.value.cast())
    }

    fn remove(&mut self, key: &K) -> Result<(), i32> {
        let index = self.nodes.iter().position(|node| bytes(&node.key) == bytes(key)).ok_or(IS_NOT_THERE)?;
        self.free.push(self.nodes.swap_remove(index).value);
        Ok(())
    }

    /// Memory for a new entry with this key.
    fn make_room(&mut self, key: &K, entries: usize, evicts: bool) -> Result<*mut MaybeUninit<V>, i32> {
        if self.nodes.len() >= entries && !self.has(key) {
            if !evicts {
                return Err(IS_FULL);
            }
            let oldest = self.nodes.iter().min_by_key(|node| node.used).map(|node| node.key);
            self.remove(&oldest.ok_or(IS_FULL)?)?;
        }
        Ok(self.free.pop().unwrap_or_else(|| Box::into_raw(Box::new(MaybeUninit::zeroed()))))
    }

    fn has(&self, key: &K) -> bool {
        self.nodes.iter().any(|node| bytes(&node.key) == bytes(key))
    }

    /// The kernel fills a new entry before it lets the old one with its key go.
    fn put(&mut self, key: K, value: *mut MaybeUninit<V>, is_first: bool) -> Result<(), i32> {
        if self.has(&key) {
            if is_first {
                self.free.push(value);
                return Err(EXISTS);
            }
            self.remove(&key)?;
        }
        self.looks += 1;
        self.nodes.push(Node { key, value, used: self.looks });
        Ok(())
    }
}

macro_rules! hash_map {
    ($(#[$doc:meta])* $name:ident, $evicts:literal) => {
        $(#[$doc])*
        pub(crate) struct $name<K, V> {
            place: Place,
            entries: u32,
            of: PhantomData<fn() -> (K, V)>,
        }

        impl<K: Copy + 'static, V: 'static> $name<K, V> {
            pub(crate) const fn with_max_entries(entries: u32, _flags: u32) -> Self {
                Self { place: Place::new(), entries, of: PhantomData }
            }

            fn with<R>(&self, work: impl FnOnce(&mut Hash<K, V>) -> R) -> R {
                self.place.with(Hash::new, work)
            }

            pub(crate) fn get_ptr_mut(&self, key: impl Borrow<K>) -> Option<*mut V> {
                let find = || self.with(|entries| entries.find(key.borrow()));
                #[cfg(test)]
                let find = || order::found(self.place.number(), bytes(key.borrow()), find);
                find()
            }

            pub(crate) fn get_ptr(&self, key: impl Borrow<K>) -> Option<*const V> {
                self.get_ptr_mut(key).map(<*mut V>::cast_const)
            }

            pub(crate) fn insert(&self, key: impl Borrow<K>, value: impl Borrow<V>, flags: u64) -> Result<(), i32> {
                let declared = if self.entries == 1 { usize::MAX } else { self.entries as usize };
                let most = Machine::with(|machine| machine.entries.min(declared));
                let (key, is_first) = (key.borrow(), flags == crate::bpf::NO_EXIST);
                let memory = self.with(|entries| entries.make_room(key, most, $evicts))?;
                let entry = memory.cast::<V>();
                // SAFETY: memory for a value. Its bytes are the entry's: fields that change are in it.
                unsafe { entry.write(order::load(value.borrow())) };
                let put = || self.with(|entries| entries.put(*key, memory, is_first));
                #[cfg(test)]
                let put = || {
                    order::wrote(entry);
                    order::change(self.place.number(), bytes(key), (entry, is_first), put)
                };
                put()
            }

            pub(crate) fn remove(&self, key: impl Borrow<K>) -> Result<(), i32> {
                let remove = || self.with(|entries| entries.remove(key.borrow()));
                #[cfg(test)]
                let none = (core::ptr::null::<V>(), false);
                #[cfg(test)]
                let remove = || order::change(self.place.number(), bytes(key.borrow()), none, remove);
                remove()
            }

            /// Other CPUs may look for these keys, of which none is there yet. What they share of a value says `share`.
            #[cfg(test)]
            pub(crate) fn share(&self, keys: &[K], share: impl Fn(*mut V)) {
                for key in keys {
                    order::share_head(self.place.number(), bytes(key));
                    let memory = Box::into_raw(Box::new(MaybeUninit::<V>::zeroed()));
                    share(memory.cast());
                    self.with(|entries| entries.free.push(memory));
                }
            }
        }
    };
}

hash_map!(
    /// `BPF_MAP_TYPE_HASH`.
    HashMap,
    false
);
hash_map!(
    /// `BPF_MAP_TYPE_LRU_HASH`.
    LruHashMap,
    true
);

#[cfg(test)]
impl<K: Copy + 'static, V: Copy + 'static> HashMap<K, V> {
    /// All entries.
    pub(crate) fn all(&self) -> Vec<(K, V)> {
        // SAFETY: in a map of this thread's machine.
        let entry = |node: &Node<K, V>| (node.key, unsafe { node.value.cast::<V>().read() });
        self.with(|entries| entries.nodes.iter().map(entry).collect())
    }
}

#[cfg(test)]
impl<K: Copy + 'static, V: 'static> LruHashMap<K, V> {
    /// All values.
    pub(crate) fn values(&self) -> Vec<*mut V> {
        self.with(|entries| entries.nodes.iter().map(|node| node.value.cast()).collect())
    }

    /// How many entries there are, and how many there may be.
    pub(crate) fn count(&self) -> (u64, u64) {
        let most = Machine::with(|machine| machine.entries.min(self.entries as usize));
        (self.with(|entries| entries.nodes.len() as u64), most as u64)
    }
}

/// `BPF_MAP_TYPE_PERCPU_HASH`.
pub(crate) struct PerCpuHashMap<K, V> {
    all: HashMap<K, [V; CPUS]>,
}

impl<K: Copy + 'static, V: Copy + 'static> PerCpuHashMap<K, V> {
    pub(crate) const fn with_max_entries(entries: u32, flags: u32) -> Self {
        Self { all: HashMap::with_max_entries(entries, flags) }
    }

    pub(crate) fn get_ptr_mut(&self, key: impl Borrow<K>) -> Option<*mut V> {
        // SAFETY: within the entry.
        self.all.get_ptr_mut(key).map(|entry| unsafe { entry.cast::<V>().add(super::cpu() as usize) })
    }

    pub(crate) fn insert(&self, key: impl Borrow<K>, value: impl Borrow<V>, flags: u64) -> Result<(), i32> {
        self.all.insert(key, [*value.borrow(); CPUS], flags)
    }

    /// All keys, with the values of each CPU.
    #[cfg(test)]
    pub(crate) fn all(&self) -> Vec<(K, [V; CPUS])> {
        self.all.with(|entries| {
            // SAFETY: values in the map, which are whole between two programs.
            entries.nodes.iter().map(|node| (node.key, unsafe { *node.value.cast() })).collect()
        })
    }
}

/// `BPF_MAP_TYPE_CGROUP_ARRAY`.
pub(crate) struct CgroupArray;

impl CgroupArray {
    pub(crate) const fn with_max_entries(_entries: u32, _flags: u32) -> Self {
        Self
    }

    pub(crate) fn current_task_under_cgroup(&self, index: u32) -> Result<bool, i64> {
        Ok(Machine::with(|machine| machine.in_cgroups >> index & 1 != 0))
    }
}

/// A key of an [`LpmTrie`].
pub(crate) struct Key<K> {
    bits: u32,
    data: K,
}

impl<K> Key<K> {
    pub(crate) const fn new(bits: u32, data: K) -> Self {
        Self { bits, data }
    }
}

/// `BPF_MAP_TYPE_LPM_TRIE`.
pub(crate) struct LpmTrie<K, V> {
    all: HashMap<(u32, K), V>,
}

impl<K: Copy + 'static, V: 'static> LpmTrie<K, V> {
    pub(crate) const fn with_max_entries(entries: u32, flags: u32) -> Self {
        Self { all: HashMap::with_max_entries(entries, flags) }
    }

    #[cfg(test)]
    pub(crate) fn insert(&self, key: &Key<K>, value: V) {
        self.all.insert((key.bits, key.data), value, 0).expect("room for it");
    }

    pub(crate) fn get(&self, key: impl Borrow<Key<K>>) -> Option<&V> {
        let Key { bits, data } = key.borrow();
        let is_prefix = |prefix: &(u32, K)| {
            let (all, rest) = ((prefix.0 / 8) as usize, prefix.0 % 8);
            let (one, other) = (bytes(&prefix.1), bytes(data));
            let mask = !(0xff_u8.checked_shr(rest).unwrap_or(0));
            prefix.0 <= *bits
                && one[..all] == other[..all]
                && (rest == 0 || (one[all] ^ other[all]) & mask == 0)
        };
        let found = self.all.with(|entries| {
            entries
                .nodes
                .iter()
                .filter(|node| is_prefix(&node.key))
                .max_by_key(|node| node.key.0)
                .map(|node| node.value)
        });
        // SAFETY: an entry of a table that only a test adds to.
        found.map(|value| unsafe { &*value.cast::<V>().cast_const() })
    }
}

/// `BPF_MAP_TYPE_RINGBUF`.
pub(crate) struct RingBuf {
    place: Place,
}

#[derive(Default)]
struct Ring {
    /// Entries, in the order in which they were reserved, and whether they were submitted.
    entries: Vec<(Box<[u64]>, bool)>,
    bytes: usize,
}

impl Storage for Ring {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

/// An entry that was reserved and not handed back, and of which ring.
struct Reserved {
    entry: *mut u8,
    ring: usize,
    index: usize,
}

/// Whether it is submitted or discarded.
pub(super) fn hand_back(entry: *mut u8, is_submitted: bool) {
    let reserved = local(&RESERVED, |all| {
        let index = all.iter().position(|reserved| reserved.entry == entry);
        all.swap_remove(index.expect("what is handed back was reserved"))
    });
    local(&STORES, |stores| {
        let store: &mut dyn Any = &mut **stores[reserved.ring].as_mut().expect("a ring");
        let ring: &mut Ring = store.downcast_mut().expect("a ring");
        ring.entries[reserved.index].1 = is_submitted;
    });
}

impl RingBuf {
    pub(crate) const fn with_byte_size(_bytes: u32, _flags: u32) -> Self {
        Self { place: Place::new() }
    }

    pub(crate) fn reserve<T: 'static>(&self, _flags: u64) -> Option<RingBufEntry<T>> {
        let most = Machine::with(|machine| machine.ring_bytes);
        let ring = self.place.number();
        let (entry, index) = self.place.with(Ring::default, |ring| {
            if ring.bytes + size_of::<T>() > most {
                return None;
            }
            ring.bytes += size_of::<T>();
            ring.entries.push((vec![0; size_of::<T>().div_ceil(8)].into_boxed_slice(), false));
            let entry = ring.entries.last_mut().map(|(words, _)| words.as_mut_ptr())?;
            Some((entry, ring.entries.len() - 1))
        })?;
        local(&RESERVED, |all| all.push(Reserved { entry: entry.cast(), ring, index }));
        // SAFETY: memory for it that stays where it is until the reader takes it.
        Some(RingBufEntry(unsafe { &mut *entry.cast() }))
    }

    pub(crate) fn query(&self, _flags: u64) -> u64 {
        self.place.with(Ring::default, |ring| ring.bytes as u64)
    }

    /// Takes the submitted records.
    ///
    /// # Panics
    /// If an entry was reserved and not handed back: no program may end so.
    #[cfg(test)]
    pub(crate) fn take(&self) -> Records {
        local(&RESERVED, |all| assert!(all.is_empty(), "an entry was not handed back"));
        self.place.with(Ring::default, |ring| {
            ring.bytes = 0;
            ring.entries
                .drain(..)
                .filter(|(_, is_submitted)| *is_submitted)
                .map(|(words, _)| words.into_vec())
                .collect()
        })
    }
}

/// A reserved entry.
pub(crate) struct RingBufEntry<T: 'static>(&'static mut MaybeUninit<T>);

impl<T> RingBufEntry<T> {
    pub(crate) fn submit(self, _flags: u64) {
        hand_back(self.0.as_mut_ptr().cast(), true);
    }

    #[cfg(feature = "connections")]
    pub(crate) fn discard(self, _flags: u64) {
        hand_back(self.0.as_mut_ptr().cast(), false);
    }
}

impl<T> Deref for RingBufEntry<T> {
    type Target = MaybeUninit<T>;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl<T> DerefMut for RingBufEntry<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0
    }
}

//! The owners of packets, in tables of bounded size.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, Hash};

use foldhash::fast::RandomState;
use net_latency_common::Direction;
use rustc_hash::FxBuildHasher;

use crate::accounting::{
    self as summary, Times,
    exchanges::Role,
    tcp::{Conversation, News, Segment, Tcp},
};
use crate::packet::event::{COLUMNS, Event, Protocol};
use crate::packet::stages::columns;

/// The ways a packet can go.
const WAYS: [(Direction, Protocol); 4] = [
    (Direction::In, Protocol::Tcp),
    (Direction::Out, Protocol::Tcp),
    (Direction::In, Protocol::Udp),
    (Direction::Out, Protocol::Udp),
];

/// What one process or connection has had.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) lines: u64,
    pub(super) bytes: u64,
    /// Total times.
    pub(super) total: Times,
    /// Sum of all total times.
    pub(super) time_ns: u128,
    stages: [[u128; COLUMNS]; WAYS.len()],
    /// The newest name of its process; in a log that lacks it the first thread's rather than another's.
    pub(super) name: Option<Box<str>>,
    name_is_process: bool,
    pub(super) pid: Option<u32>,
    /// The last process that is known.
    pub(super) owner: Option<Owner>,
    /// Lines of the same key may have been counted among the others.
    pub(super) is_rest: bool,
    /// What its connections, or itself, show beside the times.
    pub(super) tcp: Tcp,
    /// How far a connection is with what its packets show together.
    conversation: Conversation,
}

impl Entry {
    fn add(&mut self, owner: Owner, event: &Event<'_>, packet: &summary::Packet<'_>) {
        self.lines += 1;
        self.bytes += u64::from(event.len());
        if let Some(ns) = packet.total {
            self.total.add(ns);
            self.time_ns += u128::from(ns);
        }
        let way = (packet.direction, packet.protocol);
        for (_, sums) in WAYS.iter().zip(&mut self.stages).filter(|(this, _)| **this == way) {
            for (sum, ns) in sums.iter_mut().zip(packet.stages) {
                *sum += u128::from(ns.unwrap_or(0));
            }
        }
        if packet.pid.is_some() || self.owner.is_none() {
            (self.pid, self.owner) = (packet.pid, Some(owner));
        }
        let is_process = packet.process.is_some() || packet.pid.is_some() && event.tid() == packet.pid;
        if let Some(name) = packet.name()
            && (is_process || !self.name_is_process)
            && self.name.as_deref().map(str::as_bytes) != Some(name)
        {
            self.name = Some(String::from_utf8_lossy(name).into());
        }
        self.name_is_process |= is_process;
    }

    /// Adds what a packet of this connection says about it. Tells what that is.
    pub(super) fn converse(&mut self, role: Option<Role>, segment: &Segment) -> News {
        let news = self.conversation.see(role, segment);
        self.tcp.add(&news);
        news
    }

    /// Nothing more will come of this connection that belongs to what came before.
    pub(super) fn finish(&mut self, role: Option<Role>) -> News {
        let news = std::mem::take(&mut self.conversation).finish(role);
        self.tcp.add(&news);
        news
    }

    /// The stage in which most of the time went by, and its part of the time in all stages, in percent.
    pub(super) fn dominant(&self) -> Option<(Direction, &'static str, u64)> {
        let all: u128 = self.stages.iter().flatten().sum();
        let ways = WAYS.into_iter().zip(self.stages);
        let sums = ways.flat_map(|((direction, protocol), sums)| {
            columns(direction, protocol).into_iter().zip(sums).map(move |(name, sum)| (direction, name, sum))
        });
        let (direction, name, longest) = sums.rev().max_by_key(|(.., sum)| *sum)?;
        let percent = (longest * 100 + all / 2).checked_div(all)?;
        Some((direction, name, u64::try_from(percent).unwrap_or(100)))
    }
}

/// A process: its number, and a sum of its name where the log has that. A log says of a number alone neither when its process ended nor
/// that another one has it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Owner {
    pub(super) pid: Option<u32>,
    name: u64,
}

impl Owner {
    pub(super) fn of(event: &Event<'_>) -> Self {
        Self { pid: event.pid(), name: FxBuildHasher.hash_one(u128::from_ne_bytes(event.record().process)) }
    }
}

/// What did not fit, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Others {
    pub(super) lines: u64,
    pub(super) time_ns: u128,
}

/// The entries that account for most of the time. When it is full, the half with the least goes to `others`; one of those
/// that comes again begins anew, and says so.
#[derive(Debug)]
pub(super) struct Table<K> {
    entries: HashMap<K, Entry, RandomState>,
    most: usize,
    others: Others,
    gone: Gone,
}

impl<K: Copy + Eq + Hash> Table<K> {
    /// Room for `most` entries.
    pub(super) fn new(most: usize) -> Self {
        Self { entries: HashMap::default(), most, others: Others::default(), gone: Gone::default() }
    }

    /// Adds an event, which is that packet of the process, to the entry that it then gives.
    pub(super) fn add(
        &mut self,
        key: K,
        owner: Owner,
        event: &Event<'_>,
        packet: &summary::Packet<'_>,
    ) -> &mut Entry {
        if self.entries.len() >= self.most && !self.entries.contains_key(&key) {
            self.prune();
        }
        let new = || Entry { is_rest: self.gone.contains(&key), ..Entry::default() };
        let entry = self.entries.entry(key).or_insert_with(new);
        entry.add(owner, event, packet);
        entry
    }

    /// Each entry.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut Entry)> {
        self.entries.iter_mut()
    }

    /// The entry of that key, if it is there.
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    fn prune(&mut self) {
        let mut ranks: Vec<_> = self.entries.values().map(rank).collect();
        let (_, median, _) = ranks.select_nth_unstable(self.most / 2);
        let median = *median;
        // All equals go, or else none would.
        self.entries.retain(|key, entry| {
            let stays = rank(entry) > median;
            if !stays {
                self.others.lines += entry.lines;
                self.others.time_ns += entry.time_ns;
                self.gone.insert(key);
            }
            stays
        });
    }

    /// The `count` entries with the most time in total, and what all others have.
    pub(super) fn top(&self, count: usize) -> (Vec<(K, &Entry)>, Others)
    where
        K: Ord,
    {
        let mut entries: Vec<_> = self.entries.iter().map(|(key, entry)| (*key, entry)).collect();
        entries.sort_unstable_by(|(one, a), (other, b)| rank(b).cmp(&rank(a)).then(one.cmp(other)));
        let mut others = self.others;
        for (_, entry) in entries.drain(count.min(entries.len())..) {
            others.lines += entry.lines;
            others.time_ns += entry.time_ns;
        }
        (entries, others)
    }

    /// How many there are, if all found room.
    pub(super) fn count(&self) -> Option<usize> {
        (self.gone.count == 0).then_some(self.entries.len())
    }
}

fn rank(entry: &Entry) -> (u128, u64) {
    (entry.time_ns, entry.lines)
}

/// Keys that were let go. May take one for another, never miss one.
#[derive(Debug, Default)]
struct Gone {
    bits: Vec<u64>,
    count: u64,
    hasher: RandomState,
}

impl Gone {
    const WORDS: usize = 1 << 14;

    fn insert(&mut self, key: &impl Hash) {
        self.bits.resize(Self::WORDS, 0);
        self.count += 1;
        let (word, bit) = self.place(key);
        self.bits[word] |= bit;
    }

    fn contains(&self, key: &impl Hash) -> bool {
        let (word, bit) = self.place(key);
        self.bits.get(word).is_some_and(|bits| bits & bit != 0)
    }

    fn place(&self, key: &impl Hash) -> (usize, u64) {
        let hash = self.hasher.hash_one(key);
        let word = usize::try_from(hash >> 6).unwrap_or(usize::MAX) % Self::WORDS;
        (word, 1 << (hash & 63))
    }
}

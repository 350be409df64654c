//! Whose series a packet is counted in: groups by name, up to a bound, and one for all others. Those with the most packets have series of
//! their own, as long as no owner has more than a share of them: an early one with few packets gives way. What a series counts never falls
//! as long as it is there.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use net_latency_common::CellKey;
use rustc_hash::{FxHashMap, FxHashSet};

use super::cells::Cells;
use crate::accounting::{Holder, whose_place};

/// How long a group waits for its name. Then it stays unknown.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the counts of a member that has gone, or of any where the kernel's table is crowded, must stand still before the kernel need
/// not keep them.
const SETTLED: Duration = Duration::from_secs(2);
/// How long the series of a group that has gone stay, so that all scrapers get its last counts.
const KEPT: Duration = Duration::from_secs(300);
/// How long series without a packet stay.
const IDLE: Duration = Duration::from_secs(3600);
/// How long series stay at least, so that two groups don't take them from each other.
const LEAST: Duration = Duration::from_secs(60);
/// How many times as many packets a group must have as the one that gives way to it, and how many more: one that pauses keeps its
/// series.
const MORE: (u64, u64) = (2, 50);
/// Recent packets that a group must have to take another's place.
const FEW: u64 = 16;

/// The values of a group's labels.
pub(crate) type Labels = Vec<String>;
/// As the kernel side knows a group: [`CellKey::group`].
pub(crate) type Id = [u64; 2];

/// What is known of a member's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// All.
    Known(Labels),
    /// There may be more soon; if not, it is this.
    NotYet(Labels),
    /// It is being looked for.
    Soon,
}

/// Finds names.
pub(crate) trait Naming {
    /// The name of a member.
    fn name(&mut self, id: Id) -> Name;
    /// Whether that id has gone for good.
    fn is_gone(&self, id: Id) -> bool;
    /// A number for the owner of a member, which may make many.
    fn owner(&mut self, id: Id) -> u64;
}

/// A member of a group, which the kernel side tells from others. Several may have one name: a container and the one that it was before a
/// restart.
#[derive(Debug)]
struct Member {
    since: Instant,
    name: Option<Labels>,
    /// Counts that were there when its series began.
    base: Cells,
    /// Counts at the last look, and since when they are the same.
    packets: u64,
    changed: Instant,
    /// The kernel side has no counts of it any more.
    is_settled: bool,
    /// It has gone for good.
    is_gone: bool,
}

#[derive(Debug)]
struct Group {
    /// It has series of its own.
    is_own: bool,
    members: Vec<Id>,
    /// Counts of members that the kernel side has no longer.
    past: Cells,
    /// All counts at the last look.
    now: Cells,
    packets: u64,
    changed: Instant,
    /// Packets of late: those of each look count half at the next.
    recent: u64,
    since: Instant,
}

impl Group {
    /// Nothing counted yet.
    fn new(is_own: bool, members: Vec<Id>, now: Instant) -> Self {
        Self {
            is_own,
            members,
            past: Cells::default(),
            now: Cells::default(),
            packets: 0,
            changed: now,
            recent: 0,
            since: now,
        }
    }
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Groups that may have series of their own.
    most: usize,
    /// Those that have.
    own: usize,
    members: FxHashMap<Id, Member>,
    groups: BTreeMap<Labels, Group>,
    /// Counts of groups without series of their own that were forgotten.
    others: Cells,
    /// Counts that the kernel side's table has room for.
    room: usize,
    /// More than half of it is used: members without packets just now make room for new ones.
    is_crowded: bool,
    /// Counts that the kernel side has no longer.
    gone: Cells,
    /// All counts at the last look.
    all: Cells,
}

impl Groups {
    /// None yet; `most` may have series of their own. The kernel side's table has `room` for N counts.
    pub(crate) fn new(most: usize, room: usize) -> Self {
        Self {
            most,
            room,
            is_crowded: false,
            own: 0,
            members: FxHashMap::default(),
            groups: BTreeMap::new(),
            others: Cells::default(),
            gone: Cells::default(),
            all: Cells::default(),
        }
    }

    /// Takes in what the kernel side has counted, in the order of its groups. `forget` takes counts from it that it need not keep any more,
    /// unless they have changed by then, and says so.
    ///
    /// # Errors
    /// Those of `forget`.
    pub(crate) fn look<E>(
        &mut self,
        counts: &[(CellKey, u64)],
        names: &mut impl Naming,
        now: Instant,
        mut forget: impl FnMut(&[(CellKey, u64)]) -> Result<bool, E>,
    ) -> Result<(), E> {
        self.is_crowded = counts.len() >= self.room / 2;
        self.all = self.gone.clone();
        for group in self.groups.values_mut() {
            group.now = group.past.clone();
        }
        for of_one in counts.chunk_by(|(one, _), (other, _)| one.group == other.group) {
            let id = of_one[0].0.group;
            let raw = of_member(of_one);
            self.all.add(&raw);
            if self.take(id, &raw, names, now) && forget(of_one)? {
                self.settle(id, &raw);
            }
        }
        for group in self.groups.values_mut() {
            let packets = group.now.all_packets();
            group.recent = group.recent / 2 + packets.saturating_sub(group.packets);
            if packets != group.packets {
                (group.packets, group.changed) = (packets, now);
            }
        }
        self.age(counts, now);
        while self.give_way(counts, names, now) {}
        Ok(())
    }

    /// Has a group with series give way to one that has none, as [`whose_place`] says. Whether there was one.
    fn give_way(&mut self, counts: &[(CellKey, u64)], names: &mut impl Naming, now: Instant) -> bool {
        if self.own < self.most {
            return false;
        }
        let (own, mut others): (Vec<_>, Vec<_>) = self.groups.iter().partition(|(_, group)| group.is_own);
        others.retain(|(_, group)| group.recent >= FEW);
        if others.is_empty() {
            return false;
        }
        others.sort_unstable_by_key(|(_, group)| Reverse(group.recent));
        let mut owner = |group: &Group| group.members.first().map_or(0, |id| names.owner(*id));
        // A group that has its series for a short time goes last, and then not yet.
        let holders = own.into_iter().map(|(place, group)| {
            let packets = if now - group.since < LEAST { u64::MAX } else { group.recent };
            Holder { place, owner: owner(group), packets }
        });
        let holders: Vec<_> = holders.collect();
        let mut tried = FxHashSet::default();
        let found = others.into_iter().find_map(|(labels, group)| {
            let owner = owner(group);
            let enough = |least: u64| group.recent >= least.saturating_mul(MORE.0).saturating_add(MORE.1);
            let last = tried.insert(owner).then(|| whose_place(&holders, owner, enough)).flatten()?;
            (last.packets < u64::MAX).then(|| (last.place.clone(), labels.clone()))
        });
        let Some((last, heir)) = found else { return false };
        for (labels, is_heir) in [(last, false), (heir, true)] {
            let Some(group) = self.groups.remove(&labels) else { continue };
            self.forget(&group, counts);
            if is_heir {
                // It begins at 0: what it had is among the others, which don't fall.
                self.own += 1;
                let members: Vec<_> =
                    group.members.iter().copied().filter(|id| self.members.contains_key(id)).collect();
                let heir = Group { recent: group.recent, ..Group::new(true, members, now) };
                self.groups.insert(labels, heir);
            }
        }
        true
    }

    /// A group is no more. Its members begin anew when they have packets again.
    fn forget(&mut self, group: &Group, counts: &[(CellKey, u64)]) {
        if group.is_own {
            self.own -= 1;
        } else {
            self.others.add(&group.now);
        }
        for id in &group.members {
            match self.members.get_mut(id) {
                Some(member) if !member.is_settled => {
                    // Its series begin at 0 when it has packets again.
                    let mut of_all = counts.chunk_by(|(one, _), (other, _)| one.group == other.group);
                    let of_it = of_all.find(|of_one| of_one[0].0.group == *id);
                    member.base = of_it.map(of_member).unwrap_or_default();
                }
                _ => drop(self.members.remove(id)),
            }
        }
    }

    /// Adds the counts of a member to the group of that name. Says whether the kernel side need not keep them.
    fn take(&mut self, id: Id, raw: &Cells, names: &mut impl Naming, now: Instant) -> bool {
        let member = self.members.entry(id).or_insert_with(|| Member {
            since: now,
            name: None,
            base: Cells::default(),
            packets: 0,
            changed: now,
            is_settled: false,
            is_gone: false,
        });
        let packets = raw.all_packets();
        if packets != member.packets {
            (member.packets, member.changed, member.is_settled) = (packets, now, false);
        }
        let name = match &member.name {
            Some(name) => name.clone(),
            None => match names.name(id) {
                Name::Known(name) => name,
                Name::NotYet(name) if now - member.since >= PATIENCE => name,
                Name::NotYet(_) | Name::Soon => return false,
            },
        };
        member.name = Some(name.clone());
        let counted = raw.since(&member.base);
        let is_still = now - member.changed >= SETTLED;
        member.is_gone = is_still && names.is_gone(id);
        let is_last = member.is_gone || is_still && self.is_crowded;
        if !counted.is_empty() {
            let Self { groups, own, most, .. } = self;
            let group = groups.entry(name).or_insert_with(|| {
                let is_own = *own < *most;
                *own += usize::from(is_own);
                Group::new(is_own, Vec::new(), now)
            });
            if !group.members.contains(&id) {
                group.members.push(id);
            }
            group.now.add(&counted);
        }
        is_last
    }

    /// The kernel side has forgotten the counts of a member.
    fn settle(&mut self, id: Id, raw: &Cells) {
        self.gone.add(raw);
        let Some(member) = self.members.get_mut(&id) else { return };
        let counted = raw.since(&member.base);
        (member.base, member.packets, member.is_settled) = (Cells::default(), 0, true);
        match member.name.as_ref().and_then(|name| self.groups.get_mut(name)) {
            Some(group) if group.members.contains(&id) => group.past.add(&counted),
            // Its series were forgotten before.
            _ => drop(self.members.remove(&id)),
        }
    }

    /// Forgets groups that have gone, or whose last packet is long ago.
    fn age(&mut self, counts: &[(CellKey, u64)], now: Instant) {
        let Self { groups, members, .. } = self;
        let mut over = Vec::new();
        groups.retain(|_, group| {
            let all = |members: &FxHashMap<Id, Member>, ids: &[Id], is: fn(&Member) -> bool| {
                ids.iter().all(|id| members.get(id).is_none_or(is))
            };
            // A member that has gone sends its last bytes soon.
            group.members.retain(|id| {
                let is_over =
                    |member: &Member| member.is_settled && member.is_gone && now - member.changed >= KEPT;
                let is_over = members.get(id).is_none_or(is_over);
                if is_over {
                    members.remove(id);
                }
                !is_over
            });
            let still = now - group.changed;
            let has_gone = still >= KEPT && all(members, &group.members, |member| member.is_gone);
            let is_gone =
                all(members, &group.members, |member| member.is_settled) && (has_gone || !group.is_own);
            let stays = !is_gone && still < IDLE;
            if !stays {
                over.push(std::mem::replace(group, Group::new(false, Vec::new(), now)));
            }
            stays
        });
        for group in over {
            self.forget(&group, counts);
        }
    }

    /// The groups with series of their own.
    pub(crate) fn own(&self) -> impl Iterator<Item = (&Labels, &Cells)> {
        self.groups.iter().filter(|(_, group)| group.is_own).map(|(labels, group)| (labels, &group.now))
    }

    /// All others together.
    pub(crate) fn others(&self) -> Cells {
        let mut sum = self.others.clone();
        self.groups.values().filter(|group| !group.is_own).for_each(|group| sum.add(&group.now));
        sum
    }

    /// Whether the kernel side's table was more than half full at the last look.
    pub(crate) fn is_crowded(&self) -> bool {
        self.is_crowded
    }

    /// All packets, those too that wait for a name.
    pub(crate) fn all(&self) -> &Cells {
        &self.all
    }
}

/// What the kernel side has counted of one member.
fn of_member(counts: &[(CellKey, u64)]) -> Cells {
    Cells::of_sorted(counts.iter().map(|(key, count)| (key.row, key.cell, *count)))
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, convert::Infallible};

    use net_latency_common::{ROW_TOTAL, row};
    use proptest::prelude::*;

    use super::*;

    /// A kernel side: each has packets in one cell.
    #[derive(Default)]
    struct Kernel(BTreeMap<u64, u64>);

    impl Kernel {
        fn counts(&self) -> Vec<(CellKey, u64)> {
            let key = |id| CellKey { group: [id, 0], row: row(0, ROW_TOTAL), cell: 50 };
            self.0.iter().filter(|(_, count)| **count > 0).map(|(&id, &count)| (key(id), count)).collect()
        }
    }

    /// Names are the tens of ids; `NotYet` those listed.
    #[derive(Default)]
    struct Tens {
        late: HashSet<u64>,
        gone: HashSet<u64>,
    }

    impl Naming for Tens {
        fn name(&mut self, [id, _]: Id) -> Name {
            let name = vec![(id / 10).to_string()];
            if self.late.contains(&id) { Name::NotYet(vec!["unknown".to_owned()]) } else { Name::Known(name) }
        }

        fn is_gone(&self, [id, _]: Id) -> bool {
            self.gone.contains(&id)
        }

        fn owner(&mut self, [id, _]: Id) -> u64 {
            // Each name has its own below 1,000; above, a thousand ids have one.
            if id < 1_000 { id } else { id / 1_000 * 1_000 }
        }
    }

    struct Run {
        kernel: Kernel,
        names: Tens,
        groups: Groups,
        now: Instant,
    }

    impl Run {
        fn new(most: usize) -> Self {
            Self::with_room(most, usize::MAX)
        }

        fn with_room(most: usize, room: usize) -> Self {
            Self {
                kernel: Kernel::default(),
                names: Tens::default(),
                groups: Groups::new(most, room),
                now: Instant::now(),
            }
        }

        fn packets(&mut self, id: u64, count: u64) -> &mut Self {
            *self.kernel.0.entry(id).or_default() += count;
            self
        }

        fn look(&mut self, after_seconds: u64) -> &mut Self {
            self.now += Duration::from_secs(after_seconds);
            let Self { kernel, names, groups, now } = self;
            let counts = kernel.counts();
            let forgotten: Result<(), Infallible> = groups.look(&counts, names, *now, |keys| {
                for (key, _) in keys {
                    kernel.0.remove(&key.group[0]);
                }
                Ok(true)
            });
            forgotten.expect("nothing fails");
            self
        }

        fn shown(&self) -> (Vec<(&str, u64)>, u64, u64) {
            let own = self.groups.own().map(|(labels, cells)| (labels[0].as_str(), cells.all_packets()));
            (own.collect(), self.groups.others().all_packets(), self.groups.all().all_packets())
        }
    }

    #[test]
    fn two_of_one_name_are_one_group() {
        let mut run = Run::new(5);
        run.packets(11, 3).packets(12, 4).packets(20, 5).look(0);
        assert_eq!(run.shown(), (vec![("1", 7), ("2", 5)], 0, 12));
    }

    #[test]
    fn beyond_the_cap_all_are_one() {
        let mut run = Run::new(2);
        run.packets(10, 1).packets(20, 2).look(0);
        run.packets(30, 4).packets(40, 8).packets(10, 16).look(1);
        assert_eq!(run.shown(), (vec![("1", 17), ("2", 2)], 12, 31));
    }

    #[test]
    fn who_has_gone_leaves_the_kernel_at_once_and_its_series_later() {
        let mut run = Run::new(1);
        run.packets(10, 3).look(0);
        run.packets(20, 7).look(0);
        run.names.gone = HashSet::from([10, 20]);
        run.look(3);
        assert_eq!(run.kernel.counts(), []);
        // What has no series of its own is kept as a number only.
        assert_eq!((run.groups.groups.len(), run.groups.members.len()), (1, 1));
        assert_eq!(run.shown(), (vec![("1", 3)], 7, 10));
        // The last bytes that it wrote may still be sent.
        run.packets(10, 1).look(10);
        assert_eq!(run.shown(), (vec![("1", 4)], 7, 11));
        run.look(10).look(KEPT.as_secs());
        assert_eq!(run.shown(), (vec![], 7, 11));
        // Its place is free.
        run.packets(30, 2).look(1);
        assert_eq!(run.shown(), (vec![("3", 2)], 7, 13));
        assert_eq!(run.groups.members.len(), 1);
    }

    #[test]
    fn a_restart_goes_on_where_it_was() {
        let mut run = Run::new(5);
        run.packets(11, 3).look(0);
        run.names.gone.insert(11);
        run.look(3);
        run.packets(12, 4).look(1);
        assert_eq!(run.shown(), (vec![("1", 7)], 0, 7));
    }

    #[test]
    fn thousands_that_come_and_go_take_little_room() {
        // All of one name, as members that found none in time; and each of its own.
        for (most, tens) in [(5, 1), (5, 10)] {
            let mut run = Run::new(most);
            for life in 0..5_000 {
                let id = life * tens % 100_000;
                run.packets(id, 1).look(1);
                run.names.gone.insert(id);
                run.look(3);
            }
            let (own, others, all) = run.shown();
            assert_eq!(all, 5_000);
            assert!(own.len() <= most && own.iter().map(|(_, count)| count).sum::<u64>() + others <= all);
            assert!(run.kernel.counts().len() <= 2, "{:?}", run.kernel.counts());
            let Groups { members, groups, .. } = &run.groups;
            assert!(members.len() < 200 && groups.len() < 200, "{} {}", members.len(), groups.len());
        }
    }

    #[test]
    fn a_name_is_waited_for_but_not_for_ever() {
        let mut run = Run::new(5);
        run.names.late = HashSet::from([10, 20]);
        run.packets(10, 3).packets(20, 4).look(0);
        assert_eq!(run.shown(), (vec![], 0, 7));
        run.names.late.remove(&10);
        run.look(1);
        assert_eq!(run.shown(), (vec![("1", 3)], 0, 7));
        run.look(PATIENCE.as_secs());
        assert_eq!(run.shown(), (vec![("1", 3), ("unknown", 4)], 0, 7));
    }

    #[test]
    fn who_is_idle_for_long_begins_anew() {
        let mut run = Run::new(1);
        run.packets(10, 3).look(0);
        run.look(IDLE.as_secs());
        assert_eq!(run.shown(), (vec![], 0, 3));
        run.packets(20, 1).look(1);
        run.packets(10, 5).look(1);
        assert_eq!(run.shown(), (vec![("2", 1)], 5, 9));
    }

    #[test]
    fn one_user_with_many_busy_names_leaves_room_for_others() {
        let mut run = Run::new(8);
        let busy = |run: &mut Run| {
            for number in 0..20 {
                run.packets(5_000 + 10 * number, 1_000);
            }
        };
        busy(&mut run);
        run.look(0);
        for _ in 0..2 * LEAST.as_secs() / 10 {
            busy(&mut run);
            run.packets(10, 20).packets(20, 30).look(10);
        }
        let names = |run: &Run| run.shown().0.iter().map(|(name, _)| (*name).to_owned()).collect::<Vec<_>>();
        let first = names(&run);
        assert!(
            first.len() == 8 && ["1", "2"].iter().all(|name| first.iter().any(|it| it == name)),
            "{first:?}"
        );
        // They keep it, however much more the others have.
        for _ in 0..50 {
            busy(&mut run);
            run.packets(10, 20).packets(20, 30).look(10);
        }
        assert_eq!(names(&run), first);
    }

    #[test]
    fn who_came_first_gives_way_to_who_has_more() {
        let mut run = Run::new(2);
        // One packet each is what it takes to be first.
        run.packets(10, 1).packets(20, 1).look(0);
        for _ in 0..LEAST.as_secs() / 10 {
            run.packets(10, 1).packets(20, 1).packets(30, 100).look(10);
        }
        let (own, others, all) = run.shown();
        assert_eq!((own, others, all), (vec![("2", 7), ("3", 0)], 600, 614));
        run.packets(10, 1).packets(30, 100).look(10);
        assert_eq!(run.shown(), (vec![("2", 7), ("3", 100)], 601, 715));
        // One with somewhat more takes nothing from it.
        for _ in 0..100 {
            run.packets(20, 99).packets(30, 100).packets(40, 150).look(10);
        }
        let (own, ..) = run.shown();
        assert_eq!(own.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["2", "3"]);
    }

    #[test]
    fn where_the_table_is_crowded_who_is_idle_makes_room() {
        let mut run = Run::with_room(2, 100);
        run.packets(10, 5).packets(20, 1_000).look(0);
        let mut sent = 1_005;
        for number in 0..500u64 {
            // A new member each second, with one packet; one of those with series has some too.
            run.packets(1_000 + number * 10, 1).packets(20, 3).look(1);
            sent += 4;
            let (_, _, all) = run.shown();
            assert_eq!(all, sent);
            assert!(run.kernel.0.len() <= 53, "{} counts in the kernel", run.kernel.0.len());
        }
        // Those that had series before have them, and all that they had.
        assert_eq!(run.shown().0, [("1", 5), ("2", 2_500)]);
        assert!(!run.kernel.0.contains_key(&10) && run.kernel.0.contains_key(&20));
        run.packets(10, 7).look(1);
        assert_eq!(run.shown().0, [("1", 12), ("2", 2_500)]);
        let Groups { members, groups, .. } = &run.groups;
        assert!(members.len() < 60 && groups.len() < 60, "{} {}", members.len(), groups.len());
    }

    #[test]
    fn what_was_counted_meanwhile_is_not_forgotten() {
        let mut run = Run::with_room(2, 2);
        run.packets(10, 5).look(0);
        let counts = run.kernel.counts();
        let Run { names, groups, now, .. } = &mut run;
        let Ok(()) = groups.look::<Infallible>(&counts, names, *now + SETTLED, |_| Ok(false));
        run.look(SETTLED.as_secs() + 1).packets(10, 1).look(1);
        assert_eq!(run.shown(), (vec![("1", 6)], 0, 6));
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_falls(room in prop_oneof![Just(usize::MAX), Just(4)], steps in proptest::collection::vec((0..60u64, 0..5u64, 0..900u64, any::<bool>()), 1..200)) {
            let mut run = Run::with_room(2, room);
            let mut sent = 0;
            let mut before = BTreeMap::new();
            let mut others_before = 0;
            for (id, count, wait, goes) in steps {
                if !run.names.gone.contains(&id) {
                    run.packets(id, count);
                    sent += count;
                }
                if goes {
                    run.names.gone.insert(id);
                }
                run.look(wait);
                let (own, others, all) = run.shown();
                prop_assert_eq!(all, sent);
                prop_assert!(own.len() <= 2);
                prop_assert!(others >= others_before);
                let own: BTreeMap<_, _> = own.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
                for (name, count) in &own {
                    prop_assert!(before.get(name).is_none_or(|earlier| earlier <= count), "{} fell", name);
                }
                (before, others_before) = (own, others);
            }
        }
    }
}

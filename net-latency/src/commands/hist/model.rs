//! What the kernel side has counted, put together: groups, and in each the ways with their rows.

use std::cmp::Reverse;

use net_latency_common::{CellKey, Direction, FINE_ROWS, ROW_TOTAL, TRAFFIC_KINDS};

use crate::{
    accounting::{KernelTimes, Reasons, object::Stage},
    packet::{
        event::{COLUMNS, Protocol},
        stages::{Stage as Name, of_row, parts, way},
    },
};

/// All counts at one moment, in the order of group, row and cell.
pub(super) type Counts = Vec<(CellKey, u64)>;

/// The counts between `earlier` and `now`. A count never falls.
pub(super) fn since(now: &Counts, earlier: &Counts) -> Counts {
    let order = |key: &CellKey| (key.group, key.row, key.cell);
    let mut rest = earlier.iter().peekable();
    let mut left = Vec::new();
    for &(key, count) in now {
        while rest.next_if(|(before, _)| order(before) < order(&key)).is_some() {}
        let before = rest.next_if(|(before, _)| *before == key).map_or(0, |(_, count)| *count);
        left.push((key, count - before));
    }
    left.retain(|(_, count)| *count > 0);
    left
}

/// The times of one way.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) direction: Direction,
    pub(super) protocol: Protocol,
    /// Times of the columns in display order, of the total, and, where requested, of the parts.
    rows: [KernelTimes; FINE_ROWS as usize],
}

/// A row of a way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    /// Its number.
    pub(super) number: usize,
    /// What time it has; `None` for that from the first stage to the last.
    pub(super) stage: Option<Name>,
    pub(super) times: &'a KernelTimes,
}

impl Row<'_> {
    /// Whether it is a part.
    pub(super) fn is_part(&self) -> bool {
        self.number > ROW_TOTAL as usize
    }
}

impl Way {
    pub(super) fn total(&self) -> &KernelTimes {
        &self.rows[ROW_TOTAL as usize]
    }

    /// Its rows: the columns, the total, and the parts if there are any.
    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let has_parts = self.rows[COLUMNS + 1..].iter().any(|times| times.packets() > 0);
        let parts = parts(self.direction, self.protocol).filter(move |_| has_parts);
        let all = (0..=COLUMNS).chain(parts.map(|(part, _)| COLUMNS + 1 + part));
        let stage = |number| of_row(self.direction, self.protocol, number);
        all.map(move |number| Row { number, stage: stage(number), times: &self.rows[number] })
    }

    /// The stage in which most of the time was spent. Where parts are known, those of an incoming packet are in place of its
    /// last column, and those of an outgoing one follow its columns.
    pub(super) fn dominant(&self) -> Option<Name> {
        let is_split =
            self.direction == Direction::In && self.rows().any(|row| row.is_part() && row.times.sum() > 0);
        let rows = self.rows().filter(|row| !(is_split && row.number == COLUMNS - 1));
        let sums = rows.filter_map(|row| Some((row.stage?, row.times.sum(), row.number)));
        // The first of equals.
        let longest =
            sums.filter(|(_, sum, _)| *sum > 0).max_by_key(|&(_, sum, number)| (sum, Reverse(number)));
        longest.map(|(stage, ..)| stage)
    }
}

/// The id of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    /// As in [`CellKey::group`].
    One([u64; 2]),
    /// N that are not shown one by one.
    Others(usize),
}

/// Packets that belong together.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) id: Id,
    /// Those with packets.
    pub(super) ways: Vec<Way>,
}

impl Group {
    pub(super) fn packets(&self) -> u64 {
        self.ways.iter().map(|way| way.total().packets()).sum()
    }

    /// The longest of its ways' p99.
    fn slowness(&self) -> Option<u64> {
        self.ways.iter().filter_map(|way| way.total().quantile(990)).max()
    }
}

/// Packets of one direction.
pub(super) fn packets(groups: &[Group], direction: Direction) -> u64 {
    let ways = groups.iter().flat_map(|group| &group.ways);
    ways.filter(|way| way.direction == direction).map(|way| way.total().packets()).sum()
}

/// Why times are unknown, of all groups together.
pub(super) fn reasons(groups: &[Group]) -> Reasons {
    let mut sum = Reasons::default();
    let rows = groups.iter().flat_map(|group| &group.ways).flat_map(Way::rows);
    rows.for_each(|row| sum.add(row.times.reasons()));
    sum
}

/// The figures of all rows, of which there must be one group, for the footer.
pub(super) fn stages(groups: &[Group]) -> Vec<Stage> {
    let rows = |way: &Way| {
        let stage = |row: Row<'_>| Stage::new(way.direction, way.protocol, row.number, &row.times.figures());
        way.rows().map(stage).collect::<Vec<_>>()
    };
    groups.iter().flat_map(|group| &group.ways).flat_map(rows).collect()
}

/// The groups, those with the longest p99 of the total first; behind `top` of them, one that holds the rest.
pub(super) fn groups(counts: &Counts, top: usize) -> Vec<Group> {
    let mut groups: Vec<_> = counts
        .chunk_by(|(one, _), (other, _)| one.group == other.group)
        .map(|cells| Group { id: Id::One(cells[0].0.group), ways: ways(cells) })
        .collect();
    // Sorting is stable: equals stay in the order of their keys.
    groups.sort_by_cached_key(|group| Reverse((group.slowness(), group.packets())));
    if groups.len() > top {
        let rest = groups.split_off(top);
        groups.push(together(&rest));
    }
    groups
}

fn ways(cells: &[(CellKey, u64)]) -> Vec<Way> {
    let distribution = |row: u32| {
        let of_row = cells.iter().filter(|(key, _)| key.row == row);
        KernelTimes::of(of_row.map(|(key, count)| (key.cell, *count)))
    };
    let way = |traffic: u32| {
        let (direction, protocol) = way(traffic);
        let rows = std::array::from_fn(|row| distribution(net_latency_common::row(traffic, row as u32)));
        Way { direction, protocol, rows }
    };
    (0..TRAFFIC_KINDS).map(way).filter(|way| way.rows.iter().any(|row| row.packets() > 0)).collect()
}

fn together(groups: &[Group]) -> Group {
    let mut sum: Vec<Way> = Vec::new();
    for way in groups.iter().flat_map(|group| &group.ways) {
        let same = |other: &&mut Way| (other.direction, other.protocol) == (way.direction, way.protocol);
        match sum.iter_mut().find(same) {
            Some(sum) => sum.rows.iter_mut().zip(&way.rows).for_each(|(sum, row)| sum.merge(row)),
            None => sum.push(way.clone()),
        }
    }
    sum.sort_by_key(|way| (way.protocol, way.direction as u8));
    Group { id: Id::Others(groups.len()), ways: sum }
}

#[cfg(test)]
mod tests {
    use net_latency_common::{PART_CPU, PART_NET, PART_WAIT, ROWS, TRAFFIC_OUT, TRAFFIC_UDP, bucket, row};

    use super::*;

    fn cell(group: u64, row: u32, ns: u64, count: u64) -> (CellKey, u64) {
        (CellKey { group: [group, 0], row, cell: bucket(ns) as u32 }, count)
    }

    #[test]
    fn what_was_there_before_is_taken_away() {
        let earlier = vec![cell(1, 0, 5, 2), cell(1, 3, 70, 2), cell(3, 3, 9, 1)];
        let now = vec![
            cell(1, 0, 5, 2),
            cell(1, 3, 6, 1),
            cell(1, 3, 70, 5),
            cell(2, 3, 7, 4),
            cell(3, 3, 9, 2),
            cell(4, 0, 1, 1),
        ];
        let left =
            vec![cell(1, 3, 6, 1), cell(1, 3, 70, 3), cell(2, 3, 7, 4), cell(3, 3, 9, 1), cell(4, 0, 1, 1)];
        assert_eq!(since(&now, &earlier), left);
        assert_eq!(since(&now, &now), []);
        assert_eq!(since(&now, &vec![]), now);
    }

    #[test]
    fn the_slowest_come_first_and_the_rest_together() {
        let total = |way| row(way, ROW_TOTAL);
        let counts = vec![
            cell(1, total(0), 100, 5),
            cell(2, total(0), 1_000, 1),
            cell(2, total(TRAFFIC_OUT), 100, 2),
            cell(3, total(0), 5_000, 1),
            cell(4, total(0), 90, 3),
            cell(4, total(TRAFFIC_UDP), 90, 1),
        ];
        let groups = groups(&counts, 2);
        let ids: Vec<_> = groups.iter().map(|group| group.id).collect();
        assert_eq!(ids, [Id::One([3, 0]), Id::One([2, 0]), Id::Others(2)]);
        let rest: Vec<_> = groups[2].ways.iter().map(|way| (way.protocol, way.total().count())).collect();
        assert_eq!(rest, [(Protocol::Tcp, 8), (Protocol::Udp, 1)]);
        assert_eq!((packets(&groups, Direction::In), packets(&groups, Direction::Out)), (11, 2));
        assert_eq!(groups.iter().map(Group::packets).sum::<u64>(), 13);
    }

    #[test]
    fn the_dominant_column_has_most_of_the_time() {
        let counts = vec![cell(0, 0, 90, 10), cell(0, 1, 1_000, 1), cell(0, 2, 1_000, 1), cell(0, 3, 90, 1)];
        let column = |counts: &Counts| groups(counts, 1)[0].ways[0].dominant().map(|stage| stage.column);
        assert_eq!(column(&counts), Some("ip-tcp"));
        assert_eq!(column(&vec![cell(0, 3, 90, 1)]), None);
    }

    #[test]
    fn parts_are_in_place_of_what_they_split_or_behind_the_columns() {
        let column = |counts: &Counts| groups(counts, 1)[0].ways[0].dominant().map(|stage| stage.column);
        let part = |way, part: usize| row(way, ROWS + part as u32);
        let mut counts = vec![
            cell(0, 0, 400, 1),
            cell(0, 2, 900, 1),
            cell(0, 3, 1_300, 1),
            cell(0, part(0, PART_WAIT), 500, 1),
            cell(0, part(0, PART_CPU), 300, 1),
        ];
        assert_eq!(column(&counts), Some("wait"));
        counts[4].0.cell = bucket(700) as u32;
        assert_eq!(column(&counts), Some("cpu"));
        let out = TRAFFIC_OUT;
        let counts = vec![
            cell(0, row(out, 0), 400, 1),
            cell(0, row(out, 3), 500, 1),
            cell(0, part(out, PART_NET), 9_000, 1),
        ];
        assert_eq!(column(&counts), Some("net"));
    }
}

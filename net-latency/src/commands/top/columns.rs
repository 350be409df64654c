//! The columns of the tables: what they are called, how wide they are, and which of them fit.

use net_latency_common::Direction;

use super::place::Place;
use crate::{packet::stages::dir, request::SortBy};

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Pid,
    Name,
    Connections,
    /// Protocol and the ends of a connection.
    Flow,
    /// Packets a second.
    Rate(Direction),
    /// The time of a second's packets together: the median of the totals times the rate.
    Spent(Direction),
    P50(Direction),
    P99(Direction),
    Max(Direction),
    /// The stage that takes most of the time, and its share.
    Mostly(Direction),
    /// The longest total of each slice.
    Trend(Direction),
    /// The smoothed round-trip time.
    Rtt,
    /// How long answers took.
    Answer,
    /// Packets whose bytes TCP had sent before.
    Again,
    /// Of one packet: when it was finished.
    Time,
    Len,
    Stage(usize),
    Total,
    Thread,
    Flags,
    /// Of one connection: how it failed, and after how long.
    Failed,
    Lasted,
}

/// A column that has its place on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) column: Column,
    pub(super) x: u16,
    pub(super) width: u16,
}

/// A column and how much it matters.
struct Wish {
    column: Column,
    /// The least width that is of use.
    least: u16,
    /// No use beyond.
    most: u16,
    /// Columns of a higher rank are dropped first where there is too little room.
    rank: u8,
}

/// Columns between two columns.
const GAP: u16 = 1;
/// Width from which addresses of IPv4 are shown whole before there are trends.
const USUAL: u16 = 80;
/// Width from which there is room for the times of both directions.
const BOTH: u16 = 116;

impl Column {
    /// The column of a table that is sorted by that, with the times of the direction that is `shown`.
    pub(super) fn sorted_by(by: SortBy, shown: Direction) -> Self {
        match by {
            SortBy::Time => Self::Spent(shown),
            SortBy::P99 => Self::P99(shown),
            SortBy::P50 => Self::P50(shown),
            SortBy::Max => Self::Max(shown),
            SortBy::In => Self::Rate(Direction::In),
            SortBy::Out => Self::Rate(Direction::Out),
            SortBy::Mostly => Self::Mostly(shown),
            SortBy::Pid => Self::Pid,
            SortBy::Name => Self::Name,
            SortBy::Connections => Self::Connections,
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::Name => "NAME",
            Self::Connections => "CONNS",
            Self::Flow => "CONNECTION",
            Self::Rate(Direction::In) => "IN/s",
            Self::Rate(Direction::Out) => "OUT/s",
            Self::Spent(_) => "TIME/s",
            Self::P50(_) => "P50",
            Self::P99(_) => "P99",
            Self::Max(_) => "MAX",
            Self::Mostly(_) => "MOSTLY",
            Self::Trend(_) => "TREND",
            Self::Rtt => "RTT",
            Self::Answer => "ANSWER",
            Self::Again => "AGAIN",
            Self::Time => "TIME",
            Self::Len => "BYTES",
            Self::Stage(0) => "1st stage",
            Self::Stage(1) => "2nd stage",
            Self::Stage(_) => "3rd stage",
            Self::Total => "TOTAL",
            Self::Thread => "THREAD",
            Self::Flags => "FLAGS",
            Self::Failed => "FAILED",
            Self::Lasted => "AFTER",
        }
    }

    /// What the screen calls it where it stands alone.
    pub(super) fn long_title(self) -> String {
        match self.direction() {
            Some(direction) if !matches!(self, Self::Rate(_)) => {
                format!("{} {}", self.title(), dir(direction))
            }
            _ => self.title().to_owned(),
        }
    }

    /// Whether it is text, which reads from A to Z, from the left.
    pub(super) fn is_text(self) -> bool {
        matches!(
            self,
            Self::Pid | Self::Name | Self::Flow | Self::Mostly(_) | Self::Thread | Self::Flags | Self::Failed
        )
    }

    /// Whether its values begin at the left edge.
    pub(super) fn is_left(self) -> bool {
        matches!(
            self,
            Self::Name
                | Self::Flow
                | Self::Mostly(_)
                | Self::Trend(_)
                | Self::Time
                | Self::Flags
                | Self::Failed
        )
    }

    fn direction(self) -> Option<Direction> {
        match self {
            Self::Rate(direction)
            | Self::Spent(direction)
            | Self::P50(direction)
            | Self::P99(direction)
            | Self::Max(direction)
            | Self::Mostly(direction)
            | Self::Trend(direction) => Some(direction),
            _ => None,
        }
    }

    /// The column with that direction's times.
    pub(super) fn towards(self, direction: Direction) -> Self {
        match self {
            Self::Spent(_) => Self::Spent(direction),
            Self::P50(_) => Self::P50(direction),
            Self::P99(_) => Self::P99(direction),
            Self::Max(_) => Self::Max(direction),
            Self::Mostly(_) => Self::Mostly(direction),
            Self::Trend(_) => Self::Trend(direction),
            other => other,
        }
    }
}

/// The columns of a table that fit `width`, from the left. `shown` is the direction whose times come first in
/// importance.
pub(super) fn columns(place: Place, shown: Direction, width: u16) -> Vec<Placed> {
    let mut wishes = wishes(place, shown, width);
    let needed = |wishes: &[Wish]| wishes.iter().map(|wish| wish.least + GAP).sum::<u16>() - GAP;
    while wishes.len() > 1 && needed(&wishes) > width {
        let least_important = wishes.iter().enumerate().max_by_key(|(_, wish)| wish.rank);
        if let Some((index, _)) = least_important {
            wishes.remove(index);
        }
    }
    let mut left = width.saturating_sub(needed(&wishes));
    // The remaining width goes to text first, then to trends.
    let mut widths: Vec<_> = wishes.iter().map(|wish| wish.least).collect();
    for is_trend in [false, true] {
        for (wish, width) in wishes.iter().zip(&mut widths) {
            if matches!(wish.column, Column::Trend(_)) == is_trend {
                let more = left.min(wish.most - wish.least);
                *width += more;
                left -= more;
            }
        }
    }
    let mut x = 0;
    let place = |(wish, width): (Wish, u16)| {
        let placed = Placed { column: wish.column, x, width: width.min(u16::MAX - x) };
        x += width + GAP;
        placed
    };
    wishes.into_iter().zip(widths).map(place).collect()
}

fn wishes(place: Place, shown: Direction, width: u16) -> Vec<Wish> {
    let wish = |column, least, most, rank| Wish { column, least, most, rank };
    let exactly = |column, width, rank| Wish { column, least: width, most: width, rank };
    let mut wishes = match place {
        Place::Processes => {
            vec![
                exactly(Column::Pid, 7, 1),
                wish(Column::Name, 12, 15, 0),
                exactly(Column::Connections, 5, 10),
            ]
        }
        Place::Connections(_) => {
            vec![wish(Column::Flow, if width < USUAL { 16 } else { 30 }, 66, 0)]
        }
        Place::Packets(_) => {
            return vec![
                exactly(Column::Time, 15, 0),
                exactly(Column::Len, 7, 6),
                exactly(Column::Stage(0), 7, 5),
                exactly(Column::Stage(1), 7, 4),
                exactly(Column::Stage(2), 7, 3),
                exactly(Column::Total, 6, 1),
                exactly(Column::Thread, 7, 7),
                wish(Column::Flags, 9, 40, 8),
            ];
        }
        Place::Failed => {
            return vec![
                exactly(Column::Time, 15, 5),
                exactly(Column::Pid, 7, 3),
                wish(Column::Name, 12, 15, 2),
                wish(Column::Flow, if width < USUAL { 16 } else { 40 }, 66, 0),
                exactly(Column::Failed, 11, 1),
                exactly(Column::Lasted, 6, 4),
            ];
        }
    };
    wishes.extend([exactly(Column::Rate(Direction::In), 5, 5), exactly(Column::Rate(Direction::Out), 5, 6)]);
    if matches!(place, Place::Connections(_)) {
        wishes.extend([
            exactly(Column::Rtt, 5, 10),
            exactly(Column::Answer, 6, 11),
            exactly(Column::Again, 5, 12),
        ]);
    }
    let directions = [Direction::In, Direction::Out];
    for direction in directions {
        if direction == shown || width >= BOTH {
            // The other direction's times are dropped first, and even before them the one that is only for the order.
            let (rank, spent) = if direction == shown { (0, 4) } else { (20, 30) };
            wishes.extend([
                exactly(Column::Spent(direction), 6, spent),
                exactly(Column::P50(direction), 5, rank + 7),
                exactly(Column::P99(direction), 5, rank + 2),
                exactly(Column::Max(direction), 5, rank + 8),
                exactly(Column::Mostly(direction), 12, rank + 3),
                wish(Column::Trend(direction), 6, 60, rank + 9),
            ]);
        }
    }
    wishes
}

/// The columns that a table can be sorted by.
pub(super) fn sortable(placed: &[Placed]) -> Vec<Column> {
    let columns = placed.iter().map(|placed| placed.column);
    columns.filter(|column| !matches!(column, Column::Trend(_))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn titles(place: Place, width: u16) -> String {
        let columns = columns(place, Direction::In, width);
        columns
            .iter()
            .map(|placed| format!("{}:{}", placed.column.long_title(), placed.width))
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn what_matters_most_stays() {
        let [small, usual, wide] = [40, 80, 120].map(|width| titles(Place::Processes, width));
        assert_eq!(small, "PID:7 NAME:13 P99 in:5 MOSTLY in:12");
        assert_eq!(
            usual,
            "PID:7 NAME:15 IN/s:5 OUT/s:5 TIME/s in:6 P50 in:5 P99 in:5 MAX in:5 MOSTLY in:12 TREND in:6"
        );
        assert_eq!(
            wide,
            "PID:7 NAME:15 CONNS:5 IN/s:5 OUT/s:5 TIME/s in:6 P50 in:5 P99 in:5 MAX in:5 MOSTLY in:12 \
             TREND in:9 P50 out:5 P99 out:5 MAX out:5 MOSTLY out:12"
        );
    }

    proptest! {
        #[test]
        fn columns_fit_and_do_not_overlap(width in 0..400u16, number in 0..4usize, out: bool) {
            let key = crate::commands::top::model::tests::key();
            let place = [Place::Processes, Place::Connections(1), Place::Packets(key), Place::Failed][number];
            let shown = if out { Direction::Out } else { Direction::In };
            let columns = columns(place, shown, width);
            prop_assert!(!columns.is_empty());
            for pair in columns.windows(2) {
                prop_assert!(pair[0].x + pair[0].width < pair[1].x);
            }
            let last = columns.last().expect("not empty");
            prop_assert!(columns.len() == 1 || last.x + last.width <= width);
        }
    }
}

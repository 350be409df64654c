//! What the user has chosen: where to look, in which order, at which row.

use std::ops::ControlFlow;

use net_latency_common::Direction;

use super::{
    columns::Column,
    input::Action,
    model::ConnectionKey,
    place::{PLACES, Place},
};
use crate::{packet::stages::opposite, request::SortBy};

/// Longest filter, in characters.
const LONGEST_FILTER: usize = 60;

/// A row, whatever its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKey {
    Process(u32),
    Connection(ConnectionKey),
    /// A packet or a failed connection, by its position: neither lasts.
    Passing(usize),
}

/// The order of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    pub(super) by: Column,
    pub(super) is_ascending: bool,
}

/// The row that is selected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    /// Once the user has moved: this row, wherever it goes.
    row: Option<RowKey>,
    /// Else the row at this position.
    position: usize,
}

/// All choices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) place: Place,
    /// The direction whose times are shown where there is room for one.
    pub(super) shown: Direction,
    /// Only rows that match this are shown.
    pub(super) filter: String,
    /// While the filter is typed: what it was before.
    pub(super) before: Option<String>,
    pub(super) is_help: bool,
    pub(super) is_frozen: bool,
    sorts: [Sort; PLACES],
    cursors: [Cursor; PLACES],
}

impl State {
    /// The processes, sorted as requested; their connections too, if these have that column, else the slowest first.
    pub(super) fn new(shown: Direction, by: SortBy) -> Self {
        let sort = |by: Column| Sort { by, is_ascending: by.is_text() };
        let connections = match by {
            SortBy::Pid | SortBy::Name | SortBy::Connections => SortBy::P99,
            other => other,
        };
        Self {
            place: Place::Processes,
            shown,
            filter: String::new(),
            before: None,
            is_help: false,
            is_frozen: false,
            sorts: [
                sort(Column::sorted_by(by, shown)),
                sort(Column::sorted_by(connections, shown)),
                sort(Column::Total),
                sort(Column::Time),
            ],
            cursors: [Cursor::default(); PLACES],
        }
    }

    /// The order of the table that is shown.
    pub(super) fn sort(&self) -> Sort {
        self.sorts[self.place.number()]
    }

    /// Whether characters are part of a filter.
    pub(super) fn is_typing(&self) -> bool {
        self.before.is_some()
    }

    /// The position of the selected row among `rows`.
    pub(super) fn position(&self, rows: &[RowKey]) -> usize {
        let cursor = self.cursors[self.place.number()];
        let found = cursor.row.and_then(|wanted| rows.iter().position(|row| *row == wanted));
        found.unwrap_or(cursor.position).min(rows.len().saturating_sub(1))
    }

    /// Does what was requested. `rows` are those of the table that is shown, `columns` those that it can be sorted by,
    /// `page` the rows on a screen. Breaks to quit.
    pub(super) fn apply(
        &mut self,
        action: Action,
        rows: &[RowKey],
        columns: &[Column],
        page: usize,
    ) -> ControlFlow<()> {
        if self.is_help && !matches!(action, Action::Quit | Action::Freeze) {
            // Any key leads back to the table.
            self.is_help = false;
            return ControlFlow::Continue(());
        }
        match action {
            Action::Quit => return ControlFlow::Break(()),
            Action::Help => self.is_help = true,
            Action::Freeze => self.is_frozen = !self.is_frozen,
            Action::Prompt => self.before = Some(self.filter.clone()),
            Action::Type(c) if self.filter.chars().count() < LONGEST_FILTER => self.filter.push(c),
            Action::Type(_) => {}
            Action::Erase => drop(self.filter.pop()),
            Action::Accept => self.before = None,
            Action::Cancel => self.filter = self.before.take().unwrap_or_default(),
            Action::Enter => self.enter(rows),
            Action::Back => self.back(),
            Action::Failed => self.place = Place::Failed,
            Action::Move(by) => self.select(rows, self.position(rows).saturating_add_signed(by)),
            Action::Page(by) => {
                let rows_by = by.saturating_mul(isize::try_from(page.max(1)).unwrap_or(isize::MAX));
                self.select(rows, self.position(rows).saturating_add_signed(rows_by));
            }
            Action::First => self.select(rows, 0),
            Action::Last => self.select(rows, usize::MAX),
            Action::SortBy(by) => self.sort_by(columns, by),
            Action::Reverse => {
                let sort = &mut self.sorts[self.place.number()];
                sort.is_ascending = !sort.is_ascending;
            }
            Action::Turn => self.turn(),
            Action::Nothing => {}
        }
        ControlFlow::Continue(())
    }

    fn select(&mut self, rows: &[RowKey], position: usize) {
        let position = position.min(rows.len().saturating_sub(1));
        self.cursors[self.place.number()] = Cursor { row: rows.get(position).copied(), position };
    }

    fn enter(&mut self, rows: &[RowKey]) {
        let position = self.position(rows);
        let place = match rows.get(position) {
            Some(RowKey::Process(pid)) => Place::Connections(*pid),
            Some(RowKey::Connection(key)) => Place::Packets(*key),
            Some(RowKey::Passing(_)) | None => return,
        };
        self.select(rows, position);
        self.place = place;
        self.cursors[place.number()] = Cursor::default();
    }

    fn back(&mut self) {
        match self.place {
            Place::Processes => self.filter.clear(),
            Place::Connections(_) | Place::Failed => self.place = Place::Processes,
            Place::Packets(key) => self.place = Place::Connections(key.pid),
        }
    }

    fn sort_by(&mut self, columns: &[Column], by: isize) {
        let sort = &mut self.sorts[self.place.number()];
        let here = columns.iter().position(|column| *column == sort.by).unwrap_or(0);
        let Ok(count) = isize::try_from(columns.len()) else { return };
        let next = isize::try_from(here).unwrap_or(0).saturating_add(by).checked_rem_euclid(count);
        if let Some(column) = next.and_then(|next| columns.get(usize::try_from(next).ok()?)) {
            *sort = Sort { by: *column, is_ascending: column.is_text() };
        }
    }

    fn turn(&mut self) {
        self.shown = opposite(self.shown);
        // What it is sorted by turns too.
        for sort in &mut self.sorts {
            sort.by = sort.by.towards(self.shown);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [Column::Pid, Column::P50(Direction::In), Column::P99(Direction::In)];

    fn processes(pids: &[u32]) -> Vec<RowKey> {
        pids.iter().map(|pid| RowKey::Process(*pid)).collect()
    }

    fn apply(state: &mut State, action: Action, rows: &[RowKey]) {
        assert_eq!(state.apply(action, rows, &COLUMNS, 10), ControlFlow::Continue(()));
    }

    #[test]
    fn the_selection_stays_on_top_until_moved_and_then_on_its_row() {
        let mut state = State::new(Direction::In, SortBy::P99);
        assert_eq!(state.position(&processes(&[5, 6, 7])), 0);
        assert_eq!(state.position(&processes(&[7, 5, 6])), 0);
        apply(&mut state, Action::Move(1), &processes(&[7, 5, 6]));
        assert_eq!(state.position(&processes(&[7, 5, 6])), 1);
        assert_eq!(state.position(&processes(&[6, 7, 5])), 2);
        // When it is gone, the row in its position.
        assert_eq!(state.position(&processes(&[6, 7])), 1);
        assert_eq!(state.position(&[]), 0);
        apply(&mut state, Action::Page(1), &processes(&[6, 7, 5]));
        assert_eq!(state.position(&processes(&[6, 7, 5])), 2);
        apply(&mut state, Action::Page(-1), &processes(&[6, 7, 5]));
        assert_eq!(state.position(&processes(&[6, 7, 5])), 0);
    }

    #[test]
    fn enter_goes_into_the_row_that_is_selected_and_back_returns_to_it() {
        let mut state = State::new(Direction::In, SortBy::P99);
        let rows = processes(&[5, 6, 7]);
        apply(&mut state, Action::Last, &rows);
        apply(&mut state, Action::Enter, &rows);
        assert_eq!(state.place, Place::Connections(7));
        apply(&mut state, Action::Enter, &[]);
        assert_eq!(state.place, Place::Connections(7), "there is no row");
        apply(&mut state, Action::Back, &[]);
        assert_eq!(state.place, Place::Processes);
        assert_eq!(state.position(&rows), 2);
    }

    #[test]
    fn failed_connections_are_beside_all_others() {
        let mut state = State::new(Direction::In, SortBy::P99);
        apply(&mut state, Action::Enter, &processes(&[5]));
        apply(&mut state, Action::Failed, &[]);
        assert_eq!(state.sort(), Sort { by: Column::Time, is_ascending: false });
        apply(&mut state, Action::Enter, &[RowKey::Passing(0)]);
        assert_eq!(state.place, Place::Failed);
        apply(&mut state, Action::Back, &[]);
        assert_eq!(state.place, Place::Processes);
    }

    #[test]
    fn a_filter_is_typed_and_taken_back() {
        let mut state = State::new(Direction::In, SortBy::P99);
        for action in [Action::Prompt, Action::Type('a'), Action::Type('b'), Action::Erase, Action::Accept] {
            apply(&mut state, action, &[]);
        }
        assert_eq!((state.filter.as_str(), state.is_typing()), ("a", false));
        for action in [Action::Prompt, Action::Type('c'), Action::Cancel] {
            apply(&mut state, action, &[]);
        }
        assert_eq!((state.filter.as_str(), state.is_typing()), ("a", false));
        apply(&mut state, Action::Back, &[]);
        assert_eq!(state.filter, "");
    }

    #[test]
    fn every_column_comes_in_turn_and_the_direction_turns_it() {
        let mut state = State::new(Direction::In, SortBy::P99);
        assert_eq!(state.sort(), Sort { by: Column::P99(Direction::In), is_ascending: false });
        apply(&mut state, Action::SortBy(1), &[]);
        assert_eq!(state.sort(), Sort { by: Column::Pid, is_ascending: true });
        apply(&mut state, Action::SortBy(-1), &[]);
        apply(&mut state, Action::Reverse, &[]);
        apply(&mut state, Action::Turn, &[]);
        assert_eq!(state.sort(), Sort { by: Column::P99(Direction::Out), is_ascending: true });
    }

    #[test]
    fn the_order_is_the_one_asked_for_wherever_it_can_be() {
        let sorts = |by| {
            let mut state = State::new(Direction::Out, by);
            let of_processes = state.sort();
            apply(&mut state, Action::Enter, &processes(&[1]));
            [of_processes, state.sort()]
        };
        let slowest = Sort { by: Column::P99(Direction::Out), is_ascending: false };
        let longest = Sort { by: Column::Max(Direction::Out), is_ascending: false };
        assert_eq!(sorts(SortBy::Max), [longest; 2]);
        assert_eq!(sorts(SortBy::Name), [Sort { by: Column::Name, is_ascending: true }, slowest]);
        assert_eq!(sorts(SortBy::In)[1], Sort { by: Column::Rate(Direction::In), is_ascending: false });
    }

    #[test]
    fn any_key_leaves_the_help_and_quit_quits() {
        let mut state = State::new(Direction::In, SortBy::P99);
        apply(&mut state, Action::Help, &[]);
        assert!(state.is_help);
        apply(&mut state, Action::Nothing, &processes(&[1]));
        assert!(!state.is_help);
        apply(&mut state, Action::Help, &[]);
        apply(&mut state, Action::Enter, &processes(&[1]));
        assert_eq!((state.is_help, state.place), (false, Place::Processes));
        apply(&mut state, Action::Help, &[]);
        assert_eq!(state.apply(Action::Quit, &[], &COLUMNS, 1), ControlFlow::Break(()));
    }
}

//! What a key means.

use super::keys::Key;

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Help,
    Freeze,
    /// Begin to type a filter.
    Prompt,
    /// One more character of the filter.
    Type(char),
    /// Without the last character of the filter.
    Erase,
    /// The filter is as it shall be.
    Accept,
    /// The filter shall be as it was before.
    Cancel,
    /// Into the selected row.
    Enter,
    Back,
    /// To the connections that failed.
    Failed,
    /// N rows down, or up.
    Move(isize),
    /// N pages down, or up.
    Page(isize),
    First,
    Last,
    /// Sort by the next column, or the one before.
    SortBy(isize),
    Reverse,
    /// Show the times of the other direction, where there is room for one.
    Turn,
    /// Only leaves the help.
    Nothing,
}

/// What `key` means; while a filter is typed, characters are part of it.
pub(super) fn action(key: Key, is_typing: bool) -> Action {
    match key {
        Key::Control('c') => Action::Quit,
        Key::Up => Action::Move(-1),
        Key::Down => Action::Move(1),
        Key::PageUp => Action::Page(-1),
        Key::PageDown => Action::Page(1),
        Key::Home => Action::First,
        Key::End => Action::Last,
        Key::Enter if is_typing => Action::Accept,
        Key::Escape if is_typing => Action::Cancel,
        Key::Backspace if is_typing => Action::Erase,
        Key::Char(c) if is_typing => Action::Type(c),
        _ if is_typing => Action::Nothing,
        Key::Enter => Action::Enter,
        Key::Escape | Key::Backspace => Action::Back,
        Key::Left => Action::SortBy(-1),
        Key::Right => Action::SortBy(1),
        Key::Tab => Action::Turn,
        Key::Char(c) => match c {
            'q' | 'Q' => Action::Quit,
            '?' | 'h' | 'H' => Action::Help,
            ' ' | 'p' => Action::Freeze,
            '/' => Action::Prompt,
            'f' => Action::Failed,
            'j' => Action::Move(1),
            'k' => Action::Move(-1),
            'g' => Action::First,
            'G' => Action::Last,
            's' | '>' => Action::SortBy(1),
            'S' | '<' => Action::SortBy(-1),
            'r' => Action::Reverse,
            _ => Action::Nothing,
        },
        Key::Control(_) => Action::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_text_while_a_filter_is_typed_and_control_c_still_quits() {
        assert_eq!(action(Key::Char('q'), false), Action::Quit);
        assert_eq!(action(Key::Char('q'), true), Action::Type('q'));
        assert_eq!(action(Key::Char(' '), true), Action::Type(' '));
        for is_typing in [false, true] {
            assert_eq!(action(Key::Control('c'), is_typing), Action::Quit);
            assert_eq!(action(Key::Down, is_typing), Action::Move(1));
        }
        assert_eq!(action(Key::Escape, true), Action::Cancel);
        assert_eq!(action(Key::Escape, false), Action::Back);
        assert_eq!(action(Key::Tab, true), Action::Nothing);
    }
}

//! Text with a meaning onto the screen, in the colours and characters that the terminal has.

use ratatui_core::{
    buffer::Buffer,
    style::{Color, Modifier, Style},
};
use unicode_width::UnicodeWidthStr as _;

use super::units::Heat;

/// What the terminal can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// No characters beyond ASCII.
    pub(super) is_ascii: bool,
    pub(super) is_colour: bool,
}

/// What a piece of text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ink {
    Plain,
    /// Stands out.
    Strong,
    /// Is there if one looks for it.
    Weak,
    Header,
    /// The header of what the table is sorted by.
    Sorted,
    Selected,
    Heat(Heat),
    /// Something is slow or lost.
    Alert,
    /// The screen stands still, and the like.
    Notice,
}

impl Look {
    pub(super) fn style(self, ink: Ink) -> Style {
        let plain = Style::default();
        let bold = plain.add_modifier(Modifier::BOLD);
        let coloured = |style: Style, colour| if self.is_colour { style.fg(colour) } else { style };
        match ink {
            Ink::Plain | Ink::Heat(Heat::None) => plain,
            Ink::Strong | Ink::Header => bold,
            Ink::Weak => plain.add_modifier(Modifier::DIM),
            Ink::Sorted => coloured(bold.add_modifier(Modifier::UNDERLINED), Color::Cyan),
            Ink::Selected => plain.add_modifier(Modifier::REVERSED),
            Ink::Heat(Heat::Warm) => coloured(plain, Color::Yellow),
            Ink::Heat(Heat::Hot) => coloured(plain, Color::Red),
            Ink::Alert => coloured(bold, Color::Red),
            Ink::Notice => coloured(bold.add_modifier(Modifier::REVERSED), Color::Yellow),
        }
    }

    /// `text`, or its beginning and a sign that there is more, in `width` columns.
    pub(super) fn fit(self, text: &str, width: u16) -> String {
        let width = usize::from(width);
        if text.width() <= width {
            return text.to_owned();
        }
        let more = if self.is_ascii { "~" } else { "…" };
        let mut fitting = String::new();
        for c in text.chars() {
            fitting.push(c);
            if fitting.width() >= width {
                fitting.pop();
                break;
            }
        }
        if width > 0 {
            fitting.push_str(more);
        }
        fitting
    }
}

/// A canvas: the screen's buffer, where everything outside it is ignored.
pub(super) struct Canvas<'a> {
    pub(super) buffer: &'a mut Buffer,
    pub(super) look: Look,
}

impl Canvas<'_> {
    pub(super) fn width(&self) -> u16 {
        self.buffer.area.width
    }

    pub(super) fn height(&self) -> u16 {
        self.buffer.area.height
    }

    /// Puts text at a place, in N columns; returns the column behind it.
    pub(super) fn put(&mut self, (x, y): (u16, u16), width: u16, text: &str, ink: Ink) -> u16 {
        if x >= self.width() || y >= self.height() {
            return x;
        }
        let width = width.min(self.width() - x);
        let text = self.look.fit(text, width);
        self.buffer.set_stringn(x, y, text, width.into(), self.look.style(ink)).0
    }

    /// Puts text so that it ends with the column before `right`.
    pub(super) fn put_right(&mut self, right: u16, y: u16, width: u16, text: &str, ink: Ink) {
        let own = u16::try_from(text.width()).unwrap_or(u16::MAX).min(width);
        self.put((right.saturating_sub(own), y), own, text, ink);
    }

    /// Changes how a whole line looks, not what it says.
    pub(super) fn mark(&mut self, y: u16, ink: Ink) {
        if y < self.height() {
            let area = ratatui_core::layout::Rect { y, height: 1, ..self.buffer.area };
            self.buffer.set_style(area, self.look.style(ink));
        }
    }
}

//! Guests: their content, how they are booted, and what their first process does.

pub(crate) mod demo;
pub(crate) mod init;
pub(crate) mod qemu;

pub(crate) mod image;

mod console;
mod terminal;

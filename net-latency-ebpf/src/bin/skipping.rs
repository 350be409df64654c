//! The full kernel side, of which a test can have hooks skipped.

#![no_std]
#![no_main]

mod object;
mod programs;

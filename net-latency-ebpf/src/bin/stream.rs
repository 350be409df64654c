//! The kernel side that nearly every run loads.

#![no_std]
#![no_main]

mod object;
mod programs;

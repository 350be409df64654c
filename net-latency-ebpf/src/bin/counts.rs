//! The kernel side that counts times, without what few runs ask for besides: an object of its own for the same reason as `full`.

#![no_std]
#![no_main]

mod object;
mod programs;

//! Kernel side of net-latency: what every hook does, the same for fentry, kprobe and tracepoints.
//!
//! `bin/` has the objects and declares their programs; each is a thin wrapper around one function of [`ip`], [`tcp`] or
//! [`udp`] (or of [`journey`], [`calls`] or [`connections`]), instantiated for the way its context lets it read kernel memory
//! ([`kernel::memory`]). Imports run down only: `bin` → `tcp`, `udp`, `ip`, `journey`, `calls`, `connections` → `leaving`, `service` → `slots`,
//! `readers` (and its `processors`), `drops` → `emit` → `flow` → `skb_stamps` → `kernel` → `skips` → `bpf`, which alone knows whether it
//! is a program in the kernel or a test on some machine.
//!
//! Each map stands beside the type it holds. All are bounded and, but for the trie of addresses, preallocated; those that
//! follow packets and sockets evict what was used least recently, so that what the kernel dropped unseen can't fill them.

#![no_std]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "handing a key or a value over by value copies it onto the stack, which has 512 bytes"
)]
#![cfg_attr(
    not(feature = "packets"),
    expect(dead_code, reason = "the smaller objects need only some of what reads the kernel's memory")
)]

pub mod bpf;
// For tests on any machine.
#[cfg(not(target_arch = "bpf"))]
extern crate std;

#[cfg(feature = "calls")]
pub mod calls;
#[cfg(feature = "connections")]
pub mod connections;
#[cfg(feature = "packets")]
mod drops;
#[cfg(feature = "packets")]
pub mod emit;
pub mod flow;
#[cfg(feature = "packets")]
pub mod ip;
#[cfg(feature = "journey")]
pub mod journey;
pub mod kernel;
#[cfg(feature = "fine")]
mod leaving;
#[cfg(test)]
mod lives;
#[cfg(feature = "fine")]
mod processors;
#[cfg(feature = "fine")]
pub mod readers;
#[cfg(feature = "fine")]
mod service;
#[cfg(feature = "packets")]
mod skb_stamps;
#[cfg(feature = "packets")]
pub mod skips;
#[cfg(feature = "packets")]
mod slots;
#[cfg(feature = "packets")]
pub mod tcp;
#[cfg(feature = "packets")]
pub mod udp;

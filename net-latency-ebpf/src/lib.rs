//! Kernel side of net-latency: what every hook does, the same for fentry, kprobe and tracepoints.
//!
//! `programs.rs` declares the programs; each is a thin wrapper around one function of [`ingress`],
//! [`egress`] or [`datagram`], instantiated for the way its context lets it read kernel memory ([`memory`]).
//! A function returns `Err(Counter)` when a packet became no line, or a poorer one, for that reason.

#![no_std]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "handing a key or a value over by value copies it onto the stack, which has 512 bytes"
)]

pub mod calls;
pub mod config;
pub mod connection;
pub mod count;
pub mod datagram;
pub mod egress;
mod emit;
pub mod filter;
pub mod foreign;
#[cfg(feature = "hist")]
pub mod histogram;
pub mod ingress;
#[cfg(feature = "journey")]
pub mod journey;
mod maps;
pub mod memory;
#[cfg(feature = "names")]
pub mod names;
mod overload;
pub mod passing;
pub mod processes;
pub mod skb;
pub mod socket;
mod steps;
mod task;

/// How a hook ended: nothing to say, or what to count.
pub type Outcome = Result<(), net_latency_common::Counter>;

/// Now, in ns of `CLOCK_MONOTONIC`.
#[inline(always)]
fn now() -> u64 {
    // SAFETY: the helper takes nothing and has no side effect.
    unsafe { aya_ebpf::helpers::bpf_ktime_get_ns() }
}

/// Whether TCP sequence number `a` comes before `b` (`before()` in include/net/tcp.h).
#[inline(always)]
fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::before;

    #[test]
    fn sequence_numbers_wrap() {
        assert!(before(1, 2));
        assert!(!before(2, 2));
        assert!(!before(3, 2));
        assert!(before(u32::MAX, 5));
        assert!(!before(5, u32::MAX));
    }
}

//! By what means to trace.

use super::choice::choices;

choices! {
    /// How to hook into the kernel.
    pub(crate) enum Backend {
        Auto "auto" "The best that this kernel has: fentry, kprobe, or both",
        Fentry "fentry" "BTF trampolines",
        Kprobe "kprobe" "Breakpoints or ftrace",
    }
}

choices! {
    /// Stage detail.
    pub enum Stages {
        Basic "basic" "Those between driver, IP, transport and application",
        Fine "fine" "The wait in the socket too (bytes, reader, CPU), and the way until the ACK",
    }
}

/// By what means to trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TracingConfig {
    /// How to hook into the kernel.
    pub backend: Backend,
    /// Size of the ring buffer in bytes: a power of two, a multiple of the page size.
    pub buffer_bytes: u32,
    /// Stage detail.
    pub stages: Stages,
}

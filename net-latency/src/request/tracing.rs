//! By what means to trace.

use super::choice::Choice;

/// How to hook into the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The best that this kernel has: fentry, kprobe, or both
    #[default]
    Auto,
    /// BTF trampolines
    Fentry,
    /// Breakpoints or ftrace
    Kprobe,
}

impl Choice for Backend {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Auto, "auto", "The best that this kernel has: fentry, kprobe, or both"),
        (Self::Fentry, "fentry", "BTF trampolines"),
        (Self::Kprobe, "kprobe", "Breakpoints or ftrace"),
    ];
}

/// Stage detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stages {
    /// Those between driver, IP, transport and application
    #[default]
    Basic,
    /// What comes before the application reads as well (missing bytes, its own pauses, the wait for a CPU), and behind the device's
    /// queue (queue, driver, network)
    Fine,
}

impl Choice for Stages {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Basic, "basic", "Those between driver, IP, transport and application"),
        (Self::Fine, "fine", "The wait in the socket too (bytes, reader, CPU), and the way until the ACK"),
    ];
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

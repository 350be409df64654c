//! By what means to trace.

use super::choice::Choice;

/// How to hook into the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
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

/// By what means to trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingConfig {
    /// How to hook into the kernel.
    pub backend: Backend,
    /// Size of the ring buffer in bytes: a power of two, a multiple of the page size.
    pub buffer_bytes: u32,
}

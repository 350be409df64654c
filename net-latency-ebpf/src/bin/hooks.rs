//! How hooks are declared that have a program for each backend. The declaring file has `end`, which takes the logic's result, and
//! `skip_if_told!`.

use aya_ebpf::programs::ProbeContext;

/// Argument `n` of a probed function; null if there is none, which every read survives.
#[inline(always)]
pub(crate) fn register(context: &ProbeContext, n: usize) -> *const u8 {
    context.arg(n).unwrap_or(core::ptr::null())
}

/// Declares the fentry and the kprobe form of a hook on a function: which logic, which arguments.
macro_rules! on_function {
    ($(#[$doc:meta])* $fentry:ident, $kprobe:ident,
     $module:ident::$logic:ident($($kind:ident $n:literal),+ $(; $extra:expr)?)) => {
        $(#[$doc])*
        #[fentry]
        pub fn $fentry(context: FEntryContext) -> u32 {
            skip_if_told!($module::$logic);
            end(&context, $module::$logic::<Direct>($($kind::new(context.arg($n)),)+ $($extra)?))
        }
        $(#[$doc])*
        #[kprobe]
        pub fn $kprobe(context: ProbeContext) -> u32 {
            skip_if_told!($module::$logic);
            end(&context, $module::$logic::<Probed>($($kind::new(register(&context, $n)),)+ $($extra)?))
        }
    };
}

/// Declares a hook on a tracepoint, which serves both backends: by its BTF types it reads memory without a helper, and needs no
/// trampoline for that (`bpf_raw_tp_link_attach`).
macro_rules! on_tracepoint {
    ($(#[$doc:meta])* $btf:ident, $module:ident::$logic:ident($($kind:ident $n:literal),+)) => {
        $(#[$doc])*
        #[btf_tracepoint]
        pub fn $btf(context: BtfTracePointContext) -> i32 {
            skip_if_told!($module::$logic);
            end(&context, $module::$logic::<Direct>($($kind::new(context.arg($n)),)+)) as i32
        }
    };
}

//! What to trace and show, which the user side writes into the instructions before it loads them ([`net_latency_common::Place`]).

#[cfg(target_arch = "bpf")]
use core::arch::asm;

#[cfg(target_arch = "bpf")]
use net_latency_common::Place;
use net_latency_common::Settings;

/// What a setting may be. Its instructions are not `pure`: the compiler would keep the value on the stack for its next use, and the
/// programs have little of that, where one instruction gives it again.
pub(crate) trait Setting: Sized {
    /// The one that is `AT` bytes within [`Settings`].
    #[cfg(target_arch = "bpf")]
    fn written<const AT: usize>() -> Self;
}

impl Setting for u32 {
    #[cfg(target_arch = "bpf")]
    #[inline(always)]
    fn written<const AT: usize>() -> Self {
        let value;
        // SAFETY: sets the register only.
        unsafe {
            asm!(
                "{0} = {1}",
                lateout(wreg) value,
                const Place::of_setting(AT).in_immediate(),
                options(nomem, nostack)
            );
        }
        value
    }
}

impl Setting for u64 {
    #[cfg(target_arch = "bpf")]
    #[inline(always)]
    fn written<const AT: usize>() -> Self {
        let value;
        // SAFETY: sets the register only.
        unsafe {
            asm!(
                "{0} = {1} ll",
                lateout(reg) value,
                const Place::of_setting(AT).in_immediate(),
                options(nomem, nostack)
            );
        }
        value
    }
}

/// The setting that this picks, which is `AT` bytes within [`Settings`].
#[inline(always)]
#[cfg_attr(target_arch = "bpf", expect(unused_variables, reason = "it says the type only"))]
pub(crate) fn written<const AT: usize, T: Setting>(pick: fn(&Settings) -> T) -> T {
    #[cfg(target_arch = "bpf")]
    return T::written::<AT>();
    #[cfg(not(target_arch = "bpf"))]
    crate::bpf::host::setting(pick)
}

/// The setting named by a `Settings` field.
macro_rules! setting {
    ($field:ident) => {
        $crate::flow::settings::written::<{ core::mem::offset_of!(net_latency_common::Settings, $field) }, _>(
            |settings| settings.$field,
        )
    };
}
pub(crate) use setting;

//! Signals wait while programs are loaded and attached.

use std::{mem::MaybeUninit, ptr};

/// What a fault of this thread brings, and a system call that is not permitted: the kernel ends a process that blocks one of these.
const FAULTS: [libc::c_int; 7] =
    [libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS, libc::SIGTRAP];

/// As long as this is there, no signal interrupts this thread; then come those that were sent meanwhile. The verifier gives up where one is
/// pending (`EAGAIN`), which would be taken for a program, or for a feature, that this kernel refuses.
pub(super) struct Held(libc::sigset_t);

impl Held {
    pub(super) fn new() -> Self {
        let mut held = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: sigfillset makes a whole set of the first one, which the others change and read. pthread_sigmask, which does not fail
        // with these arguments, writes the second one.
        unsafe {
            libc::sigfillset(held.as_mut_ptr());
            for fault in FAULTS {
                libc::sigdelset(held.as_mut_ptr(), fault);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, held.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: it is the set that the thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A set of signals of this thread, as the kernel shows it.
    fn set(name: &str) -> u64 {
        let status = fs::read_to_string("/proc/thread-self/status").expect("procfs");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
        u64::from_str_radix(line.trim_start_matches(':').trim(), 16).expect("a number")
    }

    fn bit(signal: libc::c_int) -> u64 {
        1 << (signal - 1)
    }

    #[test]
    fn signals_wait_until_it_is_done() {
        let before = set("SigBlk");
        let held = Held::new();
        let blocked = set("SigBlk");
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGWINCH, libc::SIGCHLD] {
            assert_ne!(blocked & bit(signal), 0, "{signal}");
        }
        assert!(FAULTS.iter().all(|fault| blocked & bit(*fault) == 0), "{blocked:x}");
        // SAFETY: what this does by default is nothing.
        unsafe { libc::raise(libc::SIGWINCH) };
        assert_ne!(set("SigPnd") & bit(libc::SIGWINCH), 0);
        drop(held);
        assert_eq!((set("SigBlk"), set("SigPnd") & bit(libc::SIGWINCH)), (before, 0));
    }
}

//! Fault injection for tests: a hook is skipped, or an entry is evicted just when a program
//! reads it. In the object for tests alone; elsewhere nothing happens.

use crate::bpf::LruHashMap;
#[cfg(feature = "skips")]
use crate::bpf::{HashMap, entry::Field, map};

/// Whether something happens, and how often it has.
#[cfg(feature = "skips")]
#[repr(C)]
struct Skip {
    is_on: Field<u64>,
    skipped: Field<u64>,
}

/// What happens now or has happened, by `net_latency_common::hook_key`.
#[cfg(feature = "skips")]
#[map]
static SKIPS: HashMap<u32, Skip> = HashMap::with_max_entries(64, 0);

/// [`happens`] as a global function, which the verifier checks once by itself.
#[cfg(feature = "skips")]
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn is_skipped(key: u32) -> u32 {
    let Some(skip) = SKIPS.get_ptr(key) else { return 0 };
    // SAFETY: tests remove no entry, and what changes are fields.
    let skip = unsafe { &*skip };
    if skip.is_on.get() == 0 {
        return 0;
    }
    skip.skipped.set(skip.skipped.get() + 1);
    1
}

/// Whether what has this key is to happen: that this call of a hook is skipped, or something within the kernel side.
#[cfg_attr(not(feature = "skips"), expect(unused_variables, reason = "nothing ever is"))]
#[inline(always)]
#[must_use]
pub fn happens(key: u32) -> bool {
    #[cfg(feature = "skips")]
    return is_skipped(key) != 0;
    #[cfg(not(feature = "skips"))]
    false
}

/// What has this key is to happen from now on.
#[cfg(test)]
pub(crate) fn begin(key: u32) {
    SKIPS.insert(key, Skip { is_on: Field::new(1), skipped: Field::new(0) }, 0).expect("room for it");
}

/// Evicts an entry, if that is to happen now.
#[inline(always)]
pub(crate) fn evict<K: Copy + 'static, V: 'static>(when: u32, map: &LruHashMap<K, V>, key: &K) {
    if happens(when) {
        // One that is not there is as good as evicted.
        let _ = map.remove(key);
    }
}

/// The size of a map that evicts: tests can fill it.
pub(crate) const fn entries(usual: u32) -> u32 {
    if cfg!(feature = "skips") { 256 } else { usual }
}

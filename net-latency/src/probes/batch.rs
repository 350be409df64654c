//! Reading a whole map of counts by a few calls, each of which brings many entries (`BPF_MAP_LOOKUP_BATCH`, for
//! hash maps since Linux 5.6). aya has none: it makes two calls for each entry, 7,900 instructions on Linux 6.1.

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
};

use net_latency_common::CellKey;

/// Of `enum bpf_cmd`.
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
/// Counts that one call brings, of all CPUs.
const COUNTS: usize = 1 << 14;

/// What of `union bpf_attr` the command uses.
#[repr(C)]
struct Attributes {
    /// Where the call before ended: a `u32`.
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    /// Of entries: how many there is room for, and then how many came.
    count: u32,
    map: u32,
    elem_flags: u64,
    flags: u64,
}

/// All entries of a hash map with a count for each of `cpus` possible CPUs, and the sum of each. No entry is deleted meanwhile; a new one
/// is among them or not.
///
/// # Errors
/// If the kernel refuses to show them.
pub(super) fn sums(map: BorrowedFd<'_>, cpus: usize) -> io::Result<Vec<(CellKey, u64)>> {
    let mut room = (COUNTS / cpus).max(1);
    let mut sums = Vec::new();
    let mut place: Option<u32> = None;
    loop {
        let mut keys = vec![CellKey::default(); room];
        let mut values = vec![0_u64; room * cpus];
        let mut next = 0_u32;
        let mut attributes = Attributes {
            in_batch: place.as_ref().map_or(0, |place| &raw const *place as u64),
            out_batch: &raw mut next as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: u32::try_from(room).map_err(io::Error::other)?,
            map: u32::try_from(map.as_raw_fd()).map_err(io::Error::other)?,
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: keys and values have room for `count` entries of the map, each value being a word for each possible CPU, and
        // the places are words; all live until the call returns.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_MAP_LOOKUP_BATCH, &raw mut attributes, size_of::<Attributes>())
        };
        let error = if result == 0 { None } else { Some(io::Error::last_os_error()) };
        let is_last = match error.as_ref().map(io::Error::raw_os_error) {
            None => false,
            Some(Some(libc::ENOENT)) => true,
            // More entries have the same hash than there is room for.
            Some(Some(libc::ENOSPC)) => {
                room *= 2;
                continue;
            }
            Some(_) => return Err(error.expect("there is one")),
        };
        let came = attributes.count as usize;
        sums.extend(
            keys[..came].iter().copied().zip(values.chunks(cpus).map(|of_cpus| of_cpus.iter().sum())),
        );
        if is_last {
            return Ok(sums);
        }
        place = Some(next);
    }
}

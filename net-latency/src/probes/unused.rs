//! Maps that an object has and doesn't use: the linker keeps all that the library declares.

use aya::EbpfLoader;
use net_latency_common::{DATAGRAMS_MAP, RECORDS_MAP, SEGMENTS_MAP};
use rustix::param::page_size;

/// Those in which the stream follows packets. Others are as small as they can be unless somebody makes room.
const STREAM: [&str; 9] = [
    "PASSINGS",
    "FORWARDED",
    SEGMENTS_MAP,
    DATAGRAMS_MAP,
    "SENDS",
    "CONNECTIONS",
    "WRITES",
    "RESENT",
    "FOREIGN",
];

/// For an object that has no program of the stream: its maps take as little memory as they can.
pub(super) fn shrink_the_streams(loader: &mut EbpfLoader<'_>) {
    for map in STREAM {
        loader.map_max_entries(map, 1);
    }
    loader.map_max_entries(RECORDS_MAP, u32::try_from(page_size()).unwrap_or(4096));
}

//! What the user side writes into the programs before they are loaded, beside offsets: see [`crate::Place`].

/// Where pages are mapped, or on x86-64 the addresses of the variables that say so (arch/x86/mm/kaslr.c); 0 where unknown. On arm64 both
/// are where page 0 would be, which need not be memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PageBases {
    /// `page_offset_base`: where the direct mapping of all memory begins.
    pub page_offset_base: u64,
    /// `vmemmap_base`: where the array of all `struct page` begins.
    pub vmemmap_base: u64,
    /// On x86-64 1 if these are the values; else the variables' addresses. On arm64 the bytes of a page.
    pub are_values: u64,
}

impl PageBases {
    /// Bytes of a page of x86-64.
    pub const PAGE: u64 = 4096;
    /// `sizeof(struct page)`, the same in all kernels of the matrix.
    pub const PAGE_STRUCT: u64 = 64;
}

/// What to trace and show. A filter that is 0 is off. In words of 32 bits, as instructions name them ([`crate::Place`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, packed(4))]
pub struct Settings {
    /// Only packets that took N ns, as a whole or in one stage.
    pub slower_ns: u64,
    /// While times are counted: packets that took N ns, as a whole or in one stage, have a record besides. 0: none has.
    pub record_slower_ns: u64,
    /// When the programs were about to be loaded, in ns of `CLOCK_MONOTONIC`: no stamp of theirs is older.
    pub since: u64,
    /// A random number: a peer that may choose addresses must not know how they are mixed into a key.
    pub seed: u64,
    /// Changes of state of sockets that tasks hold have a program of their own: 1, or 0.
    pub tasks_apart: u32,
    /// Softirqs run in threads, which may be preempted and interrupt no program: 1, or 0.
    pub realtime: u32,
    /// A client's connection has a record as soon as it is established, too: 1, or 0.
    pub tell_established: u32,
    /// The kernel says why it drops a packet: 1, or 0.
    pub shows_drop_reasons: u32,
    /// Only packets of certain tasks: one of the following three is on.
    pub filter_task: u32,
    /// Only packets of this process; of those in the set of processes if it is [`PIDS_IN_SET`]; of any if it is 0.
    pub filter_pid: u32,
    /// Only tasks that one of N banks in the GLOBS map matches: the name of the thread, or of its process.
    pub filter_comm: u32,
    /// Only tasks in one of N cgroups in the CGROUPS map, or below.
    pub filter_cgroup: u32,
    /// Only packets with one end's port in the PORTS map.
    pub filter_port: u32,
    /// Only packets with one end's address in the HOSTS map.
    pub filter_host: u32,
    /// Only packets of this address family: `AF_INET` or `AF_INET6`.
    pub filter_family: u32,
    /// Only packets of this protocol: `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub filter_protocol: u32,
    /// Only packets in the network namespaces in the NETNS map.
    pub filter_netns: u32,
    /// Only packets on the devices whose names are in the INTERFACES map.
    pub filter_interface: u32,
    /// Only packets whose mark is `mark` in these bits.
    pub filter_mark: u32,
    /// See `filter_mark`.
    pub mark: u32,
    /// Only packets for which a random number is below this.
    pub sample_below: u32,
    /// Packets without application data get lines too.
    pub control: u32,
    /// Bytes in the ring buffer above which the reader is woken at once instead of by its timer.
    pub wakeup_bytes: u32,
    /// 0: a record for each packet. Else a [`crate::GroupBy`]: counts of times instead.
    pub histograms_by: u32,
    /// TCP lets a packet go where its control block is gone already, and only its header tells.
    pub tcp_header_only: u32,
    /// Whether TCP drops skbs without a word (`tcp_drop` before Linux 5.18).
    pub tcp_drops_unseen: u32,
    /// [`crate::FineRecord`]s instead of [`crate::PacketRecord`]s.
    pub fine: u32,
    /// The ports that the kernel gives out: the first, and the last shifted by 16 bits.
    pub ephemeral_ports: u32,
}

const _: () = assert!(size_of::<Settings>() == 5 * 8 + 22 * 4, "settings have no padding");
// SAFETY: `repr(C)`, 64-bit integers only.
#[cfg(feature = "user")]
unsafe impl aya::Pod for PageBases {}

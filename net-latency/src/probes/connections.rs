//! The kernel side's view of connections: records when they end, and on request.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, bail, ensure};
use aya::{
    Ebpf,
    maps::{HashMap, MapData, PerCpuArray, RingBuf},
    programs::RawTracePoint,
};
use net_latency_common::{
    CONNECTION_COUNTERS_MAP, CONNECTION_RECORDS_MAP, CONNECTION_SIZE, ConnectionCounters, ConnectionRecord,
    DROP_PLACES_MAP, DropPlace, LISTENER_SIZE, LISTENERS_MAP, ListenerRecord, OPEN_CONNECTIONS_MAP,
};

/// The program that is attached to nothing.
pub(super) const ASKED_FOR: &str = "raw_asked_for";
/// Of `enum bpf_cmd`.
const BPF_PROG_TEST_RUN: libc::c_long = 10;

/// What `union bpf_attr` has for that command, up to the program's context.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    program: u32,
    returned: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    context_size_in: u32,
    context_size_out: u32,
    context_in: u64,
    context_out: u64,
}

/// A record of the ring buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// A connection's record.
    Connection(ConnectionRecord),
    /// A listening socket's record.
    Listener(ListenerRecord),
}

/// Whom to ask about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    /// Connections that have not ended.
    Connections,
    /// Sockets that listen.
    Listeners,
}

/// The kernel side's maps, and the program that answers.
pub(crate) struct Connections {
    records: RingBuf<MapData>,
    counters: PerCpuArray<MapData, ConnectionCounters>,
    connections: HashMap<MapData, u64, [u8; CONNECTION_SIZE]>,
    listeners: HashMap<MapData, u64, [u8; LISTENER_SIZE]>,
    drops: HashMap<MapData, DropPlace, u64>,
    program: OwnedFd,
}

impl Connections {
    /// Takes them out of what [`super::attach::attach`] has loaded.
    ///
    /// # Errors
    /// If the kernel refuses the program, or this process has no descriptor left.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self> {
        let program: &mut RawTracePoint =
            ebpf.program_mut(ASKED_FOR).context("a program is missing")?.try_into()?;
        program.load().context("loading the program that tells of open connections")?;
        let program = program.fd()?.as_fd().try_clone_to_owned()?;
        let mut take = |name: &'static str| ebpf.take_map(name).context(name);
        let mut drops = HashMap::try_from(take(DROP_PLACES_MAP)?)?;
        drops.insert(DropPlace::default(), 0, 0).context("making room for drops")?;
        Ok(Self {
            drops,
            records: take(CONNECTION_RECORDS_MAP)?.try_into()?,
            counters: take(CONNECTION_COUNTERS_MAP)?.try_into()?,
            connections: take(OPEN_CONNECTIONS_MAP)?.try_into()?,
            listeners: take(LISTENERS_MAP)?.try_into()?,
            program,
        })
    }

    /// A descriptor that becomes readable when the ring buffer fills faster than the timer reads it.
    ///
    /// # Errors
    /// If this process has no descriptor left.
    pub(crate) fn descriptor(&self) -> io::Result<OwnedFd> {
        self.records.as_fd().try_clone_to_owned()
    }

    /// The oldest record that waits.
    ///
    /// # Errors
    /// If it has another size than ours: the two sides don't belong together.
    pub(crate) fn oldest(&mut self) -> Result<Option<Told>> {
        const CONNECTION: usize = size_of::<ConnectionRecord>();
        const LISTENER: usize = size_of::<ListenerRecord>();

        let Some(item) = self.records.next() else { return Ok(None) };
        let bytes: &[u8] = &item;
        let start = bytes.as_ptr();
        ensure!(start.cast::<u64>().is_aligned(), "the kernel side sent a record that is not aligned");
        // SAFETY: as large and as aligned as what it is taken for, of which every bit pattern is one.
        Ok(Some(unsafe {
            match bytes.len() {
                CONNECTION => Told::Connection(*start.cast()),
                LISTENER => Told::Listener(*start.cast()),
                len => bail!("the kernel side sent a record of {len} bytes"),
            }
        }))
    }

    /// The sockets in one of the tables.
    #[must_use]
    pub(crate) fn sockets(&self, which: Which) -> Vec<u64> {
        match which {
            Which::Connections => self.connections.keys().filter_map(Result::ok).collect(),
            Which::Listeners => self.listeners.keys().filter_map(Result::ok).collect(),
        }
    }

    /// Where packets have been dropped, and how many.
    #[must_use]
    pub(crate) fn drops(&self) -> Vec<(DropPlace, u64)> {
        self.drops.iter().filter_map(Result::ok).collect()
    }

    /// Has the kernel side write a record of a socket, if it is still in its table.
    ///
    /// # Errors
    /// If the kernel refuses to run the program.
    pub(crate) fn ask(&self, socket: u64) -> Result<()> {
        let mut attributes = Attributes {
            program: u32::try_from(self.program.as_raw_fd())?,
            context_size_in: size_of::<u64>() as u32,
            context_in: &raw const socket as u64,
            ..Attributes::default()
        };
        // SAFETY: the context is a word, which lives until the call returns, and nothing else is pointed to.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, BPF_PROG_TEST_RUN, &raw mut attributes, size_of::<Attributes>())
        };
        ensure!(result == 0, "asking about a socket: {}", io::Error::last_os_error());
        Ok(())
    }

    /// The counters, summed over all CPUs.
    ///
    /// # Errors
    /// If the kernel refuses to show them.
    pub(crate) fn counters(&self) -> Result<ConnectionCounters> {
        let per_cpu = self.counters.get(&0, 0).context("reading the kernel side's counters")?;
        let mut sum = ConnectionCounters::default();
        for counters in per_cpu.iter() {
            for (total, value) in sum.iter_mut().zip(counters) {
                *total += value;
            }
        }
        Ok(sum)
    }
}

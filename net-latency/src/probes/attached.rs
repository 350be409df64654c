//! What stays of programs once they are attached: links, and descriptors by which the kernel is asked about them. The objects they
//! came from can go: a program keeps its instructions and its debugging information there, 200 KiB each.

use std::{
    any::Any,
    mem,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use aya::{
    Ebpf,
    maps::Map,
    programs::{
        BtfTracePoint, FEntry, KProbe, Program, ProgramError, RawTracePoint,
        links::{LinkInfo, LinkType},
        loaded_links,
    },
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Threads that detach. The kernel lets each wait until no CPU can be in a program any more, and many can do a part of that at once.
/// (Another part they can't: from Linux 6.12 `perf_event_detach_bpf_prog` waits with a lock held, 0.7 s per probe on PREEMPT_RT.)
const DETACHING: usize = 64;

/// What detaches when it is dropped.
type Link = Box<dyn Any + Send + Sync>;

/// Programs that are attached. Dropping it detaches them.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// The kprobes' links once more; `None` where this kernel does not count the calls that they missed, or not for this user.
    watched: Option<Vec<OwnedFd>>,
    links: Vec<Link>,
    programs: Vec<OwnedFd>,
    /// Those for which others make up when the kernel skips them.
    made_up_for: Vec<OwnedFd>,
    /// Maps that are not read: /proc shows the kernel's memory by the process that has it open.
    maps: Vec<Map>,
}

impl Attached {
    /// Attaches a loaded program to a function or tracepoint.
    ///
    /// # Errors
    /// What the kernel said.
    pub(super) fn attach(&mut self, program: &mut Program, target: &str) -> Result<()> {
        let link: Link = match program {
            Program::FEntry(program) => {
                let link = FEntry::attach(program)?;
                Box::new(program.take_link(link)?)
            }
            Program::BtfTracePoint(program) => {
                let link = BtfTracePoint::attach(program)?;
                Box::new(program.take_link(link)?)
            }
            Program::KProbe(program) => {
                let link = KProbe::attach(program, target, 0)?;
                Box::new(program.take_link(link)?)
            }
            Program::RawTracePoint(program) => {
                let link = RawTracePoint::attach(program, target)?;
                Box::new(program.take_link(link)?)
            }
            _ => return Err(ProgramError::UnexpectedProgramType.into()),
        };
        self.links.push(link);
        Ok(())
    }

    /// Takes over what another one has attached.
    pub(super) fn add(&mut self, mut other: Self) {
        self.links.append(&mut other.links);
    }

    /// Keeps descriptors to query the programs of an object, of which no more is attached; others make up for those of these names.
    ///
    /// # Errors
    /// If this process has no descriptor left.
    pub(super) fn keep(&mut self, ebpf: &Ebpf, made_up_for: &[&str]) -> Result<()> {
        for (name, program) in ebpf.programs() {
            let Ok(fd) = program.fd() else { continue };
            let kept = fd.as_fd().try_clone_to_owned().context("keeping a program's descriptor")?;
            let all = if made_up_for.contains(&name) { &mut self.made_up_for } else { &mut self.programs };
            all.push(kept);
        }
        Ok(())
    }

    /// Lets go of the loaded object, but for maps that were not taken.
    pub(super) fn release(&mut self, mut ebpf: Ebpf) {
        let names: Vec<_> = ebpf.maps().map(|(name, _)| name.to_owned()).collect();
        self.maps = names.iter().filter_map(|name| ebpf.take_map(name)).collect();
    }

    /// Everything is attached: finds what counts the calls that kprobes missed, which takes `CAP_SYS_ADMIN`. Only asking does not.
    pub(super) fn watch(&mut self) {
        self.watched = self.kprobe_links();
    }

    /// No kprobe is attached, so that no others need to be looked for.
    pub(super) fn watch_no_kprobes(&mut self) {
        self.watched = Some(Vec::new());
    }

    /// How often the kernel skipped one of the programs so far, because it or another was already running on that CPU, but for those for
    /// which others make up; `None` where
    /// the kernel does not count that (before Linux 5.12, for kprobes before 6.7), or not for this user.
    pub(super) fn missed(&self) -> Option<u64> {
        let watched = self.watched.as_deref()?;
        let skipped = self.programs.iter().map(|fd| recursion_misses(fd.as_fd())).sum::<Option<u64>>()?;
        // A kprobe that is hit while another's handler runs on that CPU does not even come to its program.
        let before_program = watched.iter().map(|link| kprobe_misses(link.as_fd())).sum::<Option<u64>>()?;
        Some(skipped + before_program)
    }

    /// The programs' CPU time so far, where the kernel measures it.
    pub(super) fn time(&self) -> Option<Duration> {
        let times = self.programs.iter().chain(&self.made_up_for).map(|fd| run_time(fd.as_fd()));
        times.sum::<Option<Duration>>().filter(|time| !time.is_zero())
    }

    /// The links of the programs that are kprobes.
    fn kprobe_links(&self) -> Option<Vec<OwnedFd>> {
        // One more descriptor for each: as many as may be had. Where that is too few, skipped calls are not known.
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let programs = self.programs.iter().map(|fd| id(fd.as_fd())).collect::<Option<Vec<_>>>()?;
        let mut links = Vec::new();
        for link in loaded_links() {
            let link = link.ok()?;
            if programs.contains(&link.program_id()) && is_kprobe(&link) {
                links.push(open_link(link.id())?);
            }
        }
        Some(links)
    }
}

/// Gives back what attaching took, the kernel's type information before all, which is most of what the tool ever needs: the
/// allocator would keep it.
pub(super) fn release_memory() {
    // SAFETY: the function takes no pointer; it may be called at any time.
    unsafe { libc::malloc_trim(0) };
}

impl Drop for Attached {
    fn drop(&mut self) {
        // They would keep the probes, to be let go one by one.
        self.watched = None;
        let mut links = mem::take(&mut self.links);
        let each = links.len().div_ceil(DETACHING).max(1);
        thread::scope(|scope| {
            while !links.is_empty() {
                let part = links.split_off(links.len().saturating_sub(each));
                // Where no thread can be made this one detaches them, since what it was given is dropped.
                let _ = thread::Builder::new().spawn_scoped(scope, || drop(part));
            }
        });
    }
}

/// `bpf_prog_info.id`, behind the type.
fn id(program: BorrowedFd<'_>) -> Option<u32> {
    let [start] = object_info(program)?;
    Some((start >> 32) as u32)
}

/// `bpf_prog_info.recursion_misses`; `None` if the kernel's struct has no such field yet.
fn recursion_misses(program: BorrowedFd<'_>) -> Option<u64> {
    // Offset in `struct bpf_prog_info` (include/uapi/linux/bpf.h), which only ever grows.
    const RECURSION_MISSES: usize = 208;
    Some(object_info::<{ RECURSION_MISSES / 8 + 1 }>(program)?[RECURSION_MISSES / 8])
}

/// `bpf_prog_info.run_time_ns`.
fn run_time(program: BorrowedFd<'_>) -> Option<Duration> {
    // Offset in `struct bpf_prog_info`, since Linux 5.1.
    const RUN_TIME: usize = 192;
    Some(Duration::from_nanos(object_info::<{ RUN_TIME / 8 + 1 }>(program)?[RUN_TIME / 8]))
}

/// Whether the link is that of a kprobe.
fn is_kprobe(link: &LinkInfo) -> bool {
    matches!(link.link_type(), Ok(LinkType::PerfEvent))
}

/// `bpf_link_info.perf_event.kprobe.missed`.
fn kprobe_misses(link: BorrowedFd<'_>) -> Option<u64> {
    // Offset in `struct bpf_link_info` (include/uapi/linux/bpf.h), since Linux 6.7.
    const MISSED: usize = 48;
    Some(object_info::<{ MISSED / 8 + 1 }>(link)?[MISSED / 8])
}

/// The link with that id.
fn open_link(id: u32) -> Option<OwnedFd> {
    const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;

    #[repr(C)]
    struct Attributes {
        id: u32,
        next_id: u32,
        open_flags: u32,
    }
    let attributes = Attributes { id, next_id: 0, open_flags: 0 };
    // SAFETY: `attributes` is the part of `union bpf_attr` that the command uses.
    let fd = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_LINK_GET_FD_BY_ID, &raw const attributes, size_of::<Attributes>())
    };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
    // SAFETY: the kernel has just made this descriptor for us.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The first words of what the kernel says about a program or a link; `None` if it says less.
fn object_info<const WORDS: usize>(object: BorrowedFd<'_>) -> Option<[u64; WORDS]> {
    const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;

    #[repr(C)]
    struct Attributes {
        fd: u32,
        info_len: u32,
        info: u64,
    }
    let mut info = [0u64; WORDS];
    let info_len = u32::try_from(size_of_val(&info)).ok()?;
    let mut attributes =
        Attributes { fd: u32::try_from(object.as_raw_fd()).ok()?, info_len, info: info.as_mut_ptr() as u64 };
    // SAFETY: `attributes` is the part of `union bpf_attr` that the command uses, and `info` has room for
    // `info_len` bytes; all its counts are 0, so that the kernel writes through no pointer in it.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &raw mut attributes, size_of::<Attributes>())
    };
    (result == 0 && attributes.info_len >= info_len).then_some(info)
}

//! What the kernel itself lists of programs, maps, links and probes.

use std::{collections::BTreeSet, fs, io, io::ErrorKind, path::Path};

use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};

use crate::process::{PATIENCE, until};

/// bpf(2) commands that go through the ids of one kind of object.
const PROG_GET_NEXT_ID: libc::c_long = 11;
const MAP_GET_NEXT_ID: libc::c_long = 12;
const LINK_GET_NEXT_ID: libc::c_long = 31;

/// Everything that a tracer could leave behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kernel {
    programs: BTreeSet<u32>,
    maps: BTreeSet<u32>,
    links: BTreeSet<u32>,
    probe_events: BTreeSet<String>,
    kprobes: BTreeSet<String>,
    traced_functions: BTreeSet<String>,
    pinned: BTreeSet<String>,
}

impl Kernel {
    /// As it is now.
    pub(crate) fn now() -> Result<Self> {
        let kprobes = Path::new("/sys/kernel/debug/kprobes/list");
        if !kprobes.exists() {
            let none: Option<&str> = None;
            mount(Some("debugfs"), "/sys/kernel/debug", Some("debugfs"), MsFlags::empty(), none)
                .context("mounting debugfs")?;
        }
        let pinned = fs::read_dir("/sys/fs/bpf")?.map(|entry| Ok(format!("{:?}", entry?.path())));
        Ok(Self {
            programs: ids(PROG_GET_NEXT_ID)?,
            maps: ids(MAP_GET_NEXT_ID)?,
            links: ids(LINK_GET_NEXT_ID)?,
            probe_events: listed(Path::new("/sys/kernel/tracing/kprobe_events"))?,
            kprobes: listed(kprobes)?,
            traced_functions: listed(Path::new("/sys/kernel/tracing/enabled_functions"))?,
            pinned: pinned.collect::<io::Result<_>>()?,
        })
    }

    /// Waits until nothing more is there than in `self`. The kernel frees in the background, after grace periods that are
    /// long on an emulated machine.
    pub(crate) fn expect_restored(&self) -> Result<()> {
        let mut now = Self::now()?;
        until(PATIENCE, || {
            now = Self::now()?;
            Ok(now.is_within(self))
        })
        .with_context(|| format!("left behind in the kernel\nbefore: {self:?}\nnow: {now:?}"))
    }

    /// Whether anything is there that is not in `before`, so that the check above can fail at all.
    pub(crate) fn expect_more_than(&self, before: &Self) -> Result<()> {
        anyhow::ensure!(!self.is_within(before), "a running tool is not to be seen in the kernel's lists");
        Ok(())
    }

    fn is_within(&self, before: &Self) -> bool {
        self.programs.is_subset(&before.programs)
            && self.maps.is_subset(&before.maps)
            && self.links.is_subset(&before.links)
            && self.probe_events.is_subset(&before.probe_events)
            && self.kprobes.is_subset(&before.kprobes)
            && self.traced_functions.is_subset(&before.traced_functions)
            && self.pinned.is_subset(&before.pinned)
    }
}

fn listed(path: &Path) -> Result<BTreeSet<String>> {
    let list = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(list.lines().map(str::to_owned).collect())
}

fn ids(command: libc::c_long) -> Result<BTreeSet<u32>> {
    /// The start of `union bpf_attr` for these commands, which is all that they look at.
    #[repr(C)]
    struct Attributes {
        start: u32,
        next: u32,
        flags: u32,
    }
    let mut ids = BTreeSet::new();
    let mut attributes = Attributes { start: 0, next: 0, flags: 0 };
    loop {
        // SAFETY: the kernel reads and writes `size_of::<Attributes>()` bytes of `attributes`, no more.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attributes, size_of::<Attributes>()) };
        if result == 0 {
            ids.insert(attributes.next);
            attributes.start = attributes.next;
            continue;
        }
        let error = io::Error::last_os_error();
        if error.kind() == ErrorKind::NotFound {
            return Ok(ids);
        }
        return Err(error).context("bpf(2): next id");
    }
}

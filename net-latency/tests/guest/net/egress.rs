//! What a cgroup may send, as systemd's `IPAddressDeny=` has it: a program of the cgroup decides.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

// Of linux/bpf.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_TYPE_CGROUP_SKB: u32 = 8;
const BPF_CGROUP_INET_EGRESS: u32 = 1;
/// `r0 = 0; exit`: nothing is sent.
const NOTHING: [u64; 2] = [0xb7, 0x95];

/// A cgroup whose sockets send nothing: IP drops it behind netfilter (`__cgroup_bpf_run_filter_skb`), and the call fails with `EPERM`.
/// Those of a process that were made before it came are not its sockets. It is removed with the value.
pub(crate) struct Refused(PathBuf);

impl Refused {
    pub(crate) fn new(name: &str) -> Result<Self> {
        let place = PathBuf::from("/sys/fs/cgroup").join(name);
        fs::create_dir(&place)?;
        let cgroup = Self(place);
        let program = load().context("a program that drops")?;
        attach(&program, &File::open(&cgroup.0)?).context("attaching it to a cgroup")?;
        Ok(cgroup)
    }

    /// Has the process make its sockets there from now on.
    pub(crate) fn take(&self, pid: u32) -> Result<()> {
        Ok(fs::write(self.0.join("cgroup.procs"), pid.to_string())?)
    }
}

impl Drop for Refused {
    fn drop(&mut self) {
        // While a process is there it can't be; the guest ends soon.
        drop(fs::remove_dir(&self.0));
    }
}

fn load() -> Result<OwnedFd> {
    // Before Linux 5.11 programs count as locked memory.
    setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).context("RLIMIT_MEMLOCK")?;
    /// The start of `union bpf_attr`; the rest is 0.
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        kind: u32,
        instructions: u32,
        first: u64,
        license: u64,
        log: [u32; 2],
        log_buffer: u64,
        version: u32,
        flags: u32,
        name: [u64; 2],
        ifindex: u32,
        attach_type: u32,
    }
    let attributes = Attributes {
        kind: BPF_PROG_TYPE_CGROUP_SKB,
        instructions: 2,
        first: NOTHING.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        attach_type: BPF_CGROUP_INET_EGRESS,
        ..Attributes::default()
    };
    // SAFETY: the kernel reads the attributes, whose size it is told, and the two instructions and the string that they point to.
    let program = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const attributes, size_of::<Attributes>())
    };
    if program < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(program.try_into()?) })
}

fn attach(program: &OwnedFd, cgroup: &File) -> Result<()> {
    // Where to, what, in which way, with which flags.
    let attributes =
        [cgroup.as_raw_fd().cast_unsigned(), program.as_raw_fd().cast_unsigned(), BPF_CGROUP_INET_EGRESS, 0];
    // SAFETY: the kernel reads the attributes, whose size it is told.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, attributes.as_ptr(), size_of_val(&attributes))
    };
    if result < 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(())
}

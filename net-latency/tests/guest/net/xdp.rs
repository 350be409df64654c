//! An XDP program that lets all packets pass, attached to the receiving device.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result};
use nix::{
    net::if_::if_nametoindex,
    sys::resource::{Resource, setrlimit},
};

use super::{FAR, Path, Request};

// Of linux/bpf.h and linux/if_link.h, where libc has them not.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_TYPE_XDP: u32 = 6;
/// Returns 2: `XDP_PASS`.
const PASS: [u64; 2] = [0x0000_0002_0000_00b7, 0x95];
const IFLA_XDP: u16 = 43;
const IFLA_XDP_FD: u16 = 1;
const IFLA_XDP_FLAGS: u16 = 3;
/// By the stack (`do_xdp_generic`), not the driver.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const BPF_F_XDP_HAS_FRAGS: u32 = 1 << 5;
const NONE: i32 = -1;

impl Path {
    /// Has the stack run an XDP program on what the server's end receives, until [`Self::without_xdp`]. Says whether the program takes
    /// packets that are not in one piece, where it is to: Linux has such programs since 5.18.
    pub(crate) fn generic_xdp(&self, takes_frags: bool) -> Result<bool> {
        // Before Linux 5.11 programs count as locked memory, together with those of the tool.
        setrlimit(Resource::RLIMIT_MEMLOCK, libc::RLIM_INFINITY, libc::RLIM_INFINITY)
            .context("RLIMIT_MEMLOCK")?;
        self.far(|| {
            let whole = || load(0).context("loading an XDP program");
            let (program, takes_frags) = match takes_frags.then(|| load(BPF_F_XDP_HAS_FRAGS)) {
                Some(Ok(program)) => (program, true),
                Some(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => (whole()?, false),
                Some(Err(error)) => return Err(error).context("loading an XDP program that takes frags"),
                None => (whole()?, false),
            };
            attach(FAR, program.as_raw_fd())?;
            Ok(takes_frags)
        })
    }

    /// Ends that.
    pub(crate) fn without_xdp(&self) -> Result<()> {
        self.far(|| attach(FAR, NONE))
    }
}

fn load(flags: u32) -> io::Result<OwnedFd> {
    /// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`.
    #[repr(C)]
    struct Load {
        kind: u32,
        instructions: u32,
        program: u64,
        licence: u64,
        /// Of the verifier, which says nothing.
        log: [u64; 2],
        kernel: u32,
        flags: u32,
    }
    let load = Load {
        kind: BPF_PROG_TYPE_XDP,
        instructions: PASS.len() as u32,
        program: PASS.as_ptr() as u64,
        licence: c"GPL".as_ptr() as u64,
        log: [0; 2],
        kernel: 0,
        flags,
    };
    // SAFETY: the kernel reads the attributes, whose size it is told, and what they point to, all of which outlives the call.
    let program = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<Load>()) };
    let program = libc::c_int::try_from(program).map_err(io::Error::other)?;
    if program < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(program) })
}

fn attach(device: &str, program: i32) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWLINK, 0);
    request.link(if_nametoindex(device)?, 0);
    request.nested(IFLA_XDP, |request| {
        request.attribute(IFLA_XDP_FD, &program.to_ne_bytes());
        request.attribute(IFLA_XDP_FLAGS, &XDP_FLAGS_SKB_MODE.to_ne_bytes());
    });
    request.perform().with_context(|| format!("attaching an XDP program to {device}"))
}

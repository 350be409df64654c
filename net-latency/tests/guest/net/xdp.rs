//! An XDP program that lets all packets pass, attached to the receiving device.

use std::{
    io,
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
};

use anyhow::{Context as _, Result, ensure};
use nix::net::if_::if_nametoindex;

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
const NONE: i32 = -1;

impl Path {
    /// Has the stack run an XDP program on what the server's end receives, until [`Self::without_xdp`].
    pub(crate) fn generic_xdp(&self) -> Result<()> {
        self.far(|| {
            let program = load()?;
            attach(FAR, program.as_raw_fd())
        })
    }

    /// Ends that.
    pub(crate) fn without_xdp(&self) -> Result<()> {
        self.far(|| attach(FAR, NONE))
    }
}

fn load() -> Result<OwnedFd> {
    /// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`.
    #[repr(C)]
    struct Load {
        kind: u32,
        instructions: u32,
        program: u64,
        licence: u64,
        log: [u64; 3],
    }
    let load = Load {
        kind: BPF_PROG_TYPE_XDP,
        instructions: PASS.len().try_into()?,
        program: PASS.as_ptr() as u64,
        licence: c"GPL".as_ptr() as u64,
        log: [0; 3],
    };
    // SAFETY: the kernel reads the attributes, whose size it is told, and what they point to, all of which outlives the call.
    let program = unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const load, size_of::<Load>()) };
    ensure!(program >= 0, "loading an XDP program: {}", io::Error::last_os_error());
    // SAFETY: the kernel has just made this descriptor, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(program.try_into()?) })
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

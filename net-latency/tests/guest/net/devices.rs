//! Settings of a device that rtnetlink does not reach: ethtool's and those in sysfs.

use std::{ffi::CString, fs, io, os::fd::AsRawFd as _};

use anyhow::{Context as _, Result};
use nix::{
    mount::{MsFlags, mount},
    sched::{CloneFlags, unshare},
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

// Of linux/ethtool.h.
pub(super) const ETHTOOL_STSO: u32 = 0x1f;
pub(super) const ETHTOOL_GGRO: u32 = 0x2b;
pub(super) const ETHTOOL_SGRO: u32 = 0x2c;

/// Switches an offload of a device in the calling thread's namespace on or off.
pub(super) fn set_offload(name: &str, command: u32, on: bool) -> Result<()> {
    ethtool(name, command, on.into()).map(drop)
}

/// Whether an offload of a device in the calling thread's namespace is on.
pub(super) fn offload(name: &str, command: u32) -> Result<bool> {
    Ok(ethtool(name, command, 0)? != 0)
}

fn ethtool(name: &str, command: u32, data: u32) -> Result<u32> {
    /// `struct ethtool_value`.
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let mut value = Value { command, data };
    // SAFETY: all of a `struct ifreq` may be zero.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = CString::new(name)?;
    for (to, from) in request.ifr_name.iter_mut().zip(name.as_bytes()) {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    // SAFETY: the kernel reads the request, whose name ends with NUL, and reads and writes the value behind it.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result == 0 { Ok(value.data) } else { Err(io::Error::last_os_error()).context("SIOCETHTOOL") }
}

/// Has the CPUs of `mask` receive what the device receives (RPS). The thread sees another `/sys` afterwards:
/// the devices there are those of the namespace in which it was mounted.
pub(super) fn steer(name: &str, mask: &str) -> Result<()> {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).context("unshare(CLONE_NEWNS)")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("private mounts")?;
    mount(Some("sysfs"), "/sys", Some("sysfs"), MsFlags::empty(), none).context("mounting sysfs")?;
    let file = format!("/sys/class/net/{name}/queues/rx-0/rps_cpus");
    fs::write(&file, mask).with_context(|| format!("writing {mask} to {file}"))
}

//! Two network cards that a wire outside of the guest connects: a driver receives here, and NAPI, as on real machines.

use std::{
    env, fs, io,
    os::fd::{AsRawFd as _, RawFd},
    sync::Mutex,
};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::{
    net::if_::if_nametoindex,
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};

use super::{FAR, NEAR, Namespace, Path, Request, Version};
use crate::verdict::Skipped;

/// Set to 1 by who gave the guest its cards.
const CARDS: &str = "NET_LATENCY_CARDS";
const DRIVER: &str = "virtio_net";

/// The namespaces that have got the cards, which a card leaves only some time after its namespace's end.
static OWNERS: Mutex<Option<(Namespace, Namespace)>> = Mutex::new(None);

impl Path {
    /// The wire between the cards, each in a namespace of its own. Skips the case where there are no such cards.
    pub(crate) fn cards(version: Version) -> Result<Self> {
        let mut owners = OWNERS.lock().map_err(|_| anyhow!("a scenario panicked"))?;
        if let Some((near, far)) = &*owners {
            let (near, far) = (near.again()?, far.again()?);
            return Ok(Self::Veth { near, far, version });
        }
        let cards = cards()?;
        let [first, second] = cards.as_slice() else {
            let expected = env::var_os(CARDS).is_some_and(|value| value == "1");
            ensure!(!expected, "there should be two cards, but there is {cards:?}");
            bail!(Skipped("this machine has no two cards on one wire"));
        };
        let (near, far) = (Namespace::new()?, Namespace::new()?);
        hand_over(first, near.0.as_raw_fd(), NEAR)?;
        hand_over(second, far.0.as_raw_fd(), FAR)?;
        *owners = Some((near.again()?, far.again()?));
        Self::linked(near.again()?, far.again()?, Version::V6)?;
        Self::linked(near.again()?, far.again()?, Version::V4)?;
        Ok(Self::Veth { near, far, version })
    }

    /// Lets the receiving card merge packets, or not.
    pub(crate) fn set_merging(&self, on: bool) -> Result<()> {
        self.far(|| set_gro(FAR, on))
    }
}

impl Namespace {
    fn again(&self) -> Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }
}

/// The names of the cards in the caller's namespace.
fn cards() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir("/sys/class/net")? {
        let entry = entry?;
        // Only hardware has a driver.
        if fs::read_link(entry.path().join("device/driver")).is_ok_and(|driver| driver.ends_with(DRIVER)) {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Moves a card to a namespace and gives it a name there.
fn hand_over(card: &str, namespace: RawFd, name: &str) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWLINK, 0);
    request.link(if_nametoindex(card)?, 0);
    request.attribute(libc::IFLA_NET_NS_FD, &namespace.to_ne_bytes());
    request.attribute(libc::IFLA_IFNAME, name.as_bytes());
    request.perform().with_context(|| format!("moving {card} to a namespace"))
}

/// `ETHTOOL_SGRO` of linux/ethtool.h.
fn set_gro(name: &str, on: bool) -> Result<()> {
    const ETHTOOL_SGRO: u32 = 0x2c;

    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    let mut value = Value { command: ETHTOOL_SGRO, data: on.into() };
    // SAFETY: all fields are numbers or pointers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut value).cast();
    let socket = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    // SAFETY: the request names a device and points to what the command takes.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error()).with_context(|| format!("setting gro of {name}"));
    }
    Ok(())
}

//! What the user asked to see. Each test is no code at all while its filter is off.
//!
//! What both ends of a connection have in common (addresses, ports, namespace) is decided as soon as a packet
//! is with its transport, for all its packets alike. What may differ from packet to packet (device, mark,
//! times) is decided when the packet is complete: the packets before and after it still need it then. Who is
//! asked for is decided when a task gives or takes bytes, and kept with its name.

use aya_ebpf::{helpers::bpf_get_prandom_u32, maps::lpm_trie::Key};
use net_latency_common::{
    AF_INET, Direction, Host, PIDS_IN_SET, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT, STAMPS,
};

#[cfg(feature = "names")]
use crate::names;
use crate::{
    config::setting,
    maps::{HOSTS, INTERFACES, NETNS, PIDS, PORTS},
    memory::Memory,
    skb::Skb,
    socket::{Ends, Identity, Socket},
    task::Task,
};

/// Whether it matters whose packets they are.
#[inline(always)]
pub(crate) fn is_by_task() -> bool {
    setting!(filter_task) != 0
}

/// Whether packets of this task are wanted.
#[inline(always)]
pub(crate) fn task(task: &Task) -> bool {
    !is_by_task() || task.ids != 0 && task.is_wanted()
}

/// Whether packets of nobody who is known are wanted.
#[inline(always)]
pub(crate) fn unknown() -> bool {
    !is_by_task()
}

/// Whether packets of the task this CPU runs are wanted.
#[inline(always)]
pub(crate) fn current() -> bool {
    if !is_by_task() {
        return true;
    }
    #[cfg(feature = "names")]
    if current_may_change() {
        let name = if setting!(filter_comm) == 0 { [0; 2] } else { Task::current_name() };
        return names::current_is_wanted(name);
    }
    process()
}

/// Whether it matters whose packets they are, by process alone: a task's verdict stays. Then sockets that only others use can
/// be left alone early.
#[inline(always)]
pub(crate) fn is_by_process() -> bool {
    is_by_task() && !current_may_change()
}

/// Whether what [`current`] says of a task can change: by a new name, or another cgroup.
#[inline(always)]
pub(crate) fn current_may_change() -> bool {
    cfg!(feature = "names") && (setting!(filter_comm) != 0 || setting!(filter_cgroup) != 0)
}

/// Whether the task this CPU runs, which has this name, is asked for.
#[inline(always)]
#[cfg_attr(not(feature = "names"), expect(unused_variables, reason = "no name is asked for"))]
pub(crate) fn current_named(name: [u64; 2]) -> bool {
    #[cfg(feature = "names")]
    if current_may_change() {
        return names::current_is_wanted(name);
    }
    process()
}

/// Whether the process this CPU runs is asked for.
#[inline(always)]
pub(crate) fn process() -> bool {
    match setting!(filter_pid) {
        0 => true,
        PIDS_IN_SET => PIDS.get_ptr(Task::current_pid()).is_some(),
        pid => pid == Task::current_pid(),
    }
}

/// Whether packets between these ports (host order) are wanted.
#[inline(always)]
pub(crate) fn ports(one: u16, other: u16) -> bool {
    setting!(filter_port) == 0
        || PORTS.get_ptr(u32::from(one)).is_some()
        || PORTS.get_ptr(u32::from(other)).is_some()
}

/// Whether packets without data are wanted.
#[inline(always)]
pub(crate) fn control() -> bool {
    cfg!(feature = "control") && setting!(control) != 0
}

/// Whether packets in this network namespace are wanted.
#[inline(always)]
pub(crate) fn netns(inode: u32) -> bool {
    setting!(filter_netns) == 0 || NETNS.get_ptr(inode).is_some()
}

/// Whether packets in the network namespace of this socket are wanted.
#[inline(always)]
pub(crate) fn netns_of<M: Memory>(socket: Socket<M>) -> bool {
    setting!(filter_netns) == 0 || netns(socket.netns())
}

/// Whether addresses matter.
#[inline(always)]
pub(crate) fn needs_ends() -> bool {
    setting!(filter_family) != 0 || setting!(filter_host) != 0
}

/// Whether packets of this address family are wanted.
#[inline(always)]
fn family(family: u32) -> bool {
    setting!(filter_family) == 0 || setting!(filter_family) == family
}

/// Whether packets of this protocol are wanted.
#[inline(always)]
pub(crate) fn protocol(protocol: u8) -> bool {
    setting!(filter_protocol) == 0 || setting!(filter_protocol) == u32::from(protocol)
}

/// Whether packets between these addresses are wanted.
#[inline(always)]
pub(crate) fn ends(ends: &Ends) -> bool {
    family(ends.family) && (setting!(filter_host) == 0 || hosts(ends))
}

#[inline(always)]
fn hosts(ends: &Ends) -> bool {
    let [a, b, c, d] = ends.addresses;
    let (remote, local) = if ends.family == AF_INET { ((a, 0), (a >> 32, 0)) } else { ((a, b), (c, d)) };
    host_is_wanted(ends.family, remote.0, remote.1) != 0 || host_is_wanted(ends.family, local.0, local.1) != 0
}

/// Whether an address is asked for, which is in two words; an IPv4 address in the lower half of the first.
///
/// A global function, which has its key on a stack of its own: the programs have no room for it beside what they call.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn host_is_wanted(family: u32, a: u64, b: u64) -> u32 {
    let first = if family == AF_INET { 0 } else { (a >> 32) as u32 };
    let address = [a as u32, first, b as u32, (b >> 32) as u32];
    u32::from(HOSTS.get(&Key::new(Host::BITS, Host { family, address })).is_some())
}

/// Whether a TCP socket's packets are wanted, as far as that is the same for all of them.
#[inline(always)]
pub(crate) fn socket<M: Memory>(socket: Socket<M>, identity: &Identity) -> bool {
    ports(identity.remote_port(), identity.local_port())
        && netns_of(socket)
        && (!needs_ends() || ends(&socket.ends()))
}

/// Whether packets on the device that the skb is on are wanted.
#[inline(always)]
pub(crate) fn interface<M: Memory>(skb: Skb<M>) -> bool {
    setting!(filter_interface) == 0 || INTERFACES.get_ptr(&skb.device_name()).is_some()
}

/// Whether a packet that is complete is wanted, as far as its times and its mark tell.
#[inline(always)]
pub(crate) fn packet(direction: Direction, stamps: &[u64; STAMPS], mark: u32) -> bool {
    (setting!(filter_mark) == 0 || mark & setting!(filter_mark) == setting!(mark))
        && (setting!(slower_ns) == 0 || is_slow(direction, stamps))
        && (setting!(sample_below) == 0 || is_sampled())
}

/// Whether one of the times of a line reaches the limit; one that isn't known doesn't.
#[inline(always)]
fn is_slow(direction: Direction, stamps: &[u64; STAMPS]) -> bool {
    let [drv, ip] = [stamps[STAMP_DRV], stamps[STAMP_IP]];
    let [transport, app] = [stamps[STAMP_TRANSPORT], stamps[STAMP_APP]];
    match direction {
        Direction::In => {
            is_long(drv, app) || is_long(drv, ip) || is_long(ip, transport) || is_long(transport, app)
        }
        Direction::Out => {
            is_long(app, drv) || is_long(app, transport) || is_long(transport, ip) || is_long(ip, drv)
        }
    }
}

#[inline(always)]
fn is_long(from: u64, to: u64) -> bool {
    from != 0 && to >= from && to - from >= setting!(slower_ns)
}

#[inline(always)]
pub(crate) fn is_sampled() -> bool {
    // SAFETY: the helper takes nothing.
    unsafe { bpf_get_prandom_u32() < setting!(sample_below) }
}

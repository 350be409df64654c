//! What the user asked to see. Each test is no code at all while its filter is off.
//!
//! What both ends of a connection have in common (addresses, ports, namespace) is decided as soon as a packet is with its transport, for
//! all its packets alike. What may differ from packet to packet (device, mark, times) is decided when the packet is complete: the packets
//! before and after it still need it then. Whether a task is wanted is decided when it gives or takes bytes, and kept with its name.

use net_latency_common::{
    AF_INET, Direction, GroupBy, Host, INTERFACE_LEN, STAMP_APP, STAMP_DRV, STAMP_IP, STAMP_TRANSPORT, STAMPS,
};

#[cfg(feature = "fine")]
use net_latency_common::{PART_DRIVER, PART_NET, PART_QDISC, PARTS, part};

#[cfg(feature = "names")]
use super::names;
use super::{addresses::AddrPair, processes, settings::setting};
use crate::bpf::{HashMap, Key, LpmTrie, map, random};
use crate::kernel::{
    memory::Memory,
    skb::Skb,
    socket::{Identity, Socket},
    task::Task,
};

/// Ports to show. When full: an error at the start.
#[map]
static PORTS: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// Addresses to show. A trie can't be preallocated; only the user side adds to it, before anything is attached. When full: an error at the
/// start.
#[map]
static HOSTS: LpmTrie<Host, u8> = LpmTrie::with_max_entries(1024, 0);

/// Network namespaces to show, by inode number. When full: an error at the start.
#[map]
static NETNS: HashMap<u32, u8> = HashMap::with_max_entries(1024, 0);

/// Devices to show, by name. When full: an error at the start.
#[map]
static INTERFACES: HashMap<[u64; INTERFACE_LEN / 8], u8> = HashMap::with_max_entries(1024, 0);

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

/// The task this CPU runs, with the verdict on it where that matters.
#[inline(always)]
pub(crate) fn current_task() -> Task {
    let task = named_task();
    with_group(if is_by_task() { task.judged(is_wanted) } else { task })
}

/// The task this CPU runs, if it is wanted. Where that can be told by its process, it is before all else.
#[inline(always)]
pub(crate) fn current_task_if_wanted() -> Option<Task> {
    if current_may_change() {
        let current = current_task();
        return if task(&current) { Some(current) } else { None };
    }
    if current() { Some(current_wanted_task()) } else { None }
}

/// The task this CPU runs, which was found to be wanted before.
#[inline(always)]
pub(crate) fn current_wanted_task() -> Task {
    with_group(named_task())
}

/// The task this CPU runs, with its names where they are needed.
#[inline(always)]
fn named_task() -> Task {
    if needs_names() { Task::current() } else { Task::current_unnamed() }
}

/// Whether the names of tasks are needed: not where times are counted by something else.
#[inline(always)]
fn needs_names() -> bool {
    if !cfg!(feature = "hist") {
        return true;
    }
    let by = setting!(histograms_by);
    let is_by_name = by == GroupBy::Pid as u32 || by == GroupBy::Comm as u32 || by == GroupBy::Process as u32;
    by == 0 || is_by_name || setting!(record_slower_ns) != 0 || setting!(filter_comm) != 0
}

/// The current task with what tells its group in place of its name, where times are counted by cgroup, or by process.
#[inline(always)]
#[cfg_attr(
    not(feature = "hist"),
    expect(clippy::missing_const_for_fn, reason = "it is not where times are counted")
)]
fn with_group(task: Task) -> Task {
    #[cfg(feature = "hist")]
    {
        let by = setting!(histograms_by);
        if by == GroupBy::Cgroup as u32 {
            return task.with_cgroup();
        }
        if by == GroupBy::Pid as u32 {
            return task.with_start();
        }
    }
    task
}

/// Whether packets of unknown tasks are wanted.
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
        let names = if setting!(filter_comm) == 0 { [[0; 2]; 2] } else { Task::current().names() };
        return names::current_is_wanted(names);
    }
    processes::current_is_wanted()
}

/// Whether it matters whose packets they are, by process alone: a task's verdict stays. Then sockets that only others use can
/// be untraced early.
#[inline(always)]
pub(crate) fn is_by_process() -> bool {
    is_by_task() && !current_may_change()
}

/// Whether what [`current`] says of a task can change: by a new name, or another cgroup.
#[inline(always)]
pub(crate) fn current_may_change() -> bool {
    cfg!(feature = "names") && (setting!(filter_comm) != 0 || setting!(filter_cgroup) != 0)
}

/// Whether the task this CPU runs, which is this one, is wanted.
#[inline(always)]
#[cfg_attr(not(feature = "names"), expect(unused_variables, reason = "this object filters by no name"))]
fn is_wanted(task: &Task) -> bool {
    #[cfg(feature = "names")]
    if current_may_change() {
        return names::current_is_wanted(task.names());
    }
    processes::current_is_wanted()
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
pub(crate) fn needs_addresses() -> bool {
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
pub(crate) fn addresses(pair: &AddrPair) -> bool {
    family(pair.family) && (setting!(filter_host) == 0 || hosts(pair))
}

#[inline(always)]
fn hosts(pair: &AddrPair) -> bool {
    let [a, b, c, d] = pair.addresses;
    let (remote, local) = if pair.family == AF_INET { ((a, 0), (a >> 32, 0)) } else { ((a, b), (c, d)) };
    host_is_wanted(pair.family, remote.0, remote.1) != 0 || host_is_wanted(pair.family, local.0, local.1) != 0
}

/// Whether an address is wanted, which is in two words; an IPv4 address in the lower half of the first.
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
        && (!needs_addresses() || addresses(&AddrPair::of_socket(socket)))
}

/// Whether packets on the device that the skb is on are wanted.
#[inline(always)]
pub(crate) fn interface<M: Memory>(skb: Skb<M>) -> bool {
    setting!(filter_interface) == 0 || INTERFACES.get_ptr(&skb.device_name()).is_some()
}

/// Whether a packet that is complete is wanted, as far as its times and its mark tell.
#[inline(always)]
pub(crate) fn packet(direction: Direction, stamps: &[u64; STAMPS], mark: impl FnOnce() -> u32) -> bool {
    has_mark(mark) && is_slow_enough(direction, stamps) && (setting!(sample_below) == 0 || is_sampled())
}

/// Whether a packet that will have fine stages is wanted, as far as can be told before its end: by all but its time.
#[cfg(feature = "fine")]
#[inline(always)]
pub(crate) fn lasting(mark: impl FnOnce() -> u32) -> bool {
    has_mark(mark) && (setting!(sample_below) == 0 || is_sampled())
}

/// Whether a packet that is complete took as long as is wanted, as far as its stamps tell.
#[inline(always)]
pub(crate) fn is_slow_enough(direction: Direction, stamps: &[u64; STAMPS]) -> bool {
    setting!(slower_ns) == 0 || is_slow(direction, stamps, setting!(slower_ns))
}

/// Whether one of the fine stages of a packet that goes out took as long as is wanted.
#[cfg(feature = "fine")]
#[inline(always)]
pub(crate) fn has_slow_part(parts: &[u64; PARTS]) -> bool {
    let is_long = |value: u64| part(value).is_ok_and(|time| time >= setting!(slower_ns));
    is_long(parts[PART_QDISC]) || is_long(parts[PART_DRIVER]) || is_long(parts[PART_NET])
}

/// Whether packets with this mark are wanted.
#[inline(always)]
pub(crate) fn has_mark(mark: impl FnOnce() -> u32) -> bool {
    setting!(filter_mark) == 0 || mark() & setting!(filter_mark) == setting!(mark)
}

/// Whether packets that are slow have records although they are counted.
#[cfg(feature = "hist")]
#[inline(always)]
pub(crate) fn records_slow() -> bool {
    setting!(record_slower_ns) != 0
}

/// Whether a packet is to have a record although it is counted.
#[cfg(feature = "hist")]
#[inline(always)]
pub(crate) fn is_recorded(direction: Direction, stamps: &[u64; STAMPS]) -> bool {
    records_slow() && is_slow(direction, stamps, setting!(record_slower_ns))
}

/// Whether one of the times of a line reaches the limit; one that isn't known doesn't.
#[inline(always)]
fn is_slow(direction: Direction, stamps: &[u64; STAMPS], least: u64) -> bool {
    let [drv, ip] = [stamps[STAMP_DRV], stamps[STAMP_IP]];
    let [transport, app] = [stamps[STAMP_TRANSPORT], stamps[STAMP_APP]];
    match direction {
        Direction::In => {
            is_long(drv, app, least)
                || is_long(drv, ip, least)
                || is_long(ip, transport, least)
                || is_long(transport, app, least)
        }
        Direction::Out => {
            is_long(app, drv, least)
                || is_long(app, transport, least)
                || is_long(transport, ip, least)
                || is_long(ip, drv, least)
        }
    }
}

#[inline(always)]
fn is_long(from: u64, to: u64, least: u64) -> bool {
    from != 0 && to >= from && to - from >= least
}

#[inline(always)]
pub(crate) fn is_sampled() -> bool {
    random() < setting!(sample_below)
}

/// Wants packets of this port, as the user side does.
#[cfg(test)]
pub(crate) fn want_port(port: u16) {
    PORTS.insert(u32::from(port), 0, 0).expect("room for it");
}

/// Wants packets of this address.
#[cfg(test)]
pub(crate) fn want_host(family: u8, address: [u8; 16]) {
    let word = |at: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|byte| address[at * 4 + byte]));
    HOSTS.insert(&Key::new(Host::BITS, Host { family: family.into(), address: [0, 1, 2, 3].map(word) }), 0);
}

/// Wants packets of this network namespace.
#[cfg(test)]
pub(crate) fn want_netns(inode: u32) {
    NETNS.insert(inode, 0, 0).expect("room for it");
}

/// Wants packets on devices of this name.
#[cfg(test)]
pub(crate) fn want_interface(name: [u8; INTERFACE_LEN]) {
    let words = name.as_chunks().0;
    INTERFACES.insert([0, 1].map(|word| u64::from_ne_bytes(words[word])), 0, 0).expect("room for it");
}

#[cfg(test)]
mod tests {
    use net_latency_common::{AF_INET6, Settings, Unknown, unknown_part};

    use super::*;
    use crate::bpf::host::Machine;

    fn asked(settings: impl FnOnce(&mut Settings)) {
        Machine::reset();
        Machine::with(|machine| settings(&mut machine.settings));
    }

    #[test]
    fn one_long_time_is_enough_and_unknown_ones_count_for_nothing() {
        const LEAST: u64 = 10;
        asked(|settings| settings.slower_ns = LEAST);
        let times = [0, 1, 6, 11, 30];
        for number in 0..times.len().pow(4) {
            let crossed: [u64; 4] =
                core::array::from_fn(|place| times[number / times.len().pow(place as u32) % times.len()]);
            let [first, second, third, last] = crossed;
            let takes = |from: u64, to: u64| from != 0 && to != 0 && to.checked_sub(from) >= Some(LEAST);
            let is_slow =
                takes(first, last) || takes(first, second) || takes(second, third) || takes(third, last);
            for direction in [Direction::In, Direction::Out] {
                let mut order = [STAMP_DRV, STAMP_IP, STAMP_TRANSPORT, STAMP_APP];
                if direction == Direction::Out {
                    order.reverse();
                }
                let mut stamps = [0; STAMPS];
                order.into_iter().zip(crossed).for_each(|(stamp, time)| stamps[stamp] = time);
                assert_eq!(is_slow_enough(direction, &stamps), is_slow, "{direction:?} {crossed:?}");
            }
        }
        asked(|_| ());
        assert!(is_slow_enough(Direction::In, &[0; STAMPS]));
    }

    #[test]
    fn marks_and_samples_are_asked_for_before_the_time_is_known() {
        asked(|settings| (settings.filter_mark, settings.mark) = (0xf, 5));
        assert!(lasting(|| 0x15) && !lasting(|| 0x14));
        asked(|settings| settings.sample_below = 1);
        assert!(!lasting(|| 0));
        asked(|settings| settings.sample_below = u32::MAX);
        assert!(lasting(|| 0));
    }

    #[test]
    fn nobody_is_wanted_where_somebody_is_asked_for() {
        asked(|_| ());
        assert!(unknown() && task(&Task::UNKNOWN));
        asked(|settings| settings.filter_task = 1);
        assert!(!unknown() && !task(&Task::UNKNOWN));
        let mut someone = Task::UNKNOWN;
        someone.ids = 7 << 32 | 7;
        let is_shown = |is_wanted| task(&someone.judged(|_| is_wanted));
        assert!(is_shown(true) && !is_shown(false));
    }

    #[test]
    fn a_port_of_either_end_is_enough() {
        const PORT: u16 = 443;
        asked(|settings| settings.filter_port = 1);
        want_port(PORT);
        let wanted = [(PORT, 1), (1, PORT), (1, 2)].map(|(one, other)| ports(one, other));
        assert_eq!(wanted, [true, true, false]);
        asked(|_| ());
        assert!(ports(1, 2));
    }

    #[test]
    fn what_is_asked_for_is_wanted_alone() {
        asked(|settings| {
            settings.filter_netns = 1;
            settings.filter_family = AF_INET;
            settings.filter_protocol = 17;
        });
        want_netns(7);
        assert!(netns(7) && !netns(8));
        assert!(family(AF_INET) && !family(AF_INET6));
        assert!(protocol(17) && !protocol(6));
        assert!(needs_addresses());
        asked(|settings| settings.filter_host = 1);
        assert!(needs_addresses() && protocol(6) && netns(8) && family(AF_INET6));
        asked(|_| ());
        assert!(!needs_addresses());
    }

    /// In addresses of two words, the first byte in memory is the lowest.
    #[test]
    fn a_host_at_either_end_is_enough() {
        let host = |family, address| Key::new(Host::BITS, Host { family, address });
        let v4 = |remote: u32, local: u32| {
            AddrPair::new(AF_INET, [u64::from(local) << 32 | u64::from(remote), 0, 0, 0])
        };
        let v6 = |remote: [u64; 2], local: [u64; 2]| {
            AddrPair::new(AF_INET6, [remote[0], remote[1], local[0], local[1]])
        };
        asked(|settings| settings.filter_host = 1);
        HOSTS.insert(&host(AF_INET, [5, 0, 0, 0]), 0);
        HOSTS.insert(&host(AF_INET6, [1, 2, 3, 4]), 0);
        let (mine, other) = ([2 << 32 | 1, 4 << 32 | 3], [1, 3]);
        let wanted = [v4(5, 6), v4(6, 5), v6(mine, other), v6(other, mine)];
        let others =
            [v4(6, 7), v6(other, other), v6([mine[0], other[1]], other), v6([other[0], mine[1]], other)];
        for (pairs, is_wanted) in [(wanted, true), (others, false)] {
            for pair in pairs {
                assert_eq!(addresses(&pair), is_wanted, "{pair:x?}");
            }
        }
        // The family is wanted too.
        Machine::with(|machine| machine.settings.filter_family = AF_INET6);
        assert!(!addresses(&v4(5, 6)) && addresses(&v6(mine, other)));
    }

    #[test]
    fn who_may_become_another_is_not_told_by_process() {
        for (by_task, comm, cgroup) in [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0), (1, 0, 1)] {
            asked(|settings| {
                (settings.filter_task, settings.filter_comm, settings.filter_cgroup) =
                    (by_task, comm, cgroup);
            });
            let may_change = comm != 0 || cgroup != 0;
            assert_eq!(current_may_change(), may_change);
            assert_eq!(is_by_process(), by_task != 0 && !may_change);
        }
    }

    /// Names are not needed where times are counted by something else, with no filter by name and no records of slow packets.
    #[test]
    fn names_are_asked_for_where_they_are_shown() {
        let by = |by: u32, slower, comm| {
            asked(|settings| {
                settings.histograms_by = by;
                settings.record_slower_ns = slower;
                settings.filter_comm = comm;
            });
            needs_names()
        };
        for group in [GroupBy::Pid, GroupBy::Comm, GroupBy::Process] {
            assert!(by(group as u32, 0, 0), "{group:?}");
        }
        assert!(by(0, 0, 0) && !by(GroupBy::Port as u32, 0, 0));
        assert!(by(GroupBy::Port as u32, 1, 0) && by(GroupBy::Port as u32, 0, 1));
    }

    #[test]
    fn a_complete_packet_is_wanted_for_mark_time_and_sample() {
        const SLOW: [u64; STAMPS] = [1, 2, 3, 100];
        const FAST: [u64; STAMPS] = [1, 2, 3, 4];
        let is_shown = |mark, stamps| packet(Direction::In, stamps, || mark);
        asked(|settings| {
            settings.filter_mark = 0xf;
            settings.mark = 5;
            settings.slower_ns = 50;
        });
        assert!(is_shown(5, &SLOW) && !is_shown(6, &SLOW) && !is_shown(5, &FAST));
        Machine::with(|machine| machine.settings.sample_below = 1);
        assert!(!is_shown(5, &SLOW));
        // While times are counted, only slow packets have a record.
        asked(|settings| settings.record_slower_ns = 50);
        assert!(records_slow() && is_recorded(Direction::In, &SLOW) && !is_recorded(Direction::In, &FAST));
        asked(|_| ());
        assert!(!records_slow() && !is_recorded(Direction::In, &SLOW));
    }

    #[test]
    fn a_sample_is_below_its_number() {
        asked(|_| ());
        let number = random();
        for (below, is_wanted) in [(number - 1, false), (number, false), (number + 1, true)] {
            asked(|settings| settings.sample_below = below);
            assert_eq!(is_sampled(), is_wanted);
        }
    }

    #[test]
    fn one_long_part_is_enough() {
        asked(|settings| settings.slower_ns = 10);
        assert!(!has_slow_part(&[9, 9, 9, u64::MAX >> 1]));
        for number in [PART_QDISC, PART_DRIVER, PART_NET] {
            let mut parts = [9; PARTS];
            parts[number] = 10;
            assert!(has_slow_part(&parts), "{number}");
            parts[number] = unknown_part(Unknown::NoStamp);
            assert!(!has_slow_part(&parts), "{number}");
        }
    }
}

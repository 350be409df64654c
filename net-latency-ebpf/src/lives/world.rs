//! A kernel's objects in a machine's memory, and how hooks are called.

use core::cell::Cell;
use std::vec::Vec;

use net_latency_common::{AF_INET, AF_INET6, COMM_LEN, Counter, INTERFACE_LEN, IPPROTO_TCP, Offsets};

use super::{
    choice::Choice,
    flow::{Flow, shown},
    journeys::{About, Departures, FUNCTION, Looks},
    layout::{self, Sizes},
    reader_truth::READERS,
    truth::{Call, Ends, Hook, Truth},
};
use crate::{
    bpf::host::{Machine, memory},
    emit::counters,
    journey::heads,
    kernel::{
        memory::{Memory, Probed},
        socket::Socket,
    },
};

/// Where an skb's headers begin in its buffer, and where its end is.
const NETWORK: u16 = 32;
const TCP_HEADER: u32 = 20;
const END: u32 = 192;
/// `skb->cloned`.
const CLONED: u8 = 1 << 3;
/// Position 0 of a stream, of a sender whose numbers are about to wrap.
const NEAR_WRAP: u32 = u32::MAX - 700;

/// What differs between kernels, as far as hooks can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    /// `kfree_skb` tells of what TCP drops (5.18: `tcp_drop_reason`; before, `tcp_drop` is inlined into most callers).
    pub(super) shows_tcp_drops: bool,
    /// Plain loads, or a helper for each read.
    pub(super) is_direct: bool,
    /// A softirq may come between another's two hooks (PREEMPT_RT since 6.18), and so may a task.
    pub(super) is_rt: bool,
}

/// An skb: the packet that it has, where its buffer is, and its other users.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skb {
    pub(super) address: u64,
    pub(super) head: u64,
    pub(super) packet: usize,
}

/// A buffer.
#[derive(Clone, Copy, Debug)]
struct Share {
    head: u64,
    /// The skbs on their way that have it.
    count: u32,
    /// Whether the socket that has sent its bytes keeps them too.
    has_sender: bool,
}

/// A process with one thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task {
    pub(super) address: u64,
    pub(super) ids: u64,
}

/// The name of the device that has this number.
pub(super) fn device_name(ifindex: u32) -> [u8; INTERFACE_LEN] {
    let mut name = [0; INTERFACE_LEN];
    name[..4].copy_from_slice(b"eth0");
    name[3] += ifindex as u8;
    name
}

/// A network namespace, with one device in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Net {
    pub(super) address: u64,
    pub(super) device: u64,
    pub(super) inode: u32,
    pub(super) ifindex: u32,
}

/// The objects, and all that is true.
pub(super) struct World {
    pub(super) kernel: Kernel,
    pub(super) choice: Choice,
    pub(super) offsets: Offsets,
    sizes: Sizes,
    skbs: usize,
    heads: usize,
    socks: usize,
    /// A packet socket.
    packet_socket: u64,
    /// A socket that has sent packets to others of this machine, before tracing.
    sender: u64,
    /// How many skbs have a buffer.
    shares: Vec<Share>,
    /// Sockets that skbs on their way out hold, once for each (`sk_wmem_alloc`).
    held: Vec<u64>,
    pub(super) nets: Vec<Net>,
    /// Devices without a queue.
    pub(super) unqueued: Vec<u64>,
    pub(super) tasks: Vec<Task>,
    /// Which of them a filter wants; none where there is no filter.
    pub(super) wanted: Vec<bool>,
    /// Which of them softirqs interrupt.
    pub(super) interrupted: usize,
    current: Cell<usize>,
    /// Slabs of `struct task_struct` and `struct signal_struct`.
    of_tasks: [usize; 2],
    pub(super) truth: Truth,
    /// One kprobe of N is skipped; none if it is 0.
    pub(super) skips: u32,
    /// What programs of `journey` were about, if packets are followed.
    pub(super) journeys: Option<Vec<Looks>>,
    /// What journeys were begun with packets that go out, if they are.
    pub(super) departures: Option<Departures>,
    /// What happened, to explain a failure.
    pub(super) log: Option<Vec<std::string::String>>,
}

/// Calls a hook by the backend of the kernel.
macro_rules! hook {
    ($world:expr, $kind:expr, $about:expr, $($path:ident)::+ ($($argument:expr),* $(,)?)) => {{
        let about = $about;
        if $world.kernel.is_direct {
            $world.call($kind, about, || crate::$($path)::+::<crate::kernel::memory::Direct>($($argument),*))
        } else {
            $world.call($kind, about, || crate::$($path)::+::<crate::kernel::memory::Probed>($($argument),*))
        }
    }};
}
pub(super) use hook;

/// Notes what happens, if there is a log.
macro_rules! note {
    ($world:expr, $($text:tt)*) => {
        if let Some(log) = &mut $world.log {
            log.push(std::format!($($text)*));
        }
    };
}
pub(super) use note;

/// An skb as a hook gets it.
pub(super) fn skb<M: Memory>(skb: Skb) -> crate::kernel::skb::Skb<M> {
    crate::kernel::skb::Skb::new(skb.address as *const u8)
}

/// A socket as a hook gets it.
pub(super) fn sock<M: Memory>(sk: u64) -> Socket<M> {
    Socket::new(sk as *const u8)
}

/// Writes IP's header, from the first address to the second. Returns its length.
pub(super) fn write_ip(at: u64, protocol: u8, is_v6: bool, [from, to]: [[u8; 16]; 2]) -> u16 {
    if is_v6 {
        memory::write(at, [0x60, 0, 0, 0, 0, 0, protocol, 64_u8]);
        memory::write(at + 8, from);
        memory::write(at + 24, to);
        return 40;
    }
    memory::write(at, [0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0_u8]);
    memory::write(at + 12, <[u8; 4]>::try_from(&from[..4]).expect("four"));
    memory::write(at + 16, <[u8; 4]>::try_from(&to[..4]).expect("four"));
    20
}

impl World {
    /// A machine on which nothing has happened yet. Whatever its memory has in it is drawn.
    pub(super) fn new(kernel: Kernel, seed: u64, is_shuffled: bool) -> Self {
        Machine::reset();
        let mut choice = Choice::new(seed);
        let (offsets, sizes) = layout::draw(&mut choice, is_shuffled);
        Machine::with(|machine| {
            machine.offsets = Offsets { sk_buff_cloned_shift: CLONED.trailing_zeros(), ..offsets };
            // Some kernels lack a field of those that say why TCP holds bytes back.
            if is_shuffled && choice.one_in(8) {
                machine.offsets.sock_sk_write_queue = 0;
            }
            // Some have an MPTCP that is not followed, and some only one queue for it.
            if !kernel.shows_tcp_drops || choice.one_in(4) {
                machine.offsets.mptcp_sock_write_seq = 0;
            }
            if choice.one_in(2) {
                machine.offsets.mptcp_sock_receive_queue = 0;
            }
            machine.clock = 1_000_000_000;
            machine.settings.since = machine.clock;
            machine.settings.seed = choice.next();
            machine.settings.tcp_drops_unseen = u32::from(!kernel.shows_tcp_drops);
            machine.settings.wakeup_bytes = 1 << 18;
            machine.random = choice.next() | 1;
        });
        let [skbs, heads] = [sizes.skb, END + sizes.shared].map(|size| memory::slab(size.into()));
        let mut world = Self {
            kernel,
            choice,
            offsets,
            skbs,
            heads,
            socks: memory::slab(sizes.sock.into()),
            sizes,
            packet_socket: 0,
            sender: 0,
            shares: Vec::new(),
            held: Vec::new(),
            nets: Vec::new(),
            unqueued: Vec::new(),
            tasks: Vec::new(),
            wanted: Vec::new(),
            interrupted: 2,
            current: Cell::new(2),
            of_tasks: [sizes.task, sizes.signal].map(|size| memory::slab(size.into())),
            truth: Truth::default(),
            skips: 0,
            journeys: None,
            departures: None,
            log: None,
        };
        for number in 0..2 {
            let net = world.net(number);
            world.nets.push(net);
        }
        world.tasks = (0..3).map(|number| world.task(number)).collect();
        world.packet_socket = memory::take(world.socks);
        world.put(world.packet_socket, offsets.sock_skc_family, 17_u16);
        world.sender = memory::take(world.socks);
        world.put(world.sender, offsets.sock_sk_protocol, u16::from(IPPROTO_TCP));
        world.run_as(None);
        world
    }

    /// `skb_set_owner_r`, by a packet socket.
    pub(super) fn give_to_packet_socket(&self, skb: Skb) {
        self.put(skb.address, self.offsets.sk_buff_sk, self.packet_socket);
    }

    /// A connection as lines show it, or a datagram's ends.
    pub(super) fn ends(&self, flow: &Flow, first: u32) -> Ends {
        let [remote, local] = flow.addresses.map(|address| shown(address, flow.is_v6));
        Ends {
            remote,
            local,
            remote_port: flow.remote_port,
            local_port: flow.local_port,
            family: if flow.is_v6 { AF_INET6 as u8 } else { AF_INET as u8 },
            netns: self.nets[flow.net].inode,
            first,
            is_collapsed: false,
            has_unnoted: false,
        }
    }

    /// A namespace with a device.
    pub(super) fn net(&mut self, number: u32) -> Net {
        let sizes = [self.sizes.net, self.sizes.device, self.sizes.qdisc, self.sizes.qdisc_ops];
        let [address, device, qdisc, ops] = sizes.map(|size| memory::take(memory::slab(size.into())));
        self.put(device, self.offsets.net_device_qdisc, qdisc);
        self.put(qdisc, self.offsets.qdisc_ops, ops);
        // `noqueue_qdisc`: its operations put skbs in, and it does not.
        let has_queue = number == 0;
        self.put(qdisc, self.offsets.qdisc_enqueue, u64::from(has_queue));
        self.put(ops, self.offsets.qdisc_ops_enqueue, 1_u64);
        if !has_queue {
            self.unqueued.push(device);
        }
        let (inode, ifindex) = (4_026_531_840 + number, 2 + number);
        self.put(address, self.offsets.net_ns_inum, inode);
        self.put(device, self.offsets.net_device_ifindex, ifindex);
        self.put(device, self.offsets.net_device_nd_net, address);
        self.put(device, self.offsets.net_device_name, device_name(ifindex));
        Net { address, device, inode, ifindex }
    }

    fn task(&self, number: u32) -> Task {
        // Two that share a place among readers.
        let id = if number == 2 { 1000 + READERS } else { 1000 + number };
        let address = self.new_task([id; 2], 1_000 + u64::from(number), None);
        Task { address, ids: u64::from(id) << 32 | u64::from(id) }
    }

    /// A task with these ids, of its process and its own: a thread of the process that has this leader and signals, or of a new one.
    pub(super) fn new_task(&self, [group, id]: [u32; 2], start: u64, of: Option<(u64, u64)>) -> u64 {
        let [tasks, signals] = self.of_tasks;
        let address = memory::take(tasks);
        let (leader, signal) = of.unwrap_or_else(|| {
            let signal = memory::take(signals);
            self.put(signal, self.offsets.signal_struct_live, 1_u32);
            (address, signal)
        });
        self.put(address, self.offsets.task_struct_pid, id);
        self.put(address, self.offsets.task_struct_flags, 0_u32);
        self.put(address, self.offsets.task_struct_tgid, group);
        self.put(address, self.offsets.task_struct_group_leader, leader);
        self.put(address, self.offsets.task_struct_signal, signal);
        self.put(address, self.offsets.task_struct_start_time, start);
        self.rename(address, (id % 10) as u8);
        address
    }

    /// Gives a task a name that ends with this digit.
    pub(super) fn rename(&self, task: u64, digit: u8) {
        let mut name = [0_u8; COMM_LEN];
        name[..5].copy_from_slice(b"task0");
        name[4] += digit;
        self.put(task, self.offsets.task_struct_comm, name);
    }

    pub(super) fn name_of(&self, task: usize) -> [u8; COMM_LEN] {
        self.get(self.tasks[task].address, self.offsets.task_struct_comm)
    }

    /// The task is gone, and with it its process' signals.
    pub(super) fn free_task(&self, address: u64, signal: Option<u64>) {
        memory::free(address);
        if let Some(signal) = signal {
            memory::free(signal);
        }
    }

    /// Whether a filter wants the current task, or there is none.
    pub(super) fn wants_current(&self) -> bool {
        self.wanted.get(self.current.get()).is_none_or(|is_wanted| *is_wanted)
    }

    /// The current task is this one; what a softirq interrupts if there is none.
    pub(super) fn run_as(&self, task: Option<usize>) {
        self.current.set(task.unwrap_or(self.interrupted));
        let task = self.tasks[self.current.get()];
        Machine::with(|machine| {
            machine.ids = task.ids;
            machine.task = task.address;
        });
    }

    /// Writes a field.
    #[inline]
    pub(super) fn put<T: Copy>(&self, base: u64, offset: u32, value: T) {
        memory::write(base + u64::from(offset), value);
    }

    /// Reads a field.
    #[inline]
    pub(super) fn get<T: Copy>(&self, base: u64, offset: u32) -> T {
        memory::read(base + u64::from(offset))
    }

    /// Whether the kernel skips a kprobe that is hit while another one runs on its CPU (`kprobe_ftrace_handler`); tracepoints it does not.
    pub(super) fn skips_kprobe(&mut self) -> bool {
        !self.kernel.is_direct && self.skips != 0 && self.choice.one_in(self.skips)
    }

    /// Runs the program of a hook.
    pub(super) fn call(
        &mut self,
        hook: Hook,
        about: usize,
        program: impl FnOnce() -> counters::HookResult,
    ) -> usize {
        let (from, ids, cpu) = Machine::with(|machine| (machine.clock, machine.ids, machine.cpu));
        let is_kprobe = matches!(hook, Hook::Ip | Hook::Tcp | Hook::Udp | Hook::Forwarded | Hook::Written);
        let is_skipped = is_kprobe && self.skips_kprobe();
        let result = if is_skipped { Ok(()) } else { program() };
        if let Err(counter) = result {
            counters::one(counter);
        }
        let to = Machine::with(|machine| machine.clock);
        note!(
            self,
            "  {hook:?} {about} on CPU {cpu}, {} to {}: {:?}",
            from % 100_000 + 1,
            to % 100_000,
            result.err().map(|counter: Counter| counter)
        );
        self.truth.calls.push(Call {
            hook,
            about,
            from,
            to,
            ids,
            is_skipped,
            result: result.err(),
            is_wanted: self.wants_current(),
        });
        self.truth.calls.len() - 1
    }

    /// A new skb with a buffer of its own, which has a packet's headers in it.
    pub(super) fn new_skb(&mut self, packet: usize, flow: &Flow, net: usize) -> Skb {
        let (address, head) = (memory::take(self.skbs), memory::take(self.heads));
        // A socket of this machine may have sent it, which keeps the payload, and with it the buffer: that is not modelled.
        let has_sender = packet % 2 == 1 && self.journeys.is_none();
        self.own(head, has_sender);
        let skb = Skb { address, head, packet };
        let offsets = self.offsets;
        let (len, segs, mark) = {
            let packet = &self.truth.packets[packet];
            (packet.len, packet.segs, packet.mark)
        };
        let transport = self.write_headers(head, packet, flow);
        self.put(address, offsets.sk_buff_head, head);
        self.put(address, offsets.sk_buff_end, END);
        self.put(address, offsets.sk_buff_users, 1_u32);
        self.put(address, offsets.sk_buff_mark, mark);
        self.put(address, offsets.sk_buff_sk, if has_sender { self.sender } else { 0 });
        self.put(address, offsets.sk_buff_cloned, if has_sender { CLONED } else { 0 });
        self.put(address, offsets.sk_buff_skb_iif, 0_u32);
        self.put(address, offsets.sk_buff_dev, self.nets[net].device);
        self.put(address, offsets.sk_buff_network_header, NETWORK);
        self.put(address, offsets.sk_buff_transport_header, transport);
        self.put(address, offsets.sk_buff_protocol, if flow.is_v6 { 0x86dd_u16 } else { 0x0800 }.to_be());
        self.put(address, offsets.sk_buff_next, 0_u64);
        // A packet that GRO has merged lies in pages but for its headers.
        self.put(address, offsets.sk_buff_data_len, if segs > 1 { len } else { 0 });
        self.put(head, END + offsets.skb_shared_info_gso_segs, if segs > 1 { segs } else { 0 });
        self.put(address, offsets.sk_buff_len, u32::from(transport - NETWORK) + TCP_HEADER + len);
        self.put(address, offsets.sk_buff_data, head + u64::from(NETWORK));
        skb
    }

    /// Writes IP's and TCP's headers. Returns where TCP's begins.
    fn write_headers(&self, head: u64, packet: usize, flow: &Flow) -> u16 {
        let transport =
            NETWORK + write_ip(head + u64::from(NETWORK), IPPROTO_TCP, flow.is_v6, flow.addresses);
        let packet = &self.truth.packets[packet];
        let behind = (TCP_HEADER + packet.len) as u16;
        let (at, len) = if flow.is_v6 { (4, behind) } else { (2, behind + 20) };
        memory::write(head + u64::from(NETWORK) + at, len.to_be());
        let seq = self.truth.connections[packet.connection].first.wrapping_add(packet.start as u32);
        let tcp = head + u64::from(transport);
        memory::write(tcp, [flow.remote_port.to_be(), flow.local_port.to_be()]);
        // The acknowledgement tells two packets with the same bytes apart, as it mostly does.
        memory::write(tcp + 4, [seq.to_be(), 77_u32.to_be(), (5_u32 << 28 | 1 << 20).to_be(), 0]);
        transport
    }

    /// Takes the header off that `skb->data` stands on: IP's, or with it TCP's.
    pub(super) fn pull(&self, skb: Skb, bytes: u32) {
        let [len, data] = [self.offsets.sk_buff_len, self.offsets.sk_buff_data];
        self.put(skb.address, len, self.get::<u32>(skb.address, len) - bytes);
        self.put(skb.address, data, self.get::<u64>(skb.address, data) + u64::from(bytes));
    }

    /// Bytes of IP's header.
    pub(super) fn ip_len(&self, skb: Skb) -> u32 {
        let transport: u16 = self.get(skb.address, self.offsets.sk_buff_transport_header);
        u32::from(transport - NETWORK)
    }

    /// `skb_clone`: another skb with the same buffer.
    pub(super) fn clone_skb(&mut self, skb: Skb) -> Skb {
        let address = memory::take(self.skbs);
        self.put(skb.address, self.offsets.sk_buff_cloned, CLONED);
        self.copy_struct(skb, address);
        self.share(skb.head, 1);
        Skb { address, ..skb }
    }

    fn copy_struct(&self, skb: Skb, address: u64) {
        memory::copy(skb.address, address, self.sizes.skb);
        self.put(address, self.offsets.sk_buff_users, 1_u32);
        self.put(address, self.offsets.sk_buff_next, 0_u64);
    }

    /// What `tcp_collapse` makes of several skbs: another one, whose headers are the first one's.
    pub(super) fn collapsed(&mut self, first: Skb, seq: u32, len: u32) -> Skb {
        let new = self.begin_copy(first);
        self.end_copy(new, first);
        self.put(new.address, self.offsets.tcp_skb_cb_seq, seq);
        self.put(new.address, self.offsets.tcp_skb_cb_end_seq, seq.wrapping_add(len));
        self.put(new.address, self.offsets.sk_buff_len, len);
        new
    }

    /// A copy of a buffer, which is at another address.
    fn copy_buffer(&mut self, head: u64) -> u64 {
        let new = memory::take(self.heads);
        memory::copy(head, new, END + self.sizes.shared);
        self.own(new, false);
        new
    }

    /// An skb has another buffer from now on.
    pub(super) fn rebuffer(&mut self, skb: &mut Skb) {
        let new = self.copy_buffer(skb.head);
        self.share(skb.head, -1);
        let data: u64 = self.get(skb.address, self.offsets.sk_buff_data);
        self.put(skb.address, self.offsets.sk_buff_cloned, 0_u8);
        self.put(skb.address, self.offsets.sk_buff_head, new);
        self.put(skb.address, self.offsets.sk_buff_data, new + (data - skb.head));
        skb.head = new;
    }

    /// Memory for a copy, whose header `skb_copy_header` is about to write: the buffer is there by then.
    pub(super) fn begin_copy(&mut self, skb: Skb) -> Skb {
        let address = memory::take(self.skbs);
        let head = self.copy_buffer(skb.head);
        self.put(address, self.offsets.sk_buff_head, head);
        Skb { address, head, packet: skb.packet }
    }

    pub(super) fn end_copy(&self, copy: Skb, skb: Skb) {
        self.copy_struct(skb, copy.address);
        let data: u64 = self.get(skb.address, self.offsets.sk_buff_data);
        self.put(copy.address, self.offsets.sk_buff_cloned, 0_u8);
        self.put(copy.address, self.offsets.sk_buff_head, copy.head);
        self.put(copy.address, self.offsets.sk_buff_data, copy.head + (data - skb.head));
    }

    pub(super) fn users(&self, skb: Skb, more: i32) -> u32 {
        let users = self.get::<u32>(skb.address, self.offsets.sk_buff_users).wrapping_add_signed(more);
        self.put(skb.address, self.offsets.sk_buff_users, users);
        users
    }

    fn has_one_user(&self, skb: Skb) -> bool {
        self.get::<u32>(skb.address, self.offsets.sk_buff_users) == 1
    }

    fn share(&mut self, head: u64, more: i32) -> u32 {
        let index = self.shares.iter().position(|share| share.head == head).expect("a buffer");
        let share = &mut self.shares[index];
        share.count = share.count.wrapping_add_signed(more);
        let share = *share;
        if share.count == 0 {
            self.shares.swap_remove(index);
            memory::free(head);
        } else {
            self.put_share(share);
        }
        share.count
    }

    /// A new buffer.
    fn own(&mut self, head: u64, has_sender: bool) {
        let share = Share { head, count: 1, has_sender };
        self.shares.push(share);
        self.put_share(share);
    }

    /// `skb_shinfo(skb)->dataref`: all references, and above 16 bits those to the payload alone (`__skb_header_release`).
    fn put_share(&self, Share { head, count, has_sender }: Share) {
        let senders = u32::from(has_sender);
        self.put(head, END + self.offsets.skb_shared_info_dataref, (count + senders) | senders << 16);
    }

    /// Frees an skb where no hook sees it (`consume_skb`, `__kfree_skb`), if it was the last reference.
    pub(super) fn free(&mut self, skb: Skb) {
        if self.journeys.is_some() && self.has_one_user(skb) {
            // `skb_release_head_state`.
            let program = || heads::freed(self::skb::<Probed>(skb), FUNCTION);
            self.journey(About::Packet(skb.packet), program);
        }
        if self.users(skb, -1) == 0 {
            self.share(skb.head, -1);
            memory::free(skb.address);
        }
    }

    /// `kfree_skb`: the tracepoint tells, if it was the last reference.
    pub(super) fn drop(&mut self, skb: Skb) {
        if self.has_one_user(skb) {
            self.call(Hook::Other, skb.packet, || crate::tcp::receive::dropped(self::skb::<Probed>(skb)));
            self.journey(About::Packet(skb.packet), || heads::dropped(self::skb::<Probed>(skb), 1, 0));
        }
        self.free(skb);
    }

    /// A socket of a connection.
    pub(super) fn new_socket(&mut self, flow: &Flow, first: u32) -> u64 {
        const TCP_ESTABLISHED: u8 = 1;
        let sk = memory::take(self.socks);
        let offsets = self.offsets;
        memory::clear(sk, self.sizes.sock);
        let [remote, local] = flow.addresses;
        if flow.is_v6 {
            self.put(sk, offsets.sock_skc_v6_daddr, remote);
            self.put(sk, offsets.sock_skc_v6_rcv_saddr, local);
        } else {
            let mut pair = [0; 8];
            pair[..4].copy_from_slice(&remote[..4]);
            pair[4..].copy_from_slice(&local[..4]);
            self.put(sk, offsets.sock_skc_addrpair, pair);
        }
        let family = if flow.is_v6 { AF_INET6 } else { AF_INET };
        self.put(sk, offsets.sock_skc_family, family as u16);
        self.put(
            sk,
            offsets.sock_skc_portpair,
            u32::from(flow.remote_port.to_be()) | u32::from(flow.local_port) << 16,
        );
        self.put(sk, offsets.inet_sock_inet_sport, flow.local_port.to_be());
        self.put(sk, offsets.sock_skc_net, self.nets[flow.net].address);
        self.put(sk, offsets.sock_skc_state, TCP_ESTABLISHED);
        self.put(sk, offsets.sock_sk_protocol, u16::from(IPPROTO_TCP));
        self.put(sk, offsets.tcp_sock_rcv_nxt, first);
        self.put(sk, offsets.tcp_sock_copied_seq, first);
        sk
    }

    /// An skb has this socket from now on (`skb_set_owner_w`).
    pub(super) fn hold_socket(&mut self, sk: u64) {
        self.held.push(sk);
    }

    /// One of a socket's users lets it go; it is freed if that was the last (`sk_free`, `sock_wfree`).
    pub(super) fn free_socket(&mut self, sk: u64) {
        match self.held.iter().position(|held| *held == sk) {
            Some(index) => {
                self.held.swap_remove(index);
            }
            None => {
                self.truth.forgets_request((sk, 0));
                memory::free(sk);
            }
        }
    }

    /// A second thread of the first task's process. Returns its number among the tasks.
    pub(super) fn second_thread(&mut self) -> usize {
        let number = self.tasks.len();
        let task = self.task(number as u32);
        let leader = self.tasks[0];
        let process = leader.ids >> 32;
        self.put(task.address, self.offsets.task_struct_tgid, process as u32);
        self.put(task.address, self.offsets.task_struct_group_leader, leader.address);
        self.tasks.push(Task { ids: process << 32 | task.ids & u64::from(u32::MAX), ..task });
        self.wanted.extend(self.wanted.first().copied());
        number
    }

    /// A new skb with a buffer of its own, in which nothing is written yet.
    pub(super) fn empty_skb(&mut self, packet: usize) -> Skb {
        let (address, head) = (memory::take(self.skbs), memory::take(self.heads));
        self.own(head, false);
        memory::clear(address, self.sizes.skb);
        self.put(address, self.offsets.sk_buff_head, head);
        self.put(address, self.offsets.sk_buff_end, END);
        self.put(address, self.offsets.sk_buff_data, head);
        self.put(address, self.offsets.sk_buff_users, 1_u32);
        self.put(head, END + self.offsets.skb_shared_info_gso_segs, 0_u16);
        Skb { address, head, packet }
    }

    /// How many segments a buffer's bytes will be (`skb_shinfo(skb)->gso_segs`).
    pub(super) fn set_segs(&self, skb: Skb, segs: u16) {
        self.put(skb.head, END + self.offsets.skb_shared_info_gso_segs, segs);
    }

    /// How many segments a buffer's bytes are, once that is set.
    pub(super) fn segs(&self, skb: Skb) -> u16 {
        self.get(skb.head, END + self.offsets.skb_shared_info_gso_segs)
    }

    /// Whether other skbs have this one's buffer.
    pub(super) fn is_buffer_shared(&self, skb: Skb) -> bool {
        self.shares.iter().any(|share| share.head == skb.head && share.count > 1)
    }

    /// The number of the first byte of a stream.
    pub(super) fn first_number(&mut self) -> u32 {
        if self.choice.one_in(4) { NEAR_WRAP } else { self.choice.next() as u32 }
    }
}

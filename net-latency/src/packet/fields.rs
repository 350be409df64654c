//! The fields of a packet's line, declared once, in the order that is part of the interface. From here come JSON and CSV, their readers,
//! docs/packet.schema.json, and the guide's table.

use net_latency_common::Direction;

use super::event::{Event, Protocol};

/// Which packets have a field, and what it can be.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(test), expect(dead_code, reason = "a test writes the documents from all of it"))]
pub(crate) struct Of {
    /// A bit for each [`way`].
    ways: u8,
    /// Others have no such field in JSON, rather than `null`.
    is_absent: bool,
    /// So have those of which it is unknown.
    pub(crate) is_absent_unknown: bool,
    /// It is known in all that have it.
    pub(crate) is_known: bool,
    /// It is there with fine stages only.
    pub(crate) is_fine: bool,
    /// No number is lower, no name shorter.
    pub(crate) least: u64,
}

/// The number of a direction and protocol.
const fn way(direction: Direction, protocol: Protocol) -> u8 {
    2 * direction as u8 + protocol as u8
}

impl Of {
    /// Every packet, known.
    pub(crate) const EACH: Self = Self {
        ways: 0b1111,
        is_absent: false,
        is_absent_unknown: false,
        is_known: true,
        is_fine: false,
        least: 0,
    };
    /// Every packet; it may be unknown.
    pub(crate) const ANY: Self = Self { is_known: false, ..Self::EACH };
    /// Those of TCP.
    pub(crate) const TCP: Self = Self { ways: 0b0101, ..Self::EACH };
    /// Received ones; it may be unknown.
    pub(crate) const RECEIVED: Self = Self { ways: 0b0011, ..Self::ANY };
    /// Sent ones; it may be unknown.
    pub(crate) const SENT: Self = Self { ways: 0b1100, ..Self::ANY };
    /// What TCP sends; it may be unknown.
    pub(crate) const SENT_BY_TCP: Self = Self { ways: 0b0100, ..Self::ANY };

    /// No number is lower, no name shorter.
    pub(crate) const fn from(self, least: u64) -> Self {
        Self { least, ..self }
    }

    /// Other packets don't have it, rather than `null`.
    pub(crate) const fn alone(self) -> Self {
        Self { is_absent: true, ..self }
    }

    /// Nor do those of which it is unknown.
    pub(crate) const fn where_known(self) -> Self {
        Self { is_absent_unknown: true, is_known: true, ..self.alone() }
    }

    /// With fine stages only.
    pub(crate) const fn fine(self) -> Self {
        Self { is_fine: true, ..self }
    }

    /// Whether such packets can have it.
    #[inline(always)]
    pub(crate) const fn has(self, direction: Direction, protocol: Protocol) -> bool {
        self.ways >> way(direction, protocol) & 1 == 1
    }

    /// Whether every line has the field.
    pub(crate) const fn is_of_all(self) -> bool {
        !self.is_absent
    }

    /// Whether the line of such a packet has the field, which is known or not.
    #[inline(always)]
    pub(crate) const fn is_there(self, direction: Direction, protocol: Protocol, is_known: bool) -> bool {
        if self.is_absent_unknown && !is_known {
            return false;
        }
        !self.is_absent || self.has(direction, protocol)
    }
}

/// Hands all fields to the macro `make`: NAME: KIND = METHOD of an event, of which packets, what it is.
///
/// The kind says how it is written and read; `stages` and `fine_stages` stand for the fields of those. Behind the method of one that is a
/// field of the record: the number there if it is unknown, or if a log lacks it; such a method is made here.
macro_rules! with_fields {
    ($make:ident) => {
        $make! {
            ts: time = wall_ns, Of::EACH,
                "When the packet crossed its last stage, or had its ACK: RFC 3339 with 9 digits and an offset.";
            dir: direction = direction, Of::EACH, "Received or sent.";
            proto: protocol = protocol, Of::EACH, "What carried its data.";
            ipver: u8 = ip_version, Of::EACH.from(4), "Version of IP.";
            pid: u32 = pid [0 if unknown], Of::ANY.from(1),
                "Process (in the initial PID namespace) that took the bytes, or wrote the first of them.";
            tid: u32 = tid [0 if unknown], Of::ANY.from(1), "Its thread.";
            comm: name = comm, Of::ANY, "The thread's name. Invalid UTF-8 reads as U+FFFD.";
            saddr: address = saddr, Of::EACH, "The packet's source, whatever its direction.";
            sport: u16 = sport, Of::EACH, "Its port.";
            daddr: address = daddr, Of::EACH, "The packet's destination.";
            dport: u16 = dport, Of::EACH, "Its port.";
            len: u32 = len [0 unless told], Of::EACH, "Bytes of payload.";
            seq: u32 = seq, Of::TCP, "Sequence number of the first byte of payload; null for UDP.";
            segs: u16 = segs [1 unless told], Of::EACH, "Segments or datagrams on the wire (GRO, TSO, GSO).";
            stages: stages = stages, Of::ANY, "";
            total_ns: u64 = total_ns, Of::ANY, "From the first stage to the last; null unless both are known.";
            ifname: name = ifname, Of::ANY.from(1),
                "The device; null where it has no name any more, or is in a network namespace younger than the run.";
            netns: u32 = netns [0 if unknown], Of::ANY.from(1), "Inode number of the network namespace.";
            mark: u32 = mark [0 unless told], Of::EACH, "The packet's mark.";
            cpu: u16 = cpu [0 unless told], Of::EACH, "The CPU on which the packet crossed its last stage.";
            flags: flags = flags, Of::EACH, "What else is to be said of it, in a few words.";
            first_send_age_ns: u64 = first_send_age_ns, Of::SENT,
                "Of a retransmission: how long before it TCP had sent these bytes first.";
            last_drv_ip_ns: u64 = last_drv_ip_ns, Of::RECEIVED,
                "Of a packet that was forwarded on this machine: the part of drv_ip_ns after its last entry into the stack.";
            ns_pid: u32 = ns_pid, Of::ANY.from(1), "The process in the PID namespace that it is in.";
            fine_stages: fine_stages = parts, Of::ANY.fine(), "";
            held: held = held, Of::SENT_BY_TCP.alone().fine(),
                "Of outgoing TCP: why TCP held these bytes back, for half of app_tcp_ns or more. Null where it did not, or the reason is not known.";
            process: name = process, Of::ANY,
                "The process's name, which is that of its first thread. Invalid UTF-8 reads as U+FFFD.";
            rtt_ns: u64 = rtt_ns, Of::SENT_BY_TCP.alone().from(1),
                "Of outgoing TCP: the connection's smoothed round-trip time when TCP sent the packet, as ss -ti shows it. Null before the first ACK.";
            dsacks: u16 = dsacks, Of::SENT_BY_TCP.where_known(),
                "Of outgoing TCP: how many segments the peer had said by then to have got twice (the lower 16 bits of the kernel's count since the connection began). Only where the connection has sent something again while it was traced.";
            cpu_held_by: u32 = cpu_held_by, Of::RECEIVED.alone().fine().from(1),
                "Of incoming packets: the PID of the process that had the CPU for most of the time in which the thread that reads waited for it. Null where it did not wait, the CPU was idle, or no process had it for a quarter of that time.";
            netns_name: name = netns_name, Of::ANY.from(1),
                "The network namespace's name in /run/netns, else the process's pod as NAMESPACE/NAME, unless the namespace is that of net-latency. Null where neither is known.";
            container: name = container, Of::ANY.from(1),
                "The first 12 digits of the id of the container that the process is in, by its cgroup. Null on the host, and where the process is not known.";
            service_ns: u64 = service_ns, Of::SENT.alone().fine().from(1),
                "Of the first packet of an answer: from the end of the read that took the request's last bytes to the write call, both by the same thread. Null of other packets, and where another thread had read, or it was not seen all the time.";
            service_cpu_ns: u64 = service_cpu_ns, Of::SENT.alone().fine(),
                "The part of service_ns in which that thread was on a CPU, with the interrupts that it had there.";
            service_wait_ns: u64 = service_wait_ns, Of::SENT.alone().fine(),
                "The part of service_ns in which it waited for a CPU.";
            service_sleep_ns: u64 = service_sleep_ns, Of::SENT.alone().fine(),
                "The part of service_ns in which it was asleep.";
            service_syscall: name = service_syscall, Of::SENT.alone().fine().from(1),
                "The system call in which it slept for half of service_sleep_ns or more. Null where it did not sleep, in none so long, or in none at all (a page that was read from a disk); of a process of 32 bits; and where it had read another request before that it had not answered.";
        }
    };
}

pub(crate) use with_fields;

/// The method that reads a field of the record.
macro_rules! method {
    ($name:ident: $kind:ident [$none:literal if unknown], $what:literal) => {
        #[doc = $what]
        #[must_use]
        pub fn $name(&self) -> Option<$kind> {
            Some(self.record().$name).filter(|value| *value != $none)
        }
    };
    ($name:ident: $kind:ident [$absent:literal unless told], $what:literal) => {
        #[doc = $what]
        #[must_use]
        pub fn $name(&self) -> $kind {
            self.record().$name
        }
    };
}

macro_rules! methods {
    ($($name:ident: $kind:ident = $method:ident $([$($stored:tt)*])?, $of:expr, $what:literal;)*) => {
        #[expect(clippy::len_without_is_empty, reason = "it is the packet's, which is no collection")]
        impl Event<'_> {
            $($(method!($name: $kind [$($stored)*], $what);)?)*
        }
    };
}

with_fields!(methods);

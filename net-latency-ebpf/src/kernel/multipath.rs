//! MPTCP: fields of its sockets (`struct mptcp_sock`), and of what ties a subflow, a TCP socket, to one (`struct
//! mptcp_subflow_context`). Their numbers have 64 bits; the lower half tells all that waits from each other.

use super::{
    memory::{Memory, Number, probe},
    offsets::{At, offset},
    socket::Socket,
};

/// Whether MPTCP is followed: the kernel has all that this reads.
#[inline(always)]
pub(crate) fn is_known() -> bool {
    offset!(mptcp_sock_write_seq).value() != 0
}

/// A field past the end of the struct that the verifier knows the pointer as.
#[inline(always)]
fn field<T: Copy>(base: u64, at: impl At) -> T {
    // SAFETY: any address survives, and any bits are a number.
    unsafe { probe(at.of(base as *const u8)) }
}

impl<M: Memory> Socket<M> {
    /// Of MPTCP's: the number that the next written byte gets.
    #[inline(always)]
    pub(crate) fn multipath_write_seq(self) -> u32 {
        field(self.address(), offset!(mptcp_sock_write_seq))
    }

    /// Of MPTCP's: the first number that no subflow has got yet.
    #[inline(always)]
    pub(crate) fn multipath_snd_nxt(self) -> u32 {
        field(self.address(), offset!(mptcp_sock_snd_nxt))
    }

    /// Of MPTCP's: the first number that the peer has not got, for all that is known. A subflow may get it and those behind it again
    /// (`__mptcp_retrans`).
    #[inline(always)]
    pub(crate) fn multipath_snd_una(self) -> u32 {
        field(self.address(), offset!(mptcp_sock_snd_una))
    }

    /// For MPTCP's socket, whose lock the current task has: the number of the first byte that the application has not read. Nothing if a
    /// softirq is adding to the queue right now.
    ///
    /// `__mptcp_recvmsg_mskq` moves `map_seq` of an skb of which it reads a part. `ack_seq` is the number behind the last one on the queue.
    /// Up to Linux 6.14 `mptcp_data_ready` adds there with the spinlock alone (`mptcp_data_lock`), first to `ack_seq`; and readers have a
    /// queue of their own before that one. From 6.15 on the socket's lock protects both.
    ///
    /// `keeps_order` keeps reads before it from crossing reads behind it.
    #[inline(always)]
    pub(crate) fn multipath_read(self, keeps_order: impl Fn()) -> Option<u32> {
        // struct sk_buff_head: next, prev, qlen.
        const QLEN: usize = 16;
        let of_reader = offset!(mptcp_sock_receive_queue);
        let has_two = of_reader.value() != 0;
        if has_two && field::<u32>(self.address(), of_reader.behind::<QLEN>()) != 0 {
            return Some(number_of(field(self.address(), of_reader)));
        }
        let next = field(self.address(), offset!(mptcp_sock_ack_seq));
        keeps_order();
        let is_adding = has_two && field::<u32>(self.address(), offset!(sock_sk_lock_slock)) != 0;
        keeps_order();
        if self.received_skbs() != 0 {
            return Some(number_of(field(self.address(), offset!(sock_sk_receive_queue))));
        }
        if is_adding {
            return None;
        }
        // The end of what the peer sends has a number too (`mptcp_check_data_fin`).
        let end: u32 = field(self.address(), offset!(mptcp_sock_rcv_data_fin_seq));
        Some(if end != 0 && next == end.wrapping_add(1) { end } else { next })
    }

    /// For a subflow: the address of its socket of MPTCP, and how far the numbers of that are from its own, as its last mapping has them
    /// (`mptcp_subflow_get_mapped_dsn`).
    #[inline(always)]
    pub(crate) fn multipath_mapping(self) -> (u64, u32) {
        let context: u64 = field(self.address(), offset!(tcp_sock_icsk_ulp_data));
        let whole: u32 = field(context, offset!(mptcp_subflow_context_map_seq));
        let own: u32 = field(context, offset!(mptcp_subflow_context_map_subflow_seq));
        let first: u32 = field(context, offset!(mptcp_subflow_context_ssn_offset));
        (field(context, offset!(mptcp_subflow_context_conn)), whole.wrapping_sub(own).wrapping_sub(first))
    }
}

/// The number of the first byte of an skb on a queue of MPTCP's that was not read.
#[inline(always)]
fn number_of(skb: u64) -> u32 {
    field(skb, offset!(mptcp_skb_cb_map_seq))
}

/// The number of the next byte of `fragment` (`struct mptcp_data_frag`) that a subflow gets, of which others have got `sent` of `info` (`struct
/// mptcp_sendmsg_info`).
#[inline(always)]
pub(crate) fn next_sent(fragment: Number, info: Number) -> u32 {
    let start: u32 = field(fragment.address(), offset!(mptcp_data_frag_data_seq));
    start.wrapping_add(u32::from(field::<u16>(info.address(), offset!(mptcp_sendmsg_info_sent))))
}

#[cfg(test)]
mod tests {
    use net_latency_common::Offsets;

    use super::*;
    use crate::{
        bpf::host::{Machine, memory},
        kernel::memory::Probed,
    };

    /// The end of what the peer sends has a number, which may be known before what comes ahead of it is there: another subflow has that.
    #[test]
    fn what_was_read_ends_where_the_first_byte_of_a_queue_begins() {
        const OF_TASK: u64 = 8;
        const OF_READER: u64 = 40;
        Machine::reset();
        let [socket, first, second] = [128, 64, 64].map(|size| memory::take(memory::slab(size)));
        let offsets = Offsets {
            sock_sk_receive_queue: OF_TASK as u32,
            mptcp_sock_receive_queue: OF_READER as u32,
            sock_sk_lock_slock: 64,
            mptcp_sock_ack_seq: 72,
            mptcp_sock_rcv_data_fin_seq: 80,
            mptcp_skb_cb_map_seq: 8,
            ..Offsets::default()
        };
        memory::write(first + 8, 100_u32);
        memory::write(second + 8, 200_u32);
        memory::write(socket + OF_TASK, first);
        memory::write(socket + OF_READER, second);
        // Up to Linux 6.14 readers have a queue of their own.
        for (has_two, of_task, of_reader, is_adding, next, end, read) in [
            (true, 1, 1, 0, 300, 0, Some(200)),
            (true, 1, 0, 0, 300, 0, Some(100)),
            (true, 1, 0, 1, 300, 0, Some(100)),
            (true, 0, 0, 1, 300, 0, None),
            (true, 0, 0, 0, 300, 0, Some(300)),
            (false, 1, 1, 1, 300, 0, Some(100)),
            (false, 0, 1, 1, 300, 0, Some(300)),
            (false, 0, 0, 0, 300, 299, Some(299)),
            (false, 0, 0, 0, 300, 300, Some(300)),
            (false, 0, 0, 0, 300, 400, Some(300)),
            (false, 0, 0, 0, 1, 0, Some(1)),
        ] {
            let of_two = if has_two { offsets.mptcp_sock_receive_queue } else { 0 };
            Machine::with(|machine| {
                machine.offsets = Offsets { mptcp_sock_receive_queue: of_two, ..offsets };
            });
            memory::write(socket + OF_TASK + 16, of_task);
            memory::write(socket + OF_READER + 16, of_reader);
            memory::write(socket + 64, [is_adding, 0, next, 0, end]);
            let it = Socket::<Probed>::new(socket as *const u8);
            assert_eq!(
                it.multipath_read(|| ()),
                read,
                "{has_two} {of_task} {of_reader} {is_adding} {next} {end}"
            );
        }
    }
}

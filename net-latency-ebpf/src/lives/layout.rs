//! Structs of a kernel, of the fields that the hooks read: in the order of their table or, so that nothing rests on one order, in any
//! other.

use std::{sync::LazyLock, vec::Vec};

use net_latency_common::offsets::{FIELDS, Field, Group, Offsets};

use super::choice::Choice;

/// How long each struct is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sizes {
    pub(super) skb: u32,
    pub(super) shared: u32,
    pub(super) device: u32,
    pub(super) net: u32,
    pub(super) sock: u32,
    pub(super) task: u32,
    pub(super) signal: u32,
    pub(super) qdisc: u32,
    pub(super) qdisc_ops: u32,
}

/// The kernel's structs that each of ours is. What TCP and MPTCP have beside a socket is in one struct with it.
const STRUCTS: [&[&str]; 9] = [
    &["sk_buff"],
    &["skb_shared_info"],
    &["net_device"],
    &["net"],
    &[
        "sock",
        "inet_sock",
        "tcp_sock",
        "udp_sock",
        "mptcp_sock",
        "mptcp_subflow_context",
        "mptcp_data_frag",
        "mptcp_sendmsg_info",
    ],
    &["task_struct"],
    &["signal_struct"],
    &["Qdisc"],
    &["Qdisc_ops"],
];

/// The fields of each that a packet's hooks read.
static READ: LazyLock<[Vec<&Field>; STRUCTS.len()]> = LazyLock::new(|| {
    let is_read = |field: &&Field| {
        let is_for = |group| field.groups.contains(group);
        field.size > 0 && [Group::Packets, Group::Held, Group::Mptcp].iter().any(is_for)
    };
    let of = |field: &Field| field.location.paths().next().and_then(|path| path.split('.').next());
    STRUCTS.map(|structs| {
        let is_in = |field: &&Field| of(field).is_some_and(|of| structs.contains(&of));
        FIELDS.iter().filter(is_read).filter(is_in).collect()
    })
});

/// Gives each field its place. Between them there may be others.
fn place(fields: &[&Field], offsets: &mut Offsets, choice: &mut Choice, is_shuffled: bool) -> u32 {
    let mut fields = fields.to_vec();
    let mut at = 8;
    if is_shuffled {
        for last in (1..fields.len()).rev() {
            fields.swap(last, choice.below(last as u32 + 1) as usize);
        }
    }
    for field in fields {
        if is_shuffled {
            at += choice.below(3) * 8;
        }
        at = at.next_multiple_of(if field.size % 8 == 0 { 8 } else { field.size });
        *(field.offset)(offsets) = at;
        at += field.size;
    }
    at.next_multiple_of(8)
}

/// The structs of a kernel.
pub(super) fn draw(choice: &mut Choice, is_shuffled: bool) -> (Offsets, Sizes) {
    let mut offsets = Offsets::default();
    let [skb, shared, device, net, sock, task, signal, qdisc, qdisc_ops] =
        READ.each_ref().map(|fields| place(fields, &mut offsets, choice, is_shuffled));
    let sizes = Sizes { skb, shared, device, net, sock, task, signal, qdisc, qdisc_ops };
    // Where the bits of 4 and of 2 begin in their bytes.
    offsets.tcp_sock_nonagle_shift = choice.below(5);
    offsets.tcp_sock_chrono_type_shift = choice.below(7);
    (offsets, sizes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_fields_of_a_struct_meet() {
        for seed in 1..100 {
            let mut choice = Choice::new(seed);
            let (offsets, sizes) = draw(&mut choice, seed % 2 == 0);
            let skb =
                [offsets.sk_buff_len, offsets.sk_buff_mark, offsets.sk_buff_head, offsets.sk_buff_users];
            assert_eq!(BTreeSet::from(skb).len(), 4);
            assert!(skb.iter().all(|at| *at < sizes.skb && at % 4 == 0), "{skb:?} of {}", sizes.skb);
            let used: Vec<u32> = [offsets.task_struct_pid, offsets.task_struct_tgid].into();
            assert_ne!(used[0], used[1]);
        }
    }
}

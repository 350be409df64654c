//! Netfilter's rules, by nfnetlink: a rule set of one table with one chain and one rule.

use std::net::Ipv4Addr;

use anyhow::{Context as _, Result};
use nix::sys::socket::SockProtocol;

use super::{Request, exchange};

// Of linux/netfilter.h, linux/netfilter/nfnetlink.h and linux/netfilter/nf_tables.h. All numbers in
// attributes are in network order.
const NF_INET_PRE_ROUTING: u32 = 0;
const NF_INET_LOCAL_IN: u32 = 1;
const NF_INET_FORWARD: u32 = 2;
const NF_INET_LOCAL_OUT: u32 = 3;
const NF_INET_POST_ROUTING: u32 = 4;
const NF_DROP: u32 = 0;
const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
const NFNL_MSG_BATCH_END: u16 = 0x11;
const NFNL_SUBSYS_NFTABLES: u16 = 10;
const NFT_MSG_NEWTABLE: u16 = 0;
const NFT_MSG_DELTABLE: u16 = 2;
const NFT_MSG_NEWCHAIN: u16 = 3;
const NFT_MSG_NEWRULE: u16 = 6;
const NFTA_TABLE_NAME: u16 = 1;
const NFTA_CHAIN_TABLE: u16 = 1;
const NFTA_CHAIN_NAME: u16 = 3;
const NFTA_CHAIN_HOOK: u16 = 4;
const NFTA_CHAIN_TYPE: u16 = 7;
const NFTA_HOOK_HOOKNUM: u16 = 1;
const NFTA_HOOK_PRIORITY: u16 = 2;
const NFTA_RULE_TABLE: u16 = 1;
const NFTA_RULE_CHAIN: u16 = 2;
const NFTA_RULE_EXPRESSIONS: u16 = 4;
const NFTA_LIST_ELEM: u16 = 1;
const NFTA_EXPR_NAME: u16 = 1;
const NFTA_EXPR_DATA: u16 = 2;
const NFTA_PAYLOAD_DREG: u16 = 1;
const NFTA_PAYLOAD_BASE: u16 = 2;
const NFTA_PAYLOAD_OFFSET: u16 = 3;
const NFTA_PAYLOAD_LEN: u16 = 4;
const NFT_PAYLOAD_NETWORK_HEADER: u32 = 1;
const NFT_PAYLOAD_TRANSPORT_HEADER: u32 = 2;
const NFTA_CMP_SREG: u16 = 1;
const NFTA_CMP_OP: u16 = 2;
const NFTA_CMP_DATA: u16 = 3;
const NFT_CMP_EQ: u32 = 0;
const NFTA_IMMEDIATE_DREG: u16 = 1;
const NFTA_IMMEDIATE_DATA: u16 = 2;
const NFTA_DATA_VALUE: u16 = 1;
const NFTA_DATA_VERDICT: u16 = 2;
const NFTA_VERDICT_CODE: u16 = 1;
const NFT_REG_VERDICT: u32 = 0;
const NFT_REG_1: u32 = 1;
const NFTA_NAT_TYPE: u16 = 1;
const NFTA_NAT_FAMILY: u16 = 2;
const NFTA_NAT_REG_ADDR_MIN: u16 = 3;
const NFT_NAT_DNAT: u32 = 1;
const NFTA_TPROXY_FAMILY: u16 = 1;
const NFTA_TPROXY_REG_PORT: u16 = 3;
const NFTA_QUEUE_NUM: u16 = 1;
const NFT_MSG_NEWFLOWTABLE: u16 = 22;
const NFTA_FLOWTABLE_TABLE: u16 = 1;
const NFTA_FLOWTABLE_NAME: u16 = 2;
const NFTA_FLOWTABLE_HOOK: u16 = 3;
const NFTA_FLOWTABLE_HOOK_NUM: u16 = 1;
const NFTA_FLOWTABLE_HOOK_PRIORITY: u16 = 2;
const NFTA_FLOWTABLE_HOOK_DEVS: u16 = 3;
const NFTA_DEVICE_NAME: u16 = 1;
const NFTA_FLOW_TABLE_NAME: u16 = 1;
const NF_NETDEV_INGRESS: u32 = 0;

const TABLE: &[u8] = b"nl\0";
const CHAIN: &[u8] = b"nl\0";
const IPV4: i32 = libc::AF_INET;
/// `NFPROTO_INET`: IPv4 and IPv6.
const BOTH: i32 = 1;

/// Sends packets for `from` to `to` instead, in the calling thread's namespace.
pub(crate) fn destination_nat(from: Ipv4Addr, to: Ipv4Addr) -> Result<()> {
    const OFFSET_OF_DESTINATION: u32 = 16;
    const PRIORITY: i32 = -100;
    rule(IPV4, b"nat\0", NF_INET_PRE_ROUTING, PRIORITY, |rule| {
        expect(rule, NFT_PAYLOAD_NETWORK_HEADER, OFFSET_OF_DESTINATION, &from.octets());
        keep(rule, &to.octets());
        expression(rule, b"nat\0", |data| {
            number(data, NFTA_NAT_TYPE, NFT_NAT_DNAT);
            number(data, NFTA_NAT_FAMILY, IPV4.cast_unsigned());
            number(data, NFTA_NAT_REG_ADDR_MIN, NFT_REG_1);
        });
    })
    .context("a rule for NAT")
}

// Of a TCP or UDP header.
const OFFSET_OF_SOURCE_PORT: u32 = 0;
const OFFSET_OF_DESTINATION_PORT: u32 = 2;

/// Gives what arrives for `port` to a socket there before IP does, as a transparent proxy has it, in the calling thread's namespace.
pub(crate) fn transparent_proxy(port: u16) -> Result<()> {
    const PRIORITY: i32 = -150;
    rule(IPV4, b"filter\0", NF_INET_PRE_ROUTING, PRIORITY, |rule| {
        expect(rule, NFT_PAYLOAD_TRANSPORT_HEADER, OFFSET_OF_DESTINATION_PORT, &port.to_be_bytes());
        keep(rule, &port.to_be_bytes());
        expression(rule, b"tproxy\0", |data| {
            number(data, NFTA_TPROXY_FAMILY, IPV4.cast_unsigned());
            number(data, NFTA_TPROXY_REG_PORT, NFT_REG_1);
        });
    })
    .context("a rule for a transparent proxy")
}

/// Drops what arrives for `port`, in the calling thread's namespace.
pub(crate) fn drop_port(port: u16) -> Result<()> {
    drops(IPV4, NF_INET_LOCAL_IN, OFFSET_OF_DESTINATION_PORT, port).context("a rule that drops")
}

/// Drops what arrives from `port`, in the calling thread's namespace.
pub(crate) fn drop_from(port: u16) -> Result<()> {
    drops(IPV4, NF_INET_LOCAL_IN, OFFSET_OF_SOURCE_PORT, port).context("a rule that drops answers")
}

/// Drops packets to `port` from the calling thread's namespace, by IPv4 and IPv6: the sender's call fails with `EPERM`.
pub(crate) fn drop_sent(port: u16) -> Result<()> {
    drops(BOTH, NF_INET_LOCAL_OUT, OFFSET_OF_DESTINATION_PORT, port).context("a rule that drops what is sent")
}

/// A rule that drops what has `port` there.
fn drops(family: i32, hook: u32, offset: u32, port: u16) -> Result<()> {
    rule(family, b"filter\0", hook, 0, |rule| {
        expect(rule, NFT_PAYLOAD_TRANSPORT_HEADER, offset, &port.to_be_bytes());
        expression(rule, b"immediate\0", |data| {
            number(data, NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
            data.nested(NFTA_IMMEDIATE_DATA, |data| {
                data.nested(NFTA_DATA_VERDICT, |data| number(data, NFTA_VERDICT_CODE, NF_DROP));
            });
        });
    })
}

/// Where a packet of this machine's own sockets passes a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hook {
    In,
    Out,
    PostRouting,
}

/// Asks the queue of that number for a verdict on packets for `port`, in the calling thread's namespace.
pub(crate) fn queue_port(hook: Hook, port: u16, number: u16) -> Result<()> {
    let hook = match hook {
        Hook::In => NF_INET_LOCAL_IN,
        Hook::Out => NF_INET_LOCAL_OUT,
        Hook::PostRouting => NF_INET_POST_ROUTING,
    };
    rule(IPV4, b"filter\0", hook, 0, |rule| {
        expect(rule, NFT_PAYLOAD_TRANSPORT_HEADER, OFFSET_OF_DESTINATION_PORT, &port.to_be_bytes());
        expression(rule, b"queue\0", |data| data.attribute(NFTA_QUEUE_NUM, &number.to_be_bytes()));
    })
    .context("a rule that queues")
}

/// Sends packets between `devices` on past IP, once IP has forwarded one of their connection each way, in the calling thread's namespace: `flow
/// add`.
pub(super) fn flow_table(devices: &[&str]) -> Result<()> {
    let mut flows = message(BOTH, NFT_MSG_NEWFLOWTABLE, libc::NLM_F_CREATE);
    flows.attribute(NFTA_FLOWTABLE_TABLE, TABLE);
    flows.attribute(NFTA_FLOWTABLE_NAME, CHAIN);
    flows.nested(NFTA_FLOWTABLE_HOOK, |hook| {
        number(hook, NFTA_FLOWTABLE_HOOK_NUM, NF_NETDEV_INGRESS);
        number(hook, NFTA_FLOWTABLE_HOOK_PRIORITY, 0);
        hook.nested(NFTA_FLOWTABLE_HOOK_DEVS, |names| {
            for device in devices {
                names.attribute(NFTA_DEVICE_NAME, format!("{device}\0").as_bytes());
            }
        });
    });
    batch(vec![new_table(BOTH), flows]).context("a flow table")?;
    rule(BOTH, b"filter\0", NF_INET_FORWARD, 0, |rule| {
        expression(rule, b"flow_offload\0", |data| data.attribute(NFTA_FLOW_TABLE_NAME, CHAIN));
    })
    .context("a rule that shortens forwarding")
}

/// Undoes the functions above that are of IPv4 alone.
pub(crate) fn forget_rules() -> Result<()> {
    batch(vec![table(IPV4, NFT_MSG_DELTABLE, 0)]).context("removing the rules")
}

/// Makes the table, unless it is there.
fn new_table(family: i32) -> Request {
    table(family, NFT_MSG_NEWTABLE, libc::NLM_F_CREATE)
}

fn table(family: i32, kind: u16, flags: libc::c_int) -> Request {
    let mut table = message(family, kind, flags);
    table.attribute(NFTA_TABLE_NAME, TABLE);
    table
}

fn rule(
    family: i32,
    kind: &[u8],
    hook: u32,
    priority: i32,
    expressions: impl FnOnce(&mut Request),
) -> Result<()> {
    let mut chain = message(family, NFT_MSG_NEWCHAIN, libc::NLM_F_CREATE);
    chain.attribute(NFTA_CHAIN_TABLE, TABLE);
    chain.attribute(NFTA_CHAIN_NAME, CHAIN);
    chain.nested(NFTA_CHAIN_HOOK, |chain| {
        number(chain, NFTA_HOOK_HOOKNUM, hook);
        number(chain, NFTA_HOOK_PRIORITY, priority.cast_unsigned());
    });
    chain.attribute(NFTA_CHAIN_TYPE, kind);
    let mut rule = message(family, NFT_MSG_NEWRULE, libc::NLM_F_CREATE | libc::NLM_F_APPEND);
    rule.attribute(NFTA_RULE_TABLE, TABLE);
    rule.attribute(NFTA_RULE_CHAIN, CHAIN);
    rule.nested(NFTA_RULE_EXPRESSIONS, expressions);
    batch(vec![new_table(family), chain, rule])
}

/// Goes on with the rule only for packets that have these bytes there.
fn expect(rule: &mut Request, base: u32, offset: u32, bytes: &[u8]) {
    expression(rule, b"payload\0", |data| {
        number(data, NFTA_PAYLOAD_DREG, NFT_REG_1);
        number(data, NFTA_PAYLOAD_BASE, base);
        number(data, NFTA_PAYLOAD_OFFSET, offset);
        number(data, NFTA_PAYLOAD_LEN, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    });
    expression(rule, b"cmp\0", |data| {
        number(data, NFTA_CMP_SREG, NFT_REG_1);
        number(data, NFTA_CMP_OP, NFT_CMP_EQ);
        data.nested(NFTA_CMP_DATA, |data| data.attribute(NFTA_DATA_VALUE, bytes));
    });
}

/// Keeps these bytes in the register, for the expression that follows.
fn keep(rule: &mut Request, bytes: &[u8]) {
    expression(rule, b"immediate\0", |data| {
        number(data, NFTA_IMMEDIATE_DREG, NFT_REG_1);
        data.nested(NFTA_IMMEDIATE_DATA, |data| data.attribute(NFTA_DATA_VALUE, bytes));
    });
}

fn expression(rule: &mut Request, name: &[u8], data: impl FnOnce(&mut Request)) {
    rule.nested(NFTA_LIST_ELEM, |rule| {
        rule.attribute(NFTA_EXPR_NAME, name);
        rule.nested(NFTA_EXPR_DATA, data);
    });
}

fn number(request: &mut Request, kind: u16, value: u32) {
    request.attribute(kind, &value.to_be_bytes());
}

fn message(family: i32, kind: u16, flags: libc::c_int) -> Request {
    let mut request = Request::new(NFNL_SUBSYS_NFTABLES << 8 | kind, flags);
    // struct nfgenmsg: family, version, resource.
    request.put(&[u8::try_from(family).unwrap_or(u8::MAX), 0, 0, 0]);
    request
}

/// Sends messages that take effect together.
fn batch(messages: Vec<Request>) -> Result<()> {
    let [high, low] = NFNL_SUBSYS_NFTABLES.to_be_bytes();
    let bracket = |kind: u16| {
        let mut bracket = Request::without_answer(kind);
        bracket.put(&[0, 0, high, low]);
        bracket.finished()
    };
    let answers = messages.len();
    let mut bytes = bracket(NFNL_MSG_BATCH_BEGIN)?;
    for message in messages {
        bytes.extend(message.finished()?);
    }
    bytes.extend(bracket(NFNL_MSG_BATCH_END)?);
    exchange(SockProtocol::NetlinkNetFilter, &bytes, answers)
}

//! `net-latency check` on a kernel that can be traced.

use anyhow::{Result, ensure};

use super::Case;
use crate::{
    leftovers::Kernel,
    tool::{Backend, run},
};

pub(crate) const CASES: &[Case] = &[("check_names_every_hook", check_names_every_hook)];

/// The hooks that may serve each stage, by the beginnings of their names.
const STAGES: [(&str, &str, &[&str]); 8] = [
    ("in", "drv", &["netif_rx", "netif_receive_skb", "napi_gro_receive", "gro_receive_skb"]),
    ("in", "ip", &["ip_rcv", "ip6_rcv", "ipv6_rcv"]),
    ("in", "tcp", &["tcp_v4_rcv", "tcp_v6_rcv"]),
    ("in", "app", &["skb_copy_datagram", "tcp_rcv_space_adjust", "tcp_cleanup_rbuf", "__tcp_cleanup_rbuf"]),
    ("out", "app", &["tcp_sendmsg", "__tcp_transmit_skb"]),
    ("out", "tcp", &["tcp_v4_send_check", "tcp_v6_send_check", "__ip_queue_xmit", "inet6_csk_xmit"]),
    ("out", "ip", &["ip_output", "ip6_output"]),
    ("out", "drv", &["__dev_queue_xmit", "net_dev_queue"]),
];

fn check_names_every_hook(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let backend = backend.to_string();
    let answer = run(None, &["check", "--backend", &backend])?;
    let (said, noted) = (&answer.stdout, &answer.stderr);
    ensure!(answer.code == Some(0), "exit code {:?}, not 0; it said:\n{said}\n{noted}", answer.code);
    let named = if backend == "auto" { "fentry and kprobe" } else { &backend };
    ensure!(said.contains(&format!("backend: {named}")), "the backend {named} is not named:\n{said}");
    for (dir, stage, hooks) in STAGES {
        let named = said.lines().any(|line| {
            let words: Vec<_> = line.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
            let has_hook = words.iter().any(|word| hooks.iter().any(|hook| word.starts_with(hook)));
            words.contains(&dir) && words.contains(&stage) && has_hook
        });
        ensure!(named, "no hook for {dir} {stage}:\n{said}");
    }
    before.expect_restored()
}

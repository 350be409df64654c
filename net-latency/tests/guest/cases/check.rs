//! `net-latency check` on a kernel that can be traced.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Case, prerequisites::expect_sentence};
use crate::{
    confine::{self, KprobesPermitted},
    leftovers::Kernel,
    tool::{Backend, run},
};

pub(crate) const CASES: &[Case] = &[
    ("check_names_every_hook", check_names_every_hook),
    ("check_knows_this_kernel", check_knows_this_kernel),
    ("check_goes_on_after_a_failure", check_goes_on_after_a_failure),
    ("check_needs_no_root", check_needs_no_root),
];

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
    let named = backend.mechanism();
    let answer = run(None, &["check", "--backend", &backend.to_string()])?;
    let (said, noted) = (&answer.stdout, &answer.stderr);
    ensure!(answer.code == Some(0), "exit code {:?}, not 0; it said:\n{said}\n{noted}", answer.code);
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

/// What the report says of this kernel is what its own files say.
fn check_knows_this_kernel(backend: Backend) -> Result<()> {
    let answer =
        run(None, &["check", "--backend", &backend.to_string(), "--format", "json", "--buffer", "8M"])?;
    let said = &answer.stdout;
    ensure!(
        answer.code == Some(0),
        "exit code {:?}, not 0; it said:\n{said}\n{}",
        answer.code,
        answer.stderr
    );
    let report: Value = serde_json::from_str(said).with_context(|| format!("no JSON: {said}"))?;
    ensure!(report["traceable"] == true && report["backend"] == json!(backend.mechanism()), "{said}");
    let found = |name: &str| -> Result<(&str, &str)> {
        let checks = report["checks"].as_array().context("no checks")?;
        let check = checks
            .iter()
            .find(|check| check["name"] == name)
            .with_context(|| format!("no {name}: {said}"))?;
        Ok((check["verdict"].as_str().context("verdict")?, check["found"].as_str().context("found")?))
    };
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    ensure!(found("kernel")?.1.contains(release.trim()), "{said}");
    for name in ["privileges", "ftrace", "kprobes", "jit", "locked memory", "addresses", "btf", "hooks"] {
        ensure!(found(name)?.0 == "ok", "{name} of root in a guest: {said}");
    }
    let is_realtime = fs::read_to_string("/proc/sys/kernel/version")?.contains("PREEMPT_RT");
    ensure!(found("preemption")?.1.starts_with("PREEMPT_RT") == is_realtime, "{said}");
    let (_, memory) = found("memory")?;
    let whole: f64 =
        memory.split(' ').next().unwrap_or_default().parse().with_context(|| memory.to_owned())?;
    ensure!(whole > 10.0 && whole < 64.0 && memory.contains("8.0 for the ring buffer"), "{memory}");
    if fs::exists("/proc/sys/net/mptcp")? {
        let (verdict, follows) = found("mptcp")?;
        ensure!(verdict == "ok" && follows.starts_with("followed"), "{follows}");
    }
    let (verdict, counts) = found(backend.mechanism())?;
    ensure!((verdict == "ok") == counts.contains("are counted"), "{counts}");
    Ok(())
}

/// A user who may not trace still learns all that can be seen.
fn check_goes_on_after_a_failure(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    for (confinement, failing) in [(confine::NO_CAPABILITIES, "privileges"), (confine::NO_BTF, "btf")] {
        let answer = run(Some(confinement), &["check", "--backend", &backend.to_string()])?;
        let (said, noted) = (&answer.stdout, &answer.stderr);
        ensure!(answer.code == Some(3), "exit code {:?}, not 3; it said:\n{said}\n{noted}", answer.code);
        expect_sentence(noted)?;
        let verdict =
            |name: &str| said.lines().find(|line| line.get(10..).is_some_and(|rest| rest.starts_with(name)));
        for name in ["kernel", "privileges", "ftrace", "jit", "addresses", "preemption", "btf"] {
            let line = verdict(name).with_context(|| format!("nothing about {name}:\n{said}"))?;
            ensure!(line.starts_with("no ") == (name == failing), "{line}");
        }
    }
    before.expect_restored()
}

/// The capabilities that the service runs with are all that the stream takes, by each backend. For kprobes Debian's
/// kernels ask for more, unless told not to by a setting that the refusal names.
fn check_needs_no_root(backend: Backend) -> Result<()> {
    let before = Kernel::now()?;
    let paranoid = confine::paranoid()?;
    let backend_name = backend.to_string();
    let check = ["check", "--backend", &backend_name];
    let expect = |arguments: &[&str], named: &str| {
        let answer = run(Some(confine::ONLY_NEEDED), arguments)?;
        let (said, noted) = (&answer.stdout, &answer.stderr);
        ensure!(answer.code == Some(0), "exit code {:?}, not 0; it said:\n{said}\n{noted}", answer.code);
        let is_named =
            said.contains(&format!("backend: {named}\n")) || noted.contains(&format!("tracing by {named};"));
        ensure!(is_named, "it does not trace by {named}:\n{said}\n{noted}");
        Ok(())
    };
    let stream = ["--backend", &backend_name, "--duration", "100ms"];
    match backend {
        Backend::Kprobe if paranoid > 2 => {
            let answer = run(Some(confine::ONLY_NEEDED), &check)?;
            ensure!(
                answer.code == Some(3),
                "exit code {:?}, not 3; it said:\n{}",
                answer.code,
                answer.stderr
            );
            ensure!(answer.stderr.contains("kernel.perf_event_paranoid=2"), "no remedy: {}", answer.stderr);
        }
        // Without kprobes it does what it can.
        Backend::Auto if paranoid > 2 => {
            expect(&check, Backend::Fentry.mechanism())?;
            expect(&stream, Backend::Fentry.mechanism())?;
        }
        _ => {}
    }
    let permitted = KprobesPermitted::new()?;
    for arguments in [check.as_slice(), &stream] {
        expect(arguments, backend.mechanism())?;
    }
    drop(permitted);
    before.expect_restored()
}

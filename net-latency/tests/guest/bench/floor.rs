//! What it costs at least to hook what the stream hooks: programs that do nothing.

use anyhow::{Context as _, Result, bail};
use aya::{
    Btf, Ebpf, EbpfLoader, Endianness,
    programs::{BtfTracePoint, FEntry, KProbe, RawTracePoint},
};
use net_latency::inside::{Mechanism, Plan, Program, Programs, Scope};

use crate::tool::Backend;

/// An empty program of each kind.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/net-latency-noop-bpf"));

/// Attached until dropped.
pub(super) struct Floor(#[expect(dead_code, reason = "held, not used")] Vec<Ebpf>);

impl Floor {
    /// By the stream's own plan, so that it is the floor of whatever the stream hooks.
    pub(super) fn attach(backend: Backend) -> Result<Self> {
        let mechanism = match backend {
            Backend::Fentry => Mechanism::Fentry,
            Backend::Kprobe => Mechanism::Kprobe,
            Backend::Auto => bail!("the floor is that of one mechanism"),
        };
        let kernel = std::fs::read("/sys/kernel/btf/vmlinux")?;
        let types = Btf::parse(&kernel, Endianness::default())?;
        let plan = Plan::new(&kernel, Scope::default()).map_err(|failure| anyhow::anyhow!("{failure}"))?;
        let mut attached = Vec::new();
        for choice in &plan.choices {
            let is_btf = matches!(choice.hook.programs, Programs::Tracepoint { btf, .. }
                if choice.program(mechanism) == Program::Tracepoint(btf));
            let target = choice.targets(mechanism)[0];
            // An object each: it is loading that says where an fentry program goes.
            let mut ebpf = EbpfLoader::new().btf(None).load(OBJECT)?;
            match choice.program(mechanism) {
                Program::Fentry(_) => {
                    let program: &mut FEntry = program(&mut ebpf, "noop_fentry")?.try_into()?;
                    program.load(target, &types)?;
                    program.attach()?;
                }
                Program::Kprobe(_) => {
                    let program: &mut KProbe = program(&mut ebpf, "noop_kprobe")?.try_into()?;
                    program.load()?;
                    program.attach(target, 0)?;
                }
                Program::Tracepoint(_) if is_btf => {
                    let program: &mut BtfTracePoint = program(&mut ebpf, "noop_btf")?.try_into()?;
                    program.load(target, &types)?;
                    program.attach()?;
                }
                Program::Tracepoint(_) => {
                    let program: &mut RawTracePoint = program(&mut ebpf, "noop_raw")?.try_into()?;
                    program.load()?;
                    for target in choice.targets(mechanism) {
                        program.attach(target)?;
                    }
                }
            }
            attached.push(ebpf);
        }
        Ok(Self(attached))
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut aya::programs::Program> {
    ebpf.program_mut(name).with_context(|| format!("program {name} is missing"))
}

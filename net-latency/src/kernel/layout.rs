//! Where the fields lie that the kernel side reads.

use net_latency_common::offsets::{FIELDS, Field, Group, Location, Offsets};

use super::{
    arch,
    btf::{Btf, BtfError},
};

/// The helper that gives programs the current task as one, by the function's name.
const CURRENT_TASK: &str = "bpf_get_current_task_btf";

/// The helper that gives the registers with which a task has come into the kernel, likewise.
const TASK_REGISTERS: &str = "bpf_task_pt_regs";

/// A function of kernels whose tasks have larger stacks (KASAN).
const LARGER_STACKS: &str = "kasan_report";

/// The names of the types and functions that this module looks at.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let paths = FIELDS.iter().flat_map(|field| field.location.paths()).flat_map(|path| path.split('+'));
    let structs = paths.map(|path| path.split('.').next().unwrap_or(path));
    structs.chain(["pt_regs", "bpf_link_info", CURRENT_TASK, TASK_REGISTERS, LARGER_STACKS])
}

/// Adds those of the group, for the running kernel.
///
/// # Errors
/// [`BtfError::NoField`] names the first field that this kernel doesn't have.
pub(crate) fn offsets(btf: &Btf<'_>, group: Group, mut known: Offsets) -> Result<Offsets, BtfError> {
    let offset = |path: &str| path.split('+').map(|path| btf.offset(path)).sum::<Result<u32, _>>();
    for field in Field::of(group) {
        *(field.offset)(&mut known) = match field.location {
            Location::At(path) => offset(path)?,
            Location::IfThere(path) => offset(path).unwrap_or(0),
            Location::Either(first, second) => offset(first).or_else(|_| offset(second))?,
            Location::ByteOf(path) => btf.offset_in_bits(path)? / u8::BITS,
            Location::BitOf(path) => btf.offset_in_bits(path)? % u8::BITS,
            Location::Apart => continue,
        };
    }
    match group {
        Group::Packets => known.bpf_get_current_task_btf = btf.has_function(CURRENT_TASK).into(),
        Group::Calls => {
            known.task_struct_of_32_bits = btf.offset(arch::OF_32_BITS)?;
            known.pt_regs_call = btf.offset(arch::CALL_NUMBER)?;
            known.bpf_task_pt_regs = btf.has_function(TASK_REGISTERS).into();
            known.stack_registers = stack_registers(btf)?;
        }
        Group::Tasks | Group::Held | Group::Connections | Group::Mptcp => {}
    }
    Ok(known)
}

/// Where on a task's stack its registers are, unless a helper tells: at its end (`task_pt_regs`). Kernels with the helper may have room
/// behind them (`TOP_OF_KERNEL_STACK_PADDING` with FRED, Linux 6.9).
fn stack_registers(btf: &Btf<'_>) -> Result<u32, BtfError> {
    match arch::STACK.filter(|_| !btf.has_function(LARGER_STACKS)) {
        _ if btf.has_function(TASK_REGISTERS) => Ok(0),
        Some(size) => Ok(size.saturating_sub(btf.size("pt_regs")?)),
        None => Err(BtfError::NoField(TASK_REGISTERS.to_owned())),
    }
}

/// Whether the kernel counts the calls that a kprobe's program missed. It does so since Linux 6.7
/// (`bpf_prog_inc_misses_counters` in `trace_call_bpf`), which shows in BTF by the field that the same
/// series of changes gave to the links of kprobes.
#[must_use]
pub(crate) fn counts_missed_kprobes(btf: &Btf<'_>) -> bool {
    btf.offset("bpf_link_info.perf_event.kprobe.missed").is_ok()
}

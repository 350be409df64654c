//! Names of functions and their callers.

use std::io::Write as _;

use net_latency_common::{CallRecord, LEVEL_HARDIRQ, LEVEL_SOFTIRQ, LEVEL_TASK};

use crate::{escape::write_name, kernel::functions::Function};

/// Bytes between a function's first and the one where a probe is: an `endbr64` at most.
const WITHIN: u64 = 16;

/// The functions that are traced, by address.
#[derive(Debug)]
pub(super) struct Functions(Vec<Function>);

impl Functions {
    pub(super) fn new(mut functions: Vec<Function>) -> Self {
        functions.sort_by_key(|function| function.address);
        Self(functions)
    }

    /// The number of the function with a probe at `address`.
    pub(super) fn number(&self, address: u64) -> Option<usize> {
        let number = self.0.partition_point(|function| function.address <= address).checked_sub(1)?;
        (address - self.0[number].address < WITHIN).then_some(number)
    }

    pub(super) fn get(&self, address: u64) -> Option<&Function> {
        self.number(address).map(|number| &self.0[number])
    }

    /// Its name; `?` if it is not known.
    pub(super) fn name(&self, address: u64) -> &str {
        self.get(address).map_or("?", |function| &function.name)
    }

    pub(super) fn by_number(&self, number: usize) -> &Function {
        &self.0[number]
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends the name, with the address if requested.
    pub(super) fn write(&self, address: u64, with_address: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(self.name(address).as_bytes());
        if with_address {
            let start = self.get(address).map_or(address, |function| function.address);
            write!(out, " [{start:#x}]").expect("memory can be written");
        }
    }
}

/// What runs in a call's context, as JSON has it.
pub(super) fn context(call: &CallRecord) -> &'static str {
    match call.level as u8 {
        LEVEL_TASK => "task",
        LEVEL_SOFTIRQ => "softirq",
        LEVEL_HARDIRQ => "hardirq",
        _ => "nmi",
    }
}

/// Whether the task is the caller, and was not only interrupted.
pub(super) fn is_by_task(call: &CallRecord) -> bool {
    call.level == u32::from(LEVEL_TASK)
}

/// The name of the calling task.
pub(super) fn comm(call: &CallRecord) -> &[u8] {
    call.comm.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Process id.
pub(super) fn pid(call: &CallRecord) -> u32 {
    (call.ids >> 32) as u32
}

/// Thread id.
pub(super) fn tid(call: &CallRecord) -> u32 {
    call.ids as u32
}

/// Appends the name of the caller: a task's, or what interrupted it.
pub(super) fn write_caller(call: &CallRecord, out: &mut Vec<u8>) {
    if is_by_task(call) {
        write_name(Some(comm(call)), out);
    } else {
        write!(out, "<{}>", context(call)).expect("memory can be written");
    }
}

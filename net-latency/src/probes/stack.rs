//! How much stack a program takes at most, as kernels before 6.2 count it, which round most (`check_max_stack_depth`).

use std::collections::{BTreeMap, BTreeSet};

use aya_obj::generated::bpf_insn;

/// Bytes that a program and what it calls have together (`MAX_BPF_STACK`), and how many of them may wait for each other.
pub(super) const MOST_BYTES: usize = 512;
pub(super) const MOST_CALLS: usize = 8;

/// Each function gets a multiple of this, and one at least.
const UNIT: usize = 32;

/// The register that has the stack's top.
const TOP: u8 = 10;
/// `BPF_JMP | BPF_CALL`, and what its source register says of a call within the program (`BPF_PSEUDO_CALL`).
const CALL: u8 = 0x85;
const WITHIN: u8 = 1;
/// `BPF_ALU64 | BPF_MOV | BPF_X`, `BPF_ALU64 | BPF_ADD | BPF_K`.
const COPY: u8 = 0xbf;
const ADD: u8 = 0x07;

/// Bytes and calls, one in the other, of the deepest way through a linked program.
pub(super) fn deepest(code: &[bpf_insn]) -> (usize, usize) {
    let callees = |at: usize, instruction: &bpf_insn| {
        let is_call = instruction.code == CALL && instruction.src_reg() == WITHIN;
        is_call.then(|| at.checked_add_signed(instruction.imm as isize + 1).expect("a place in the program"))
    };
    let mut starts: BTreeSet<usize> =
        code.iter().enumerate().filter_map(|(at, instruction)| callees(at, instruction)).collect();
    starts.insert(0);
    let ends = starts.iter().copied().skip(1).chain([code.len()]);
    let functions: BTreeMap<usize, _> = starts
        .iter()
        .zip(ends)
        .map(|(&start, end)| {
            let called: BTreeSet<usize> = (start..end).filter_map(|at| callees(at, &code[at])).collect();
            (start, (own(&code[start..end]), called))
        })
        .collect();
    fn below(start: usize, functions: &BTreeMap<usize, (usize, BTreeSet<usize>)>) -> (usize, usize) {
        let (own, called) = &functions[&start];
        let each: Vec<_> = called.iter().map(|callee| below(*callee, functions)).collect();
        let bytes = each.iter().map(|(bytes, _)| *bytes).max().unwrap_or(0);
        let calls = each.iter().map(|(_, calls)| *calls).max().unwrap_or(0);
        (own + bytes, calls + 1)
    }
    below(0, &functions)
}

/// Bytes of one function.
fn own(code: &[bpf_insn]) -> usize {
    let mut lowest = 0;
    let mut has_top = [false; TOP as usize + 1];
    for instruction in code {
        let (to, from) = (instruction.dst_reg(), instruction.src_reg());
        let below = match instruction.code & 0x07 {
            // A load by the top, and a store.
            1 if from == TOP => i32::from(instruction.off),
            2 | 3 if to == TOP => i32::from(instruction.off),
            _ if instruction.code == ADD && has_top[usize::from(to)] => instruction.imm,
            _ => 0,
        };
        lowest = lowest.min(below);
        has_top[usize::from(to)] = instruction.code == COPY && from == TOP;
    }
    (lowest.unsigned_abs() as usize).next_multiple_of(UNIT).max(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instruction(code: u8, to: u8, from: u8, off: i16, imm: i32) -> bpf_insn {
        // SAFETY: numbers only, for which 0 is a value.
        let mut made: bpf_insn = unsafe { std::mem::zeroed() };
        (made.code, made.off, made.imm) = (code, off, imm);
        made.set_dst_reg(to);
        made.set_src_reg(from);
        made
    }

    #[test]
    fn functions_that_wait_for_each_other_add_up() {
        const STORE: u8 = 0x7b;
        const EXIT: u8 = 0x95;
        let exit = instruction(EXIT, 0, 0, 0, 0);
        let code = [
            instruction(STORE, TOP, 1, -40, 0),
            instruction(CALL, 0, WITHIN, 0, 2),
            instruction(CALL, 0, WITHIN, 0, 5),
            exit,
            // Calls the last one, and hands it a place on its own stack.
            instruction(COPY, 1, TOP, 0, 0),
            instruction(ADD, 1, 0, 0, -72),
            instruction(CALL, 0, WITHIN, 0, 1),
            exit,
            exit,
        ];
        assert_eq!(deepest(&code), (64 + 96 + 32, 3));
        assert_eq!(deepest(&code[8..]), (UNIT, 1));
    }
}

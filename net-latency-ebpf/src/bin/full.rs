//! The kernel side with what few runs ask for: filters by name and cgroup, control packets, counting times, the log of its own. An object of
//! its own, since kernels spend time on code that a run does not use: they look at all of a program before they know
//! (Linux 7.2: `bpf_compute_subprog_arg_access`).

#![no_std]
#![no_main]

mod object;
mod programs;

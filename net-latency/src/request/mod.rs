//! What is asked for, as plain types: neither the command line nor the kernel is known here.

pub mod footer;
pub mod glob;

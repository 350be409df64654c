//! What the kernel side logs (`-v`), on stderr.

use std::io::{self, Write as _};

use log::{Log, Metadata, Record};

/// Writes the kernel side's messages to stderr, each a line.
#[derive(Clone, Copy, Debug)]
pub struct KernelLog;

impl Log for KernelLog {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // Whoever closed stderr doesn't want to know.
        let _ = writeln!(io::stderr(), "net-latency: kernel side: {}", record.args());
    }

    fn flush(&self) {}
}

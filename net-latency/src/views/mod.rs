//! One file per subcommand.

pub mod check;
pub mod completions;
pub mod hist;
pub mod man;
pub mod report;
pub mod stream;
pub mod top;

use std::io::{self, Write as _};

use crate::error::Failure;

/// Writes a text that is complete to standard output. A reader that has seen enough is no failure.
fn to_stdout(text: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(anyhow::Error::new(error).context("cannot write to standard output").into())
        }
        _ => Ok(()),
    }
}

//! One file per subcommand.

pub mod check;
pub mod report;
pub mod stream;
pub mod top;

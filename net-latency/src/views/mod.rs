//! One file per subcommand.

pub mod check;
pub mod stream;
pub mod top;

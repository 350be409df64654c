//! Whose packet it is, and whether it is wanted.

pub mod addresses;
pub mod filter;
#[cfg(feature = "names")]
pub mod names;
pub mod processes;
pub mod settings;
#[cfg(feature = "packets")]
pub mod untraced;

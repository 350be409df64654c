//! The hooks: which there are ([`table`]), which of them this kernel has ([`plan`]), and attaching them
//! ([`attach`]).

pub mod attach;
pub mod calls;
mod filters;
pub mod histograms;
pub mod journey;
pub mod plan;
pub mod presets;
pub mod table;

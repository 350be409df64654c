//! The hooks: which there are ([`table`]), which of them this kernel has ([`plan`]), and attaching them
//! ([`attach`]).

pub mod attach;
mod attached;
mod batch;
pub mod calls;
pub mod filters;
pub mod histograms;
pub mod journey;
mod patch;
pub mod plan;
pub mod presets;
pub mod table;

/// Names of the programs in an object: what the tables name must be there, and nothing is there that none of them names.
#[cfg(test)]
fn programs_in(object: &[u8]) -> std::collections::BTreeSet<String> {
    let object = aya_obj::Object::parse(object).expect("build.rs makes objects");
    object.programs.into_keys().collect()
}

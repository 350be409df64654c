//! The hooks: which there are ([`table`]), which of them this kernel has ([`plan`]), and attaching them
//! ([`attach`]).

pub(crate) mod attach;
mod attached;
mod batch;
pub(crate) mod calls;
pub(crate) mod connections;
pub(crate) mod filters;
pub(crate) mod histograms;
pub(crate) mod journey;
mod patch;
pub(crate) mod plan;
pub(crate) mod presets;
mod signals;
#[cfg(test)]
mod stack;
pub(crate) mod table;
#[cfg(test)]
mod tables;

/// Names of the programs in an object: what the tables name must be there, and nothing is there that none of them names. What the kernel
/// must know of their functions is there too, and no source line, unless the build was told to keep them. And their stack suffices.
#[cfg(test)]
fn programs_in(object: &[u8]) -> std::collections::BTreeSet<String> {
    let mut object = aya_obj::Object::parse(object).expect("build.rs makes objects");
    for function in object.functions.values() {
        assert_eq!(function.func_info.len(), 1, "{}", function.name);
        let has_lines = function.line_info.len() > 0;
        assert_eq!(has_lines, option_env!("NET_LATENCY_SOURCE_LINES").is_some(), "{}", function.name);
    }
    let sections = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_calls(&sections).expect("what is called is in the object");
    for (name, program) in &object.programs {
        let (bytes, calls) = stack::deepest(&object.functions[&program.function_key()].instructions);
        let is_enough = bytes <= stack::MOST_BYTES && calls <= stack::MOST_CALLS;
        assert!(is_enough, "{name} takes {bytes} bytes of stack, and {calls} calls one in the other");
    }
    object.programs.into_keys().collect()
}

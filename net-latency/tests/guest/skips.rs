//! Fault injection, by the object for tests.

use anyhow::{Context as _, Result, ensure};
use aya::maps::{HashMap, Map, MapData, loaded_maps};
use net_latency_common::{SKIPS_MAP, hook_key};

/// A new entry finds no slot, and waits in a map that evicts.
pub(crate) const NO_SLOT: &str = "slots::full";

/// Does something while every call of a hook is skipped, of which there must be one. The hook has its logic's name in the kernel
/// side. Or while whatever else has a name there happens.
pub(crate) fn skipping<T>(hook: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut maps = loaded_maps().filter_map(|map| map.ok()).filter(|map| map.name() == SKIPS_MAP.as_bytes());
    // The last one: a tool that has ended may not have gone yet.
    let mut newest = maps.next().context("the tool has no hooks that can be skipped")?;
    for map in maps {
        newest = if map.id() > newest.id() { map } else { newest };
    }
    let map = Map::HashMap(MapData::from_id(newest.id())?);
    let mut hooks = HashMap::<_, u32, [u64; 2]>::try_from(map)?;
    let key = hook_key(hook);
    hooks.insert(key, [1, 0], 0)?;
    let done = act();
    let [_, skipped] = hooks.get(&key, 0)?;
    hooks.insert(key, [0, 0], 0)?;
    let done = done?;
    ensure!(skipped > 0, "no call of {hook} was there to be skipped");
    Ok(done)
}

//! Where control groups are.

use std::path::Path;

/// Where the unified hierarchy is mounted, from the text of `/proc/self/mountinfo`.
#[must_use]
pub fn unified_hierarchy(mounts: &str) -> Option<&Path> {
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| place.split(' ').nth(4).map(Path::new))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unified_hierarchy_is_found_wherever_it_is() {
        let hybrid = "25 30 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n\
             26 25 0:23 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(unified_hierarchy(hybrid), Some(Path::new("/sys/fs/cgroup/unified")));
        assert_eq!(unified_hierarchy("25 30 0:22 / /sys/fs/cgroup ro - cgroup cgroup rw,cpu\n"), None);
    }
}

//! The names of the threads that live now.

use std::{fs, io, path::Path, process};

use crate::request::glob::Glob;

/// Those of the globs that match no thread of another process now. The first thread of a process has the process's name.
///
/// # Errors
/// If /proc can't be read.
pub fn unmatched(globs: &[Glob]) -> io::Result<Vec<&Glob>> {
    unmatched_in(Path::new("/proc"), process::id(), globs)
}

fn unmatched_in<'a>(proc: &Path, own: u32, globs: &'a [Glob]) -> io::Result<Vec<&'a Glob>> {
    let mut unmatched: Vec<_> = globs.iter().collect();
    for process in fs::read_dir(proc)? {
        if unmatched.is_empty() {
            break;
        }
        let process = process?;
        let pid = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        if pid.is_none_or(|pid| pid == own) {
            continue;
        }
        // Whatever fails from here on, the process or the thread has ended.
        let Ok(threads) = fs::read_dir(process.path().join("task")) else { continue };
        for thread in threads.flatten() {
            let Ok(name) = fs::read(thread.path().join("comm")) else { continue };
            let name = name.strip_suffix(b"\n").unwrap_or(&name);
            unmatched.retain(|glob| !glob.matches(name));
        }
    }
    Ok(unmatched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_are_looked_for_among_all_threads_of_others() {
        let proc = tempfile::tempdir().expect("a folder");
        for (path, name) in
            [("7/task/7", "search"), ("7/task/8", "Thread-1 (one)"), ("9/task/9", "net-latency")]
        {
            let path = proc.path().join(path);
            fs::create_dir_all(&path).expect("a folder");
            fs::write(path.join("comm"), format!("{name}\n")).expect("a file");
        }
        fs::create_dir_all(proc.path().join("sys/task/1")).expect("a folder");
        let globs =
            ["sea*", "Thread-?*", "net*", "search?", "nobody"].map(|text| text.parse().expect("a glob"));
        let left: Vec<_> = unmatched_in(proc.path(), 9, &globs)
            .expect("readable")
            .into_iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(left, ["net*", "search?", "nobody"]);
        assert!(unmatched_in(&proc.path().join("none"), 9, &globs).is_err());
    }
}

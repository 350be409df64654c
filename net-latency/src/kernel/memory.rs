//! How much kernel memory a process's maps and programs take, as the kernel says in /proc.

use std::{fs, io, path::Path};

/// `BPF_MAP_TYPE_RINGBUF` (include/uapi/linux/bpf.h).
const RINGBUF: &str = "27";

/// Bytes of kernel memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BpfMemory {
    /// Of maps except ring buffers, whose size Linux 5.11 to 6.3 give as 0, and which is known anyway.
    pub maps: u64,
    /// Of programs.
    pub programs: u64,
}

/// Adds up what /proc says of each map and program that a process has open; `process` is its directory there.
///
/// # Errors
/// If /proc can't be read.
pub fn of(process: &Path) -> io::Result<BpfMemory> {
    let mut memory = BpfMemory::default();
    for entry in fs::read_dir(process.join("fdinfo"))? {
        // The descriptor of this directory itself is gone when its turn comes.
        let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
        let Some(bytes) = field(&text, "memlock:").and_then(|bytes| bytes.parse::<u64>().ok()) else {
            continue;
        };
        if let Some(kind) = field(&text, "map_type:") {
            if kind != RINGBUF {
                memory.maps += bytes;
            }
        } else if field(&text, "prog_type:").is_some() {
            memory.programs += bytes;
        }
    }
    Ok(memory)
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_and_programs_are_told_apart() {
        let proc = tempfile::tempdir().expect("temporary directory");
        let infos = proc.path().join("fdinfo");
        fs::create_dir_all(&infos).expect("writable");
        for (fd, text) in [
            ("0", "pos:\t0\nflags:\t02\n"),
            ("4", "pos:\t0\nmap_type:\t27\nkey_size:\t0\nmax_entries:\t4194304\nmemlock:\t4198400\n"),
            ("5", "pos:\t0\nmap_type:\t9\nmemlock:\t1000\nmap_id:\t3\n"),
            ("6", "prog_type:\t26\nprog_jited:\t1\nmemlock:\t4096\n"),
        ] {
            fs::write(infos.join(fd), text).expect("writable");
        }
        let memory = of(proc.path()).expect("readable");
        assert_eq!(memory, BpfMemory { maps: 1000, programs: 4096 });
    }
}

//! Addresses of the kernel's variables.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
};

use net_latency_common::PageBases;

/// Where pages are mapped, as far as the kernel tells: `kptr_restrict` can forbid it.
#[must_use]
pub fn page_bases() -> Option<PageBases> {
    let list = File::open("/proc/kallsyms").ok()?;
    find(BufReader::with_capacity(1 << 16, list)).ok().flatten()
}

/// Lines are `address type name`, and for a module's symbols its name.
fn find(mut list: impl BufRead) -> io::Result<Option<PageBases>> {
    let mut bases = PageBases::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if list.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        let field = if line.ends_with(b" page_offset_base\n") {
            &mut bases.page_offset_base
        } else if line.ends_with(b" vmemmap_base\n") {
            &mut bases.vmemmap_base
        } else {
            continue;
        };
        let digits = line.split(|&byte| byte == b' ').next().unwrap_or_default();
        let address = std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        *field = address.unwrap_or(0);
        if bases.page_offset_base != 0 && bases.vmemmap_base != 0 {
            return Ok(Some(bases));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"ffffffff88000000 T _stext\n\
        ffffffff88f24600 D vmemmap_base\n\
        ffffffff88f24608 D not_page_offset_base\n\
        ffffffff88f24610 D page_offset_base\n\
        ffffffffc0000000 t vmemmap_base\t[module]\n";

    #[test]
    fn both_are_found_by_their_whole_names() {
        let bases =
            PageBases { page_offset_base: 0xffff_ffff_88f2_4610, vmemmap_base: 0xffff_ffff_88f2_4600 };
        assert_eq!(find(LIST).unwrap(), Some(bases));
    }

    #[test]
    fn hidden_or_missing_addresses_are_unknown() {
        let hidden = LIST.iter().map(|&byte| if byte == b'f' || byte == b'8' { b'0' } else { byte });
        let hidden: Vec<u8> = hidden.map(|byte| if byte.is_ascii_digit() { b'0' } else { byte }).collect();
        assert_eq!(find(hidden.as_slice()).unwrap(), None);
        assert_eq!(find(&b"0 T _stext\n"[..]).unwrap(), None);
    }
}

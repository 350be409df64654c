//! Where the kernel maps pages.

use std::{
    fs::File,
    io::{self, Read},
    ops::ControlFlow,
};

use net_latency_common::PageBases;
use object::{
    LittleEndian,
    elf::{FileHeader64, PT_LOAD, ProgramHeader64},
    read::elf::{FileHeader as _, ProgramHeader as _},
};

use rustix::param::page_size;

use super::{
    arch,
    symbols::{self, Symbol},
};

/// The kernel's memory as a file, whose headers say what lies where (fs/proc/kcore.c). It takes CAP_SYS_RAWIO.
const CORE: &str = "/proc/kcore";

/// A part of the kernel's address space.
#[derive(Clone, Copy, Debug)]
struct Segment {
    /// Where it begins, there and in memory; no place in memory if it is no memory, or not in one piece.
    address: u64,
    memory: Option<u64>,
    len: u64,
}

/// Where pages are mapped, if the kernel tells at once.
#[must_use]
pub(crate) fn bases() -> Option<PageBases> {
    of_segments(&segments(File::open(CORE).ok()?).ok()?, page_size(), arch::PAGES_STEP)
}

/// Where pages are mapped, by the list of symbols, which takes a while: `kptr_restrict` can forbid it. Only x86-64 has such variables.
#[must_use]
pub(crate) fn variables() -> Option<PageBases> {
    let mut bases = PageBases::default();
    symbols::for_each(|symbol| note(&mut bases, symbol)).ok()?;
    (bases.page_offset_base != 0 && bases.vmemmap_base != 0).then_some(bases)
}

fn segments(mut core: impl Read) -> io::Result<Vec<Segment>> {
    let other = |_| io::Error::from(io::ErrorKind::InvalidData);
    let mut bytes = vec![0; size_of::<FileHeader64<LittleEndian>>()];
    core.read_exact(&mut bytes)?;
    let header = FileHeader64::<LittleEndian>::parse(&*bytes).map_err(other)?;
    let count = usize::from(header.e_phnum.get(LittleEndian));
    // They follow at once. No more than these: what comes then is the memory itself.
    let begun = bytes.len();
    bytes.resize(begun + count * size_of::<ProgramHeader64<LittleEndian>>(), 0);
    core.read_exact(&mut bytes[begun..])?;
    let header = FileHeader64::<LittleEndian>::parse(&*bytes).map_err(other)?;
    let headers = header.program_headers(LittleEndian, &*bytes).map_err(other)?;
    let segment = |header: &ProgramHeader64<LittleEndian>| Segment {
        address: header.p_vaddr(LittleEndian),
        memory: Some(header.p_paddr(LittleEndian)).filter(|memory| *memory != u64::MAX),
        len: header.p_memsz(LittleEndian),
    };
    Ok(headers.iter().filter(|header| header.p_type(LittleEndian) == PT_LOAD).map(segment).collect())
}

/// Pieces of memory are in the direct mapping, and each has its `struct page`s in a piece of the array of all of them, which is in no
/// piece of memory (`get_sparsemem_vmemmap_info`).
fn of_segments(segments: &[Segment], page_size: usize, step: u64) -> Option<PageBases> {
    /// The area of `vmalloc` is longer than that, and no array of pages is.
    const LONGEST: u64 = 1 << 44;
    let page = page_size as u64;
    let segments = || segments.iter().filter(|segment| segment.address < arch::TEXT);
    // On arm64 the kernel's own code is in the area of `vmalloc`.
    let is_in = |address: u64, other: &Segment| address.wrapping_sub(other.address) < other.len;
    let is_mapped = |address: u64| segments().any(|other| other.memory.is_none() && is_in(address, other));
    let memory = segments().filter_map(|segment| Some((segment.address, segment.memory?, segment.len)));
    let memory: Vec<_> = memory.filter(|(address, ..)| !is_mapped(*address)).collect();
    let others = || segments().filter(|segment| segment.memory.is_none() && segment.len < LONGEST);
    let (address, first, _) = *memory.first()?;
    let direct = address.checked_sub(first)?;
    let pages_of = |memory: u64| memory / page * PageBases::PAGE_STRUCT / page * page;
    let is_whole = |base: &u64| {
        let has_pages = |&(address, memory, len): &(u64, u64, u64)| {
            // Both ends are those of whole pages. A longer range is something else, such as arm64's area of modules.
            let longest = pages_of(len) + 2 * page;
            address.checked_sub(memory) == Some(direct)
                && others().any(|segment| {
                    let pages = base.wrapping_add(pages_of(memory));
                    // What begins in the last page of another piece of the array has none of its own.
                    segment.address == pages && segment.len <= longest
                        || segment.address.wrapping_add(segment.len) == pages.wrapping_add(page)
                })
        };
        base.is_multiple_of(step) && memory.iter().all(has_pages)
    };
    let mut bases = others().filter_map(|segment| segment.address.checked_sub(pages_of(first)));
    let vmemmap = bases.find(is_whole)?;
    Some(PageBases {
        page_offset_base: direct,
        vmemmap_base: vmemmap,
        are_values: arch::values_of_pages(page_size),
    })
}

fn note(bases: &mut PageBases, symbol: &Symbol<'_>) -> ControlFlow<()> {
    // A module may have variables of these names.
    let field = match symbol.name {
        b"page_offset_base" => &mut bases.page_offset_base,
        b"vmemmap_base" => &mut bases.vmemmap_base,
        _ => return ControlFlow::Continue(()),
    };
    if *field == 0 {
        *field = symbol.address().unwrap_or(0);
    }
    if bases.page_offset_base != 0 && bases.vmemmap_base != 0 {
        return ControlFlow::Break(());
    }
    ControlFlow::Continue(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIST: &[u8] = b"ffffffff88000000 T _stext\n\
        ffffffff88f24600 D vmemmap_base\n\
        ffffffff88f24608 D not_page_offset_base\n\
        ffffffff88f24610 D page_offset_base\n\
        ffffffffc0000000 t vmemmap_base\t[module]\n";

    fn named(list: &[u8]) -> PageBases {
        let mut bases = PageBases::default();
        symbols::walk(list, |symbol| note(&mut bases, symbol)).expect("memory can be read");
        bases
    }

    #[test]
    fn variables_are_found_by_their_whole_names() {
        let expected = PageBases {
            page_offset_base: 0xffff_ffff_88f2_4610,
            vmemmap_base: 0xffff_ffff_88f2_4600,
            are_values: 0,
        };
        assert_eq!(named(LIST), expected);
    }

    #[test]
    fn hidden_or_missing_addresses_are_unknown() {
        let zeroes = b"0000000000000000 D page_offset_base\n0000000000000000 D vmemmap_base\n";
        assert_eq!(named(zeroes), PageBases::default());
        assert_eq!(named(b"0 T _stext\n"), PageBases::default());
    }

    /// The headers that a guest's Linux 6.1 shows: code, vmalloc, modules, memory and its pages, twice.
    const SEGMENTS: [(u64, u64, u64); 7] = [
        (0xffff_ffff_b0c0_0000, 0x23a0_0000, 0x0283_0000),
        (0xff6c_1dcd_8000_0000, u64::MAX, 0x0031_ffff_ffff_ffff),
        (0xffff_ffff_c000_0000, u64::MAX, 0x3f00_0000),
        (0xff24_2caf_4000_1000, 0x1000, 0x9_e000),
        (0xffc6_5f95_c000_0000, u64::MAX, 0x3000),
        (0xff24_2caf_4010_0000, 0x10_0000, 0x3fee_0000),
        (0xffc6_5f95_c000_4000, u64::MAX, 0xff_c000),
    ];

    /// A file with such headers, and some memory behind them.
    fn core(segments: &[(u64, u64, u64)]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        bytes[32] = 64;
        bytes[54] = 56;
        bytes[56] = u8::try_from(1 + segments.len()).expect("few");
        // What is noted about the kernel, PT_NOTE.
        bytes.extend([4_u32, 0].map(u32::to_le_bytes).concat());
        bytes.extend([0x200, 0, 0, 0x2f74, 0, 0].map(u64::to_le_bytes).concat());
        for (address, memory, len) in segments {
            bytes.extend([1_u32, 7].map(u32::to_le_bytes).concat());
            bytes.extend([0, *address, *memory, *len, *len, 4096].map(u64::to_le_bytes).concat());
        }
        bytes.extend([0xff; 100]);
        bytes
    }

    fn of(bytes: &[u8]) -> Option<PageBases> {
        of_segments(&segments(bytes).ok()?, 4096, 1 << 30)
    }

    /// The headers that a guest's Linux 7.3 on arm64 shows, whose memory begins at 1 GiB: code, vmalloc, modules, memory and its pages.
    const OF_ARM64: [(u64, u64, u64); 5] = [
        (0xffff_9468_1080_0000, 0x4020_0000, 0x028d_0000),
        (0xffff_8000_8000_0000, u64::MAX, 0x41ff_3f80_0000),
        (0xffff_8000_0000_0000, u64::MAX, 0x8000_0000),
        (0xfff0_0000_0000_0000, 0x4000_0000, 0x4000_0000),
        (0xffff_c1ff_c000_0000, u64::MAX, 0x0100_0000),
    ];

    #[test]
    fn memory_need_not_begin_at_0() {
        let expected = PageBases {
            page_offset_base: 0xffef_ffff_c000_0000,
            vmemmap_base: 0xffff_c1ff_bf00_0000,
            are_values: arch::values_of_pages(4096),
        };
        let segments = segments(&*core(&OF_ARM64)).expect("it is whole");
        assert_eq!(of_segments(&segments, 4096, 1 << 17), Some(expected));
    }

    #[test]
    fn the_headers_of_the_kernels_memory_tell_where_pages_are() {
        let expected = PageBases {
            page_offset_base: 0xff24_2caf_4000_0000,
            vmemmap_base: 0xffc6_5f95_c000_0000,
            are_values: arch::values_of_pages(4096),
        };
        assert_eq!(of(&core(&SEGMENTS)), Some(expected));
        // Without the other pages it could be anything.
        assert_eq!(of(&core(&SEGMENTS[..6])), None);
        assert_eq!(of(&core(&SEGMENTS[..3])), None);
        // Another machine's: memory that is elsewhere.
        let mut moved = SEGMENTS;
        moved[5].0 += 0x1000;
        assert_eq!(of(&core(&moved)), None);
    }

    #[test]
    fn memory_whose_pages_begin_where_others_end_has_no_segment_of_its_own() {
        let mut joined = SEGMENTS.to_vec();
        // Two pages of memory behind the first piece, whose 0x9e pages have two pages and a half of the array.
        joined[4].2 = 0x3000;
        joined.insert(5, (0xff24_2caf_400a_0000, 0xa_0000, 0x2000));
        assert!(of(&core(&joined)).is_some());
        joined[5].1 += 0x4_0000;
        joined[5].0 += 0x4_0000;
        assert_eq!(of(&core(&joined)), None);
    }

    #[test]
    fn what_is_cut_off_is_unknown() {
        let whole = core(&SEGMENTS);
        for len in 0..whole.len() - 100 {
            assert_eq!(of(&whole[..len]), None, "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..400), begun in any::<bool>()) {
            let bytes = if begun { [&core(&SEGMENTS)[..64], &bytes].concat() } else { bytes };
            let _ = of(&bytes);
        }
    }
}

//! The bytes of a log, whatever it is packed in.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::Failure;
use crate::escape::Printable;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// The last three bytes of the head of a frame to skip, behind 0x50 to 0x5f: pzstd begins with one.
const ZSTD_SKIPPABLE: &[u8] = &[0x2a, 0x4d, 0x18];
const LONGEST_MAGIC: usize = 4;
/// Bytes read from a packed file at once.
const CHUNK: usize = 64 << 10;

/// A log as the command line names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogPath {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

impl LogPath {
    /// `-` is standard input.
    pub(crate) fn new(path: &Path) -> Self {
        if path.as_os_str() == "-" { Self::Stdin } else { Self::File(path.to_owned()) }
    }

    /// Its name, in a form that can be shown anywhere.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Stdin => "standard input".to_owned(),
            Self::File(path) => Printable(&path.to_string_lossy()).to_string(),
        }
    }
}

/// Finds what can't be read, or would be read twice, before anything is. The size of all files together, as far
/// as it can be known.
///
/// # Errors
/// A usage failure for what can't be read, or is named twice.
pub(crate) fn check(sources: &[LogPath]) -> Result<u64, Failure> {
    let mut seen: Vec<Option<(u64, u64)>> = Vec::new();
    let mut bytes = 0;
    for source in sources {
        let identity = match source {
            LogPath::Stdin => None,
            LogPath::File(path) => {
                let inspected = File::open(path).and_then(|file| file.metadata());
                let metadata = inspected.map_err(|error| cannot_read(source, &error))?;
                if metadata.is_dir() {
                    let name = source.name();
                    return Err(Failure::Usage(format!("{name} is a directory; name the logs in it")));
                }
                bytes += metadata.len();
                // A pipe has no content of its own to read twice.
                if !metadata.is_file() {
                    continue;
                }
                Some((metadata.dev(), metadata.ino()))
            }
        };
        if seen.contains(&identity) {
            let name = source.name();
            return Err(Failure::Usage(format!("{name} is named twice; name each log once")));
        }
        seen.push(identity);
    }
    Ok(bytes)
}

fn cannot_read(source: &LogPath, error: &io::Error) -> Failure {
    Failure::Usage(format!("cannot read {}: {error}", source.name()))
}

/// Opens a log and unpacks what gzip or zstd have packed, which its first bytes tell. `count` learns how many bytes of
/// the file have been read.
///
/// # Errors
/// A usage failure if nothing of it can be read.
pub(crate) fn open<'a>(
    source: &LogPath,
    count: impl FnMut(usize) + 'a,
) -> Result<Box<dyn Read + 'a>, Failure> {
    let file: Box<dyn Read> = match source {
        LogPath::Stdin => Box::new(io::stdin().lock()),
        LogPath::File(path) => Box::new(File::open(path).map_err(|error| cannot_read(source, &error))?),
    };
    unpack(Counted { file, count }).map_err(|error| cannot_read(source, &error))
}

fn unpack<'a>(mut file: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut head = Vec::with_capacity(LONGEST_MAGIC);
    (&mut file).take(LONGEST_MAGIC as u64).read_to_end(&mut head)?;
    let gzip = head.starts_with(GZIP);
    let zstd = head.starts_with(ZSTD)
        || (head.first().is_some_and(|first| first & 0xf0 == 0x50) && &head[1..] == ZSTD_SKIPPABLE);
    let whole = Cursor::new(head).chain(file);
    Ok(match (gzip, zstd) {
        (true, _) => Box::new(MultiGzDecoder::new(BufReader::with_capacity(CHUNK, whole))),
        (_, true) => Box::new(ZstdFrames::new(BufReader::with_capacity(CHUNK, whole))),
        _ => Box::new(whole),
    })
}

struct Counted<R, C> {
    file: R,
    count: C,
}

impl<R: Read, C: FnMut(usize)> Read for Counted<R, C> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        (self.count)(count);
        Ok(count)
    }
}

/// Packers in parallel write a few bytes of them for each frame.
const MOST_SKIPPED: u64 = 16 << 20;

/// All frames of a zstd file: a log that was appended to, or packed in parallel, has several.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
    in_frame: bool,
    /// Bytes of frames to be skipped since the last content.
    skipped: u64,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(source: R) -> Self {
        Self { source, decoder: FrameDecoder::new(), in_frame: false, skipped: 0 }
    }

    fn begin_frame(&mut self) -> io::Result<()> {
        match self.decoder.reset(&mut self.source) {
            Ok(()) => self.in_frame = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let length = u64::from(length);
                self.skipped += length;
                if self.skipped > MOST_SKIPPED {
                    return Err(io::Error::other("it has frames without content, and no end"));
                }
                if io::copy(&mut (&mut self.source).take(length), &mut io::sink())? < length {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Err(error) => return Err(io::Error::other(error)),
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.in_frame = false;
        let stored = self.decoder.get_checksum_from_data();
        if stored.is_some() && stored != self.decoder.get_calculated_checksum() {
            return Err(io::Error::other("checksum is wrong"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.in_frame {
                if self.source.fill_buf()?.is_empty() {
                    return Ok(0);
                }
                self.begin_frame()?;
                continue;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                self.decoder
                    .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                    .map_err(io::Error::other)?;
            }
            match self.decoder.read(buffer)? {
                0 => self.end_frame()?,
                count => {
                    self.skipped = 0;
                    return Ok(count);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::GzEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;
    use crate::fuzz;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(text).expect("memory can be written");
        encoder.finish().expect("memory can be written")
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    fn unpacked(bytes: Vec<u8>) -> io::Result<String> {
        let mut text = String::new();
        unpack(Cursor::new(bytes))?.read_to_string(&mut text)?;
        Ok(text)
    }

    /// What it is unpacked to has an end, or is cut.
    fn unpack_some(bytes: &[u8]) {
        const ENOUGH: u64 = 1 << 20;
        if let Ok(unpacked) = unpack(Cursor::new(bytes)) {
            // Damage is an error, and was found early or late.
            let _ = io::copy(&mut unpacked.take(ENOUGH), &mut io::sink());
        }
    }

    fn texts() -> [Vec<u8>; 3] {
        let varied: Vec<u8> = (0..3_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        [b"{}\n".to_vec(), b"a line and another\n".repeat(50), varied]
    }

    #[test]
    fn fuzz_gzip() {
        fuzz::run("gzip", 400, texts().map(|text| gzip(&text)), &[], unpack_some);
    }

    #[test]
    fn fuzz_zstd() {
        let skipped = [&[0x53][..], ZSTD_SKIPPABLE, &3u32.to_le_bytes(), b"xyz"].concat();
        let mut seeds: Vec<_> = texts().iter().map(|text| zstd(text)).collect();
        seeds.push([skipped, zstd(b"one\n"), zstd(b"two\n")].concat());
        fuzz::run("zstd", 400, seeds, &[], unpack_some);
    }

    #[test]
    fn what_is_packed_is_unpacked() {
        for text in ["", "a", "abc", "abcd", "{}\n", &"a line\n".repeat(100_000)] {
            let bytes = text.as_bytes();
            assert_eq!(unpacked(bytes.to_vec()).expect("plain"), text);
            assert_eq!(unpacked(gzip(bytes)).expect("gzip"), text);
            assert_eq!(unpacked(zstd(bytes)).expect("zstd"), text);
        }
    }

    #[test]
    fn several_parts_are_read_to_the_end() {
        assert_eq!(unpacked([gzip(b"one\n"), gzip(b"two\n")].concat()).expect("gzip"), "one\ntwo\n");
        let skipped = [&[0x53][..], ZSTD_SKIPPABLE, &3u32.to_le_bytes(), b"xyz"].concat();
        let frames = [skipped.clone(), zstd(b"one\n"), skipped, zstd(b""), zstd(b"two\n")].concat();
        assert_eq!(unpacked(frames).expect("zstd"), "one\ntwo\n");
    }

    #[test]
    fn frames_without_content_have_an_end() {
        // Five frames of as many bytes as fit the limit once, or nearly: their content is never made.
        let len = (MOST_SKIPPED / 2) as u32;
        let skipped = || {
            let head = [&[0x53][..], ZSTD_SKIPPABLE, &len.to_le_bytes()].concat();
            Cursor::new(head).chain(io::repeat(0).take(len.into()))
        };
        let text = |with_content: bool| {
            let content = || Cursor::new(if with_content { zstd(b"one\n") } else { Vec::new() });
            let frames = (0..5).fold(Box::new(io::empty()) as Box<dyn Read>, |before, _| {
                Box::new(before.chain(skipped()).chain(content()))
            });
            io::read_to_string(unpack(frames)?)
        };
        assert_eq!(text(true).expect("a log"), "one\n".repeat(5));
        assert!(text(false).is_err());
    }

    #[test]
    fn damage_is_an_error_and_not_an_end() {
        let text = "a line and another\n".repeat(1_000);
        for packed in [gzip(text.as_bytes()), zstd(text.as_bytes())] {
            let cut = packed[..packed.len() - 5].to_vec();
            assert!(unpacked(cut).is_err());
            assert!(unpacked([packed, b"garbage".to_vec()].concat()).is_err());
        }
    }

    #[test]
    fn no_log_is_named_twice_and_no_directory() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (one, link) = (directory.path().join("one"), directory.path().join("link"));
        std::fs::write(&one, "12345").expect("written");
        std::os::unix::fs::symlink(&one, &link).expect("linked");
        let refused = |sources: &[LogPath]| check(sources).expect_err("refused").to_string();
        let file = |path: &Path| LogPath::File(path.to_owned());
        assert_eq!(check(&[file(&one), LogPath::Stdin]).expect("fine"), 5);
        assert!(refused(&[file(&one), file(&link)]).ends_with("link is named twice; name each log once"));
        assert!(refused(&[LogPath::Stdin, LogPath::Stdin]).starts_with("standard input is named twice"));
        assert!(refused(&[file(directory.path())]).contains("is a directory"));
        assert!(
            refused(&[file(Path::new("/nonexistent/log"))]).starts_with("cannot read /nonexistent/log: ")
        );
    }
}

//! A recording's file: what it is, blocks, and an end, each with a checksum. What is cut off can be read to its last whole block.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 4, 4 | length of the head, its checksum (CRC-32) |
//! | … | the head: [`Head`] as JSON |
//! | 4 | [`BLOCK`], and the block's head (12 bytes) and content; as often as there are blocks |
//! | 4, 8, 4 | [`END`], the number of packets, and its checksum |
//!
//! Numbers are little-endian.

use std::{
    env::consts::ARCH,
    fmt,
    io::{self, Read, Write},
    sync::Arc,
};

use chrono::{DateTime, FixedOffset, Offset as _, Utc};
use flate2::Crc;
use net_latency_common::RECORDING_VERSION;
use serde::{Deserialize, Serialize};

use crate::{escape::bounded, message::counted};

use super::block::{Block, HEAD, Rows};

/// What a file begins with. It is no text, and shows when something took it for one.
pub(crate) const MAGIC: &[u8; 8] = b"\x89NLR\r\n\x1a\n";
const BLOCK: &[u8; 4] = b"BLCK";
const END: &[u8; 4] = b"END.";
/// A head is far shorter.
const MOST_HEAD: usize = 1 << 20;

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// The version of the file format.
    pub(crate) version: u32,
    /// Of net-latency.
    pub(crate) program: String,
    /// The machine's name.
    pub(crate) host: String,
    /// The kernel's release.
    pub(crate) kernel: String,
    /// The machine's architecture, which numbers system calls.
    pub(crate) arch: String,
    /// The command line.
    pub(crate) arguments: Vec<String>,
    /// What the file was written for.
    pub(crate) reason: String,
    /// When, in ns since 1970 and of `CLOCK_MONOTONIC`.
    pub(crate) wall_ns: i64,
    /// See `wall_ns`.
    pub(crate) monotonic_ns: u64,
    /// The machine's time zone then, in seconds east of Greenwich.
    pub(crate) offset_s: i32,
    /// Packets of the run by then that were lost: they are in no file.
    pub(crate) lost: u64,
}

impl Head {
    /// The head of a file of this version, of which nothing else is known.
    pub(crate) fn new() -> Self {
        Self {
            version: RECORDING_VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
            host: String::new(),
            kernel: String::new(),
            arch: ARCH.to_owned(),
            arguments: Vec::new(),
            reason: String::new(),
            wall_ns: 0,
            monotonic_ns: 0,
            offset_s: 0,
            lost: 0,
        }
    }

    /// What a reader of it is told, on one line of bounded length: the words in the file are untrusted.
    pub(crate) fn told(&self) -> String {
        let Self { program, host, kernel, arguments, reason, wall_ns, offset_s, lost, .. } = self;
        let [program, host, kernel, reason] =
            [program, host, kernel, reason].map(|text| bounded(text.as_bytes()));
        let arguments = bounded(arguments.join(" ").as_bytes());
        let offset = FixedOffset::east_opt(*offset_s).unwrap_or(Utc.fix());
        let time = DateTime::from_timestamp_nanos(*wall_ns).with_timezone(&offset).format("%F %T %:z");
        let lost =
            if *lost > 0 { format!("; {} lost before", counted(*lost, "packet")) } else { String::new() };
        format!(
            "recorded on {host}, Linux {kernel}, at {time} for {reason}, by net-latency {program} {arguments}{lost}"
        )
    }
}

/// Writes a file of these blocks, each of which is let go when it is written.
///
/// # Errors
/// What writing fails with.
pub(crate) fn write(
    head: &Head,
    blocks: impl IntoIterator<Item = Arc<Block>>,
    out: &mut impl Write,
) -> io::Result<()> {
    let head = serde_json::to_vec(head).map_err(io::Error::other)?;
    out.write_all(MAGIC)?;
    out.write_all(&(head.len() as u32).to_le_bytes())?;
    out.write_all(&checksum(&head).to_le_bytes())?;
    out.write_all(&head)?;
    let mut packets = 0;
    for block in blocks {
        out.write_all(BLOCK)?;
        out.write_all(&block.head())?;
        out.write_all(&block.bytes)?;
        packets += u64::from(block.rows);
    }
    let packets = packets.to_le_bytes();
    out.write_all(END)?;
    out.write_all(&packets)?;
    out.write_all(&checksum(&packets).to_le_bytes())
}

fn checksum(bytes: &[u8]) -> u32 {
    let mut checksum = Crc::new();
    checksum.update(bytes);
    checksum.sum()
}

/// Why a file, or what follows, can't be read.
#[derive(Debug)]
pub(crate) enum Damage {
    /// What the system said.
    Io(io::Error),
    /// It ends before its end.
    Cut,
    /// A checksum is wrong, or what it is of makes no sense.
    Wrong,
    /// It is of another version of the form.
    Other(u32),
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Cut => f.write_str("the recording is cut off"),
            Self::Wrong => f.write_str("the recording is damaged"),
            Self::Other(version) => write!(
                f,
                "the recording's form is version {version}, and this net-latency reads version {RECORDING_VERSION}; use the net-latency \
                 that wrote it"
            ),
        }
    }
}

impl From<io::Error> for Damage {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::UnexpectedEof { Self::Cut } else { Self::Io(error) }
    }
}

/// Reads a file from behind its [`MAGIC`].
#[derive(Debug)]
pub(crate) struct Reader<R> {
    source: R,
    packets: u64,
    is_over: bool,
}

impl<R: Read> Reader<R> {
    /// Reads what it is of.
    ///
    /// # Errors
    /// If that can't be read.
    pub(crate) fn open(mut source: R) -> Result<(Self, Head), Damage> {
        let len = u32::from_le_bytes(array(&mut source)?) as usize;
        let expected = u32::from_le_bytes(array(&mut source)?);
        if len > MOST_HEAD {
            return Err(Damage::Wrong);
        }
        let head = bytes(&mut source, len)?;
        if checksum(&head) != expected {
            return Err(Damage::Wrong);
        }
        // What another version has may be of any kind.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(&head).map_err(|_| Damage::Wrong)?;
        if version != RECORDING_VERSION {
            return Err(Damage::Other(version));
        }
        let head: Head = serde_json::from_slice(&head).map_err(|_| Damage::Wrong)?;
        Ok((Self { source, packets: 0, is_over: false }, head))
    }

    /// The packets of the next block; `None` at the end.
    ///
    /// # Errors
    /// If there is neither. Nothing follows then.
    pub(crate) fn next(&mut self) -> Result<Option<Rows>, Damage> {
        if self.is_over {
            return Ok(None);
        }
        let next = self.read();
        self.is_over = !matches!(next, Ok(Some(_)));
        next
    }

    fn read(&mut self) -> Result<Option<Rows>, Damage> {
        let mark: [u8; 4] = array(&mut self.source)?;
        if mark == *END {
            let packets: [u8; 8] = array(&mut self.source)?;
            let expected = u32::from_le_bytes(array(&mut self.source)?);
            let is_whole = checksum(&packets) == expected && u64::from_le_bytes(packets) == self.packets;
            return if is_whole { Ok(None) } else { Err(Damage::Wrong) };
        }
        if mark != *BLOCK {
            return Err(Damage::Wrong);
        }
        let head: [u8; HEAD] = array(&mut self.source)?;
        let bytes = bytes(&mut self.source, Block::following(&head).ok_or(Damage::Wrong)?)?;
        let block = Block::with_head(&head, bytes.into()).ok_or(Damage::Wrong)?;
        self.packets += u64::from(block.rows);
        Ok(Some(Rows::of(block)))
    }
}

fn array<const LEN: usize>(source: &mut impl Read) -> io::Result<[u8; LEN]> {
    let mut bytes = [0; LEN];
    source.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// N bytes, for which no more memory is taken than there are.
fn bytes(source: &mut impl Read, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_recording_is_of_is_one_harmless_line() {
        let head = Head {
            program: "0.1.0".to_owned(),
            host: "db-3".to_owned(),
            kernel: "6.1.0-40-cloud-amd64".to_owned(),
            arguments: ["record", "--dump-on", "slower=50ms", "-o", "/var/log"].map(str::to_owned).to_vec(),
            reason: "slower=50ms".to_owned(),
            wall_ns: 1_795_827_752_920_000_000,
            offset_s: 3_600,
            ..Head::new()
        };
        assert_eq!(
            head.told(),
            "recorded on db-3, Linux 6.1.0-40-cloud-amd64, at 2026-11-28 02:02:32 +01:00 for slower=50ms, by net-latency \
             0.1.0 record --dump-on slower=50ms -o /var/log"
        );
        let hostile = "\n\x1b[2J|".repeat(1_000);
        let head = Head {
            host: hostile.clone(),
            arguments: vec![hostile; 9],
            wall_ns: i64::MIN,
            offset_s: i32::MAX,
            lost: u64::MAX,
            ..head
        };
        let told = head.told();
        assert!(told.len() < 600 && !told.contains(char::is_control), "{told}");
    }
}

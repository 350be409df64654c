//! A line of the CSV form: columns go by the names in the header, so that their order and number may change.

use std::borrow::Cow;
use std::net::IpAddr;
use std::str::FromStr;

use csv_core::{ReadRecordResult, Reader};

use super::{
    fields::{Fields, Name, Values},
    skipped::Skipped,
};

/// Without these no line can be read: a header has them, and no row has them.
const NEEDED: [&str; 3] = ["ts", "dir", "proto"];

/// Reads the lines of one file. Each is a record of its own: the tool writes no newline inside of a value.
#[derive(Debug, Default)]
pub(crate) struct CsvReader {
    /// `None` for one that this version doesn't know.
    columns: Vec<Option<Name>>,
    line: Splitter,
}

/// Splits lines into values.
#[derive(Debug)]
pub(crate) struct Splitter {
    /// Kept, since making one costs more than a line.
    splitter: Reader,
    /// The values of the current line without their quotes, end to end.
    text: Vec<u8>,
    /// Where each of the `count` values ends in `text`.
    ends: Vec<usize>,
    count: usize,
}

impl Default for Splitter {
    fn default() -> Self {
        // Not `Reader::default`, which splits nothing.
        Self { splitter: Reader::new(), text: Vec::new(), ends: Vec::new(), count: 0 }
    }
}

impl CsvReader {
    /// The line's fields; `None` if it is a header.
    pub(super) fn read(&mut self, line: &[u8]) -> Result<Option<Fields<'_>>, Skipped> {
        self.line.split(line);
        if self.is_header() {
            self.columns = self.line.values().map(|name| Name::of(str::from_utf8(name).ok()?)).collect();
            return Ok(None);
        }
        match self.columns.len() {
            0 => return Err(Skipped::NoCsv),
            count if count != self.line.count => return Err(Skipped::Width),
            _ => {}
        }
        let mut fields = Fields::default();
        if self.columns.iter().any(|column| matches!(column, Some(Name::FineStage(_)))) {
            fields.fine_stages = Some(Default::default());
        }
        for (column, value) in self.columns.iter().zip(self.line.values()) {
            // Empty is unknown.
            if let Some(name) = column.filter(|_| !value.is_empty()) {
                fields.set(name, &mut One(value))?;
            }
        }
        Ok(Some(fields))
    }

    fn is_header(&self) -> bool {
        NEEDED.iter().all(|name| self.line.values().any(|value| value == name.as_bytes()))
    }
}

impl Splitter {
    /// Splits one.
    pub(crate) fn split(&mut self, line: &[u8]) {
        // Values are never longer than their quoted form, nor more than there are bytes.
        self.text.resize(self.text.len().max(line.len()), 0);
        self.ends.resize(self.ends.len().max(line.len() + 1), 0);
        self.splitter.reset();
        let (mut read, mut written) = (0, 0);
        self.count = 0;
        loop {
            // Empty input at the end closes the record.
            let (text, ends) = (&mut self.text[written..], &mut self.ends[self.count..]);
            let (result, input, output, ends) = self.splitter.read_record(&line[read..], text, ends);
            read += input;
            written += output;
            self.count += ends;
            if !matches!(result, ReadRecordResult::InputEmpty) {
                break;
            }
        }
    }

    /// The values of the line that was split last, without their quotes.
    pub(crate) fn values(&self) -> impl Iterator<Item = &[u8]> {
        values(&self.text, &self.ends[..self.count])
    }
}

fn values<'a>(text: &'a [u8], ends: &[usize]) -> impl Iterator<Item = &'a [u8]> {
    ends.iter().scan(0, move |start, &end| Some(&text[std::mem::replace(start, end)..end]))
}

/// A value, which is not empty.
struct One<'a>(&'a [u8]);

impl<'a> Values<'a> for One<'a> {
    type Error = Skipped;

    fn wrong(&self) -> Skipped {
        Skipped::Value
    }

    fn number(&mut self, most: u64) -> Result<Option<u64>, Skipped> {
        parse(self.0).filter(|number| *number <= most).map(Some).ok_or(Skipped::Value)
    }

    #[inline]
    fn text(&mut self) -> Result<Option<Cow<'a, str>>, Skipped> {
        Ok(Some(match str::from_utf8(self.0) {
            // Nearly all of them.
            Ok(text) if memchr::memchr(b'\\', self.0).is_none() => Cow::Borrowed(text),
            _ => unescape(self.0),
        }))
    }

    fn address(&mut self) -> Result<Option<IpAddr>, Skipped> {
        parse(self.0).map(Some).ok_or(Skipped::Value)
    }

    fn words(&mut self, take: impl FnMut(&str)) -> Result<(), Skipped> {
        str::from_utf8(self.0).map_err(|_| Skipped::Value)?.split(';').for_each(take);
        Ok(())
    }
}

/// The name that was written, with what had to be escaped in it as `\xNN`, byte by byte.
#[cold]
pub(crate) fn unescape(value: &[u8]) -> Cow<'static, str> {
    const ESCAPE: &[u8] = b"\\x";
    let mut name = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = rest.strip_prefix(ESCAPE).and_then(|rest| rest.split_at_checked(2));
        let byte = digits.and_then(|(digits, tail)| {
            let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
            let digits = str::from_utf8(digits).ok().filter(|_| is_hex)?;
            Some((u8::from_str_radix(digits, 16).ok()?, tail))
        });
        // A backslash that begins no escape is part of the text.
        let (byte, tail) = byte.unwrap_or((first, tail));
        name.push(byte);
        rest = tail;
    }
    Cow::Owned(String::from_utf8_lossy(&name).into_owned())
}

fn parse<T: FromStr>(value: &[u8]) -> Option<T> {
    str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use net_latency_common::{FLAG_CONTROL, FLAG_GRO};

    use super::*;
    use crate::{fuzz, packet::stages::STAGES};

    #[test]
    fn fuzz_csv() {
        let seeds = [
            "ts,dir,proto,pid,comm,saddr,sport,drv_ip_ns,flags,ifname\n2022-03-02T16:01:36Z,in,tcp,1,nginx,192.0.2.7,443,1,retrans gro,eth0\n",
            "dir,ts,proto,comm\nout,2022-03-02T16:01:36Z,udp,\"a \"\"b\"\", \\x1b\\xff\"\n",
        ];
        fuzz::run("csv", 1_000, seeds.map(Vec::from), &["\"", "\"\"", "ts,dir,proto\n", "\\x4"], |log| {
            let mut reader = CsvReader::default();
            let mut has_header = false;
            for line in log.split(|&byte| byte == b'\n') {
                match reader.read(line) {
                    Ok(None) => has_header = true,
                    Ok(Some(_)) | Err(Skipped::Width | Skipped::Value) => assert!(has_header),
                    Err(skipped) => assert!(!has_header && skipped == Skipped::NoCsv),
                }
            }
        });
    }

    fn packet<'a>(reader: &'a mut CsvReader, line: &str) -> Fields<'a> {
        match reader.read(line.as_bytes()) {
            Ok(Some(fields)) => fields,
            other => panic!("{other:?}"),
        }
    }

    fn wrong(reader: &mut CsvReader, line: &str) -> Skipped {
        reader.read(line.as_bytes()).expect_err("wrong")
    }

    #[test]
    fn names_are_as_the_task_chose_them() {
        let read = |text: &str| unescape(text.as_bytes()).into_owned();
        assert_eq!(read("plain"), "plain");
        assert_eq!(read("\\x1b[2J\\x5cx41\\xc2\\x9b"), "\u{1b}[2J\\x41\u{9b}");
        assert_eq!(read("\\x\\x4\\x+1\\"), "\\x\\x4\\x+1\\");
    }

    #[test]
    fn columns_go_by_name() {
        let mut reader = CsvReader::default();
        assert_eq!(wrong(&mut reader, "x,tcp,in"), Skipped::NoCsv);
        assert!(matches!(reader.read(b"later,comm,proto,dir,flags,ts,ip_drv_ns"), Ok(None)));
        let fields = packet(&mut reader, "7,\"a,\"\"b\"\"\",tcp,out,control;new;gro,now,12");
        assert_eq!(fields.comm.as_deref(), Some("a,\"b\""));
        assert_eq!(fields.flags.0, FLAG_GRO | FLAG_CONTROL);
        assert_eq!((fields.stages[STAGES.len() - 1], fields.ts.as_deref()), (Some(12), Some("now")));
        let fields = packet(&mut reader, ",,tcp,out,,now,");
        assert_eq!((fields.comm, fields.stages[STAGES.len() - 1]), (None, None));
        assert_eq!(wrong(&mut reader, ",,tcp,out,,now"), Skipped::Width);
        assert_eq!(wrong(&mut reader, ",,tcp,out,,now,1,2"), Skipped::Width);
        assert_eq!(wrong(&mut reader, ",,tcp,out,,now,-1"), Skipped::Value);
        assert_eq!(wrong(&mut reader, ",,tcp,up,,now,1"), Skipped::Value);
        // A second run that appends to the file may have other columns.
        assert!(matches!(reader.read(b"ts,dir,proto"), Ok(None)));
        assert_eq!(packet(&mut reader, "then,in,udp").ts.as_deref(), Some("then"));
    }
}

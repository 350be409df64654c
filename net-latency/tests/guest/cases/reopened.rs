//! A file is renamed and the tool gets SIGHUP, as by logrotate: under traffic no line is lost or torn.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path as FilePath, PathBuf},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::Case;
use crate::{
    net::{Path, Version},
    oracle,
    peers::Pair,
    process::{PATIENCE, until},
    tool::{Backend, Launch, Outcome, Scratch, Sink},
};

pub(crate) const CASES: &[Case] = &[("reopened_by_sighup", by_sighup), ("reopened_with_header", with_header)];

const ROUNDS: u32 = 1000;
const LEN: u32 = 200;

/// A directory with the file that the tool writes to.
pub(super) struct Logs {
    directory: TempDir,
}

impl Logs {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { directory: tempfile::tempdir()? })
    }

    pub(super) fn directory(&self) -> &FilePath {
        self.directory.path()
    }

    pub(super) fn file(&self) -> PathBuf {
        self.directory.path().join("packets")
    }

    pub(super) fn numbered(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("packets.{number}"))
    }

    /// `-o` with our file, which is left where it is at the end; nothing goes to standard output.
    pub(super) fn launch(&self, backend: Backend) -> Launch {
        let file = self.file();
        Launch::new(backend)
            .sink(Sink::Redirected(Scratch::new("stdout")))
            .args(&[FilePath::new("-o"), &file].map(|argument| argument.display()))
    }

    /// All files, the oldest first; each is 0640 and ends with a whole line.
    pub(super) fn files(&self) -> Result<Vec<String>> {
        let old = (1..).take_while(|&number| self.numbered(number).exists()).count();
        let paths: Vec<_> =
            (1..=old).rev().map(|number| self.numbered(number)).chain([self.file()]).collect();
        let there = fs::read_dir(self.directory.path())?.count();
        ensure!(there == paths.len(), "{there} files, of which {} have a number in sequence", paths.len());
        paths.iter().map(|path| read(path)).collect()
    }
}

fn read(path: &FilePath) -> Result<String> {
    let name = path.display();
    let mode = fs::metadata(path)?.permissions().mode() & 0o7777;
    ensure!(mode == 0o640, "{name} has mode {mode:o}");
    let text = fs::read_to_string(path)?;
    ensure!(text.is_empty() || text.ends_with('\n'), "{name} ends with a torn line");
    Ok(text)
}

/// The files together have exactly the lines of the conversation.
fn expect_all(mut outcome: Outcome, files: &[String], pair: &Pair, rounds: u32) -> Result<()> {
    outcome.data = files.concat().into_bytes();
    for conversation in oracle::check(&outcome, &[pair])? {
        conversation.expect_rounds(&outcome, rounds as usize, LEN)?;
    }
    Ok(())
}

fn connect() -> Result<Pair> {
    let mut pair = Pair::connect(&Path::loopback(Version::V4)?)?;
    pair.set_patience(PATIENCE * 3);
    Ok(pair)
}

/// As logrotate does it: renames, sends SIGHUP.
fn by_sighup(backend: Backend) -> Result<()> {
    const TIMES: usize = 8;
    let logs = Logs::new()?;
    let tool = logs.launch(backend).start()?;
    let mut pair = connect()?;
    let mut rounds = 0;
    for _ in 0..TIMES {
        pair.begin(ROUNDS / 4, LEN)?;
        rounds += ROUNDS / 4;
        // In the middle of the traffic.
        sleep(Duration::from_millis(20));
        for number in (1..TIMES).rev().filter(|&number| logs.numbered(number).exists()) {
            fs::rename(logs.numbered(number), logs.numbered(number + 1))?;
        }
        fs::rename(logs.file(), logs.numbered(1))?;
        tool.signal(Signal::SIGHUP)?;
        until(PATIENCE, || Ok(logs.file().exists())).context("no new file after SIGHUP")?;
        pair.finish()?;
    }
    let outcome = tool.stop()?;
    let files = logs.files()?;
    ensure!(files.len() == TIMES + 1, outcome.fault(format_args!("{} files", files.len()), []));
    let with_lines = files.iter().filter(|file| !file.is_empty()).count();
    ensure!(with_lines > TIMES / 2, outcome.fault("nothing was written between the renamings", []));
    expect_all(outcome, &files, &pair, rounds)
}

/// Each file has CSV's header; what they have follows upon each other.
fn with_header(backend: Backend) -> Result<()> {
    let logs = Logs::new()?;
    let tool = logs.launch(backend).csv().start()?;
    let mut pair = connect()?;
    pair.converse(ROUNDS / 8, LEN)?;
    fs::rename(logs.file(), logs.numbered(1))?;
    tool.signal(Signal::SIGHUP)?;
    until(PATIENCE, || Ok(logs.file().exists())).context("no new file after SIGHUP")?;
    pair.converse(ROUNDS / 8, LEN)?;
    let port = pair.near.port().to_string();
    let outcome = tool.stop()?;
    let mut sent = Vec::new();
    for file in &logs.files()? {
        let mut reader = csv::Reader::from_reader(file.as_bytes());
        let header = reader.headers()?.clone();
        ensure!(header.get(0) == Some("ts"), "a file that does not begin with the header");
        let before = sent.len();
        for record in reader.records() {
            let record = record?;
            let field =
                |name: &str| header.iter().position(|this| this == name).and_then(|at| record.get(at));
            if field("dir") == Some("out") && field("sport") == Some(&port) {
                sent.push(field("seq").context("no seq")?.parse::<u32>()?);
            }
        }
        ensure!(sent.len() > before, outcome.fault("a file without lines", []));
    }
    let gaps = sent.windows(2).filter(|pair| pair[1] != pair[0].wrapping_add(LEN)).count();
    ensure!(
        u64::try_from(gaps)? <= outcome.allowance().most(sent.len().try_into()?),
        outcome.fault(format_args!("the files do not follow upon each other: {sent:?}"), [])
    );
    ensure!(outcome.status.success(), "it did not end well");
    Ok(())
}

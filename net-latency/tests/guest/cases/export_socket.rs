//! Metrics by a unix socket, as a proxy or an agent of this machine scrapes them.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{
        fs::{FileTypeExt as _, MetadataExt as _},
        net::UnixStream,
    },
    path::Path as FilePath,
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::{
    Case,
    export::{expect_ledger, in_histograms, samples},
};
use crate::{
    confine,
    net::{Path, Version},
    peers::{CLIENT, Pair, SERVER},
    process::PATIENCE,
    tool::{Backend, Launch, Scratch, Sink, run},
};

pub(crate) const CASES: &[Case] = &[("export_on_a_unix_socket", socket)];

const ROUNDS: u32 = 50;
const LEN: u32 = 200;
/// Debian's, where a guest has it.
const CURL: &str = "/bin/curl";

/// Its metrics.
fn metrics(path: &FilePath) -> Result<Vec<u8>> {
    if FilePath::new(CURL).exists() {
        let mut curl = Command::new(CURL);
        curl.args(["--silent", "--fail", "--unix-socket"]).arg(path).arg("http://net-latency/metrics");
        let output = curl.output()?;
        ensure!(output.status.success(), "{curl:?}: {}", output.status);
        return Ok(output.stdout);
    }
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: net-latency\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").context("no end of the headers")?;
    Ok(answer.split_off(end + 4))
}

/// Its metrics come by a socket that others can't use. A second run has none, a killed one's is replaced, and none is left.
fn socket(backend: Backend) -> Result<()> {
    let file = Scratch::new("metrics.sock");
    let path = file.path();
    let listen = format!("unix:{}", path.display());
    let mut pair = Pair::prepare(&Path::loopback(Version::V4)?, CLIENT, SERVER)?;
    let port = pair.far.port().to_string();
    let start = || {
        let launch = Launch::new(backend).view("export").sink(Sink::Pipe);
        launch.args(&["--listen", &listen, "--port", &port]).start()
    };
    let killed = start()?;
    ensure!(killed.said().join("\n").contains(&format!("metrics at {listen};")), "{:?}", killed.said());
    let metadata = fs::symlink_metadata(path)?;
    let is_right =
        metadata.file_type().is_socket() && metadata.mode() & 0o7777 == 0o660 && metadata.uid() == 0;
    ensure!(is_right, "mode {:o}, uid {}", metadata.mode(), metadata.uid());
    let second = run(None, &["export", "--listen", &listen])?;
    let is_right = second.code == Some(1) && second.stderr.lines().count() == 1;
    ensure!(is_right, "a second one: {:?}: {}", second.code, second.stderr);
    killed.signal(Signal::SIGKILL)?;
    killed.wait()?;
    ensure!(path.exists(), "a killed process removes nothing");
    // Another user doesn't remove it either.
    let other = run(Some(confine::ONLY_NEEDED), &["export", "--listen", &listen])?;
    let is_right = other.code == Some(2) && other.stderr.contains("a socket of another user (uid 0)");
    ensure!(is_right, "another user's: {:?}: {}", other.code, other.stderr);

    let tool = start()?;
    pair.open(&Path::loopback(Version::V4)?)?;
    pair.converse(ROUNDS, LEN)?;
    std::thread::sleep(std::time::Duration::from_millis(150));
    let counted = samples(metrics(path)?)?;
    let outcome = tool.stop()?;
    expect_ledger(&outcome, &counted)?;
    outcome.expect_all("packets", in_histograms(&counted, &[]), (4 * ROUNDS).into(), [])?;
    ensure!(!path.exists(), "its file is left");
    // A run that can't trace leaves none either.
    let refused = run(Some(confine::NO_CAPABILITIES), &["export", "--listen", &listen])?;
    ensure!(refused.code == Some(3) && !path.exists(), "{:?}: {}", refused.code, refused.stderr);
    Ok(())
}

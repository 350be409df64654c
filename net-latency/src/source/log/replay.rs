//! Logs played back: their packets one after the other, at their own pace, faster or slower.

use std::{
    sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow};

use super::{input::LogPath, merge::Logs, read::Tally, record::LogRecord};
use crate::{
    error::Failure,
    packet::event::Event,
    request::{PacketFilter, ReplayConfig, Speed},
    source::RecordSource,
};

/// Packets read ahead.
const AHEAD: usize = 16_384;

/// What the thread that reads has to say. It is a thread of its own since standard input may keep it waiting.
#[expect(clippy::large_enum_variant, reason = "nearly all are packets")]
enum Message {
    /// What recordings among them are of. This comes first.
    Opened(Vec<String>),
    Packet(LogRecord<'static>),
    End(Tally),
    Failed(Failure),
}

/// Logs while they are played back.
pub(crate) struct Replay {
    messages: Receiver<Message>,
    filter: PacketFilter,
    speed: Speed,
    name: String,
    /// When it began, and the time of the first packet.
    began: Instant,
    first_ns: i64,
    /// The last packet that was handed out, or filtered.
    last_ns: i64,
    next: Option<LogRecord<'static>>,
    filtered: u64,
    recordings: Vec<String>,
    tally: Option<Tally>,
}

impl Replay {
    /// Reads as far as the first packet.
    ///
    /// # Errors
    /// A usage failure for what can't be read, is no log or has no packets.
    pub(crate) fn open(config: &ReplayConfig, filter: &PacketFilter) -> Result<Self, Failure> {
        let paths: Vec<_> = config.files.iter().map(|path| LogPath::new(path)).collect();
        let name = match paths.as_slice() {
            [path] => path.name(),
            _ => format!("{} logs", paths.len()),
        };
        let (sender, messages) = sync_channel(AHEAD);
        thread::Builder::new()
            .name("logs".to_owned())
            .spawn(move || read(&paths, &sender))
            .context("cannot start a thread")?;
        let mut recordings = Vec::new();
        let first = loop {
            match messages.recv().map_err(|_| anyhow!("reading the logs has failed"))? {
                Message::Opened(opened) => recordings = opened,
                Message::Packet(first) => break first,
                Message::Failed(failure) => return Err(failure),
                Message::End(tally) => return Err(no_packets(&name, &tally)),
            }
        };
        Ok(Self {
            messages,
            filter: filter.clone(),
            speed: config.speed,
            name,
            began: Instant::now(),
            first_ns: first.wall_ns,
            last_ns: first.wall_ns,
            next: Some(first),
            filtered: 0,
            recordings,
            tally: None,
        })
    }

    /// The logs that are played back, and how fast.
    pub(crate) fn title(&self) -> String {
        format!("replay {}, {}", self.name, self.speed)
    }

    /// Whether all has been played back.
    pub(crate) fn is_over(&self) -> bool {
        self.tally.is_some()
    }

    /// Whether more could be had at once.
    pub(crate) fn is_behind(&self) -> bool {
        !self.is_over()
            && (self.speed == Speed::Max
                || self.next.as_ref().is_some_and(|next| next.wall_ns <= self.position()))
    }

    /// Packets that were filtered.
    pub(crate) fn filtered(&self) -> u64 {
        self.filtered
    }

    /// What was read and what was not, once all has been.
    pub(crate) fn tally(&self) -> Option<&Tally> {
        self.tally.as_ref()
    }

    /// What recordings are of, and once all has been read what was not.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.tally.as_ref().map_or_else(|| self.recordings.clone(), Tally::notes)
    }

    /// How far it has come, in ns since 1970.
    fn position(&self) -> i64 {
        match self.speed {
            _ if self.is_over() => self.last_ns,
            Speed::Max => self.last_ns,
            Speed::Thousandths(thousandths) => {
                let ns = scaled(self.began.elapsed(), thousandths.get());
                self.first_ns.saturating_add(i64::try_from(ns).unwrap_or(i64::MAX))
            }
        }
    }

    /// The next packet, due or not.
    fn receive(&mut self) -> Result<Option<&LogRecord<'static>>, Failure> {
        if self.next.is_none() && self.tally.is_none() {
            match self.messages.try_recv() {
                Ok(Message::Packet(record)) => self.next = Some(record),
                Ok(Message::Opened(_)) => {}
                Ok(Message::Failed(failure)) => return Err(failure),
                Ok(Message::End(tally)) => self.tally = Some(tally),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => return Err(anyhow!("reading the logs has failed").into()),
            }
        }
        Ok(self.next.as_ref())
    }
}

impl RecordSource for Replay {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.position()).unwrap_or(0)
    }

    fn next<T>(&mut self, take: impl FnOnce(&Event<'_>) -> T) -> Result<Option<T>, Failure> {
        let position = if self.speed == Speed::Max { i64::MAX } else { self.position() };
        loop {
            match self.receive()? {
                Some(next) if next.wall_ns <= position => {}
                _ => return Ok(None),
            }
            let Some(record) = self.next.take() else { return Ok(None) };
            self.last_ns = self.last_ns.max(record.wall_ns);
            if self.filter.matches(&record.event()) {
                return Ok(Some(take(&record.event())));
            }
            self.filtered += 1;
        }
    }
}

/// Reads to the end, or until the receiver has gone.
fn read(paths: &[LogPath], sender: &SyncSender<Message>) {
    let outcome = Logs::open(paths).and_then(|mut logs| {
        let _ = sender.send(Message::Opened(logs.recordings().to_vec()));
        while let Some(record) = logs.next()? {
            if sender.send(Message::Packet(record)).is_err() {
                break;
            }
        }
        Ok(logs.into_tally())
    });
    // If it can't be sent, the receiver has gone.
    let _ = sender.send(outcome.map_or_else(Message::Failed, Message::End));
}

fn no_packets(name: &str, tally: &Tally) -> Failure {
    let why = if tally.unended > 0 { "; its last line is cut off" } else { "" };
    Failure::Usage(format!("{name} has no packets to replay{why}"))
}

/// `elapsed` in ns, N thousandths as fast.
fn scaled(elapsed: Duration, thousandths: u64) -> u128 {
    elapsed.as_nanos().saturating_mul(u128::from(thousandths)) / 1_000
}

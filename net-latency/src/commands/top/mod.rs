//! The live table of processes, their connections, and the slowest packets of each.
//!
//! [`model`] knows, [`verdict`] judges, [`state`] is what the user has chosen, [`rows`] puts the two together, [`screen`] and what it
//! calls draws, and this module runs it all.

mod columns;
mod failed;
mod help;
mod input;
mod keys;
mod model;
mod paint;
mod place;
mod rows;
mod screen;
mod stages;
mod state;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod traced;
mod units;
mod verdict;
mod view;
mod window;

use std::{io, ops::ControlFlow, os::fd::OwnedFd, time::Duration};

use anyhow::Context as _;
use net_latency_common::Direction;
use ratatui_core::buffer::Buffer;
use tokio::{
    io::unix::AsyncFd,
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};

use self::{
    failed::Watch,
    keys::{Decoder, Key},
    model::Model,
    paint::Look,
    rows::Rows,
    state::State,
    terminal::Screen,
    verdict::Verdict,
    view::{End, Status, View},
};
use super::write_replayed;
use crate::{
    accounting::{Balance, Footer, LeftOut, Losses, Packet, Summary, object, tcp::Connections},
    clock::{Clock, LazyClock, monotonic_ns},
    diagnosis::Headline,
    error::Failure,
    kernel::{owners, ports},
    message::say,
    request::{FooterFormat, PacketFilter, TopConfig, TopInput},
    run::{
        beats::fills,
        connections::or_say,
        ends::{Selected, Signals, readable},
        pace::{self, BATCH, TICK},
        privileges::{self, Later},
        tracer::Tracer,
    },
    source::{RecordSource as _, log::replay::Replay},
};

/// Between two batches of a log that is behind its pace.
const PAUSE: Duration = Duration::from_millis(1);

/// Runs the table to its end.
///
/// # Errors
/// A usage failure without a terminal; [`Failure::CannotTrace`] before anything is attached; a runtime failure if
/// reading fails.
pub(crate) fn run(config: &TopConfig) -> Result<(), Failure> {
    pace::block_on(top(config))
}

async fn top(config: &TopConfig) -> Result<(), Failure> {
    // What can fail without touching the kernel comes first.
    let (feed, watch, mut sources, look) = match &config.input {
        TopInput::Kernel(tracing) => {
            let keyboard = terminal::keyboard(false)?;
            let look = terminal::look(&keyboard)?;
            let mut sources = Sources::open(&config.filter, keyboard)?;
            // Before packets count, so that it takes no part of their time.
            let watch = Watch::start(config, tracing);
            let tracer = Tracer::start(&config.filter, tracing, false, config.quiet)?;
            let watch = or_say(watch, "connections that fail are not shown");
            sources.selected.are_there()?;
            (Feed::Kernel(Box::new(tracer)), watch, sources, look)
        }
        TopInput::Logs(logs) => {
            let keyboard = terminal::keyboard(logs.files.iter().any(|file| file.as_os_str() == "-"))?;
            let replay = Replay::open(logs, &config.filter)?;
            let look = terminal::look(&keyboard)?;
            // A log's processes are not those that have their numbers now.
            (Feed::Log(Box::new(replay)), None, Sources::open(&PacketFilter::default(), keyboard)?, look)
        }
    };
    let mut top = Top { watch, ..Top::new(config, feed, look) };
    let outcome = match Screen::enter() {
        Ok(mut screen) => match top.give_up_privileges() {
            Ok(()) => top.show(&mut sources, &mut screen).await,
            Err(failure) => Err(failure),
        },
        Err(failure) => Err(failure),
    };
    // The terminal is the user's again.
    let footer = top.finish();
    outcome.and(footer)
}

/// What the loop waits for, besides time and packets.
struct Sources {
    signals: Signals,
    /// The terminal has gone.
    hangup: Signal,
    resized: Signal,
    continued: Signal,
    selected: Selected,
    keyboard: AsyncFd<OwnedFd>,
}

impl Sources {
    fn open(filter: &PacketFilter, keyboard: OwnedFd) -> Result<Self, Failure> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            signals: Signals::listen().context("cannot listen for signals")?,
            hangup: listen(SignalKind::hangup())?,
            resized: listen(SignalKind::window_change())?,
            continued: listen(SignalKind::from_raw(libc::SIGCONT))?,
            // The screen says it.
            selected: Selected::hold(filter, true)?,
            keyboard: readable(keyboard).context("cannot wait for the keyboard")?,
        })
    }
}

/// Where the packets come from.
enum Feed {
    /// This kernel.
    Kernel(Box<Tracer>),
    /// Recorded logs.
    Log(Box<Replay>),
}

impl Feed {
    fn now_ns(&self) -> u64 {
        match self {
            Self::Kernel(_) => monotonic_ns(),
            Self::Log(replay) => replay.now_ns(),
        }
    }

    /// What the line below the verdict begins with.
    fn title(&self) -> String {
        match self {
            Self::Kernel(tracer) => tracer.mechanism().name().to_owned(),
            Self::Log(replay) => replay.title(),
        }
    }

    /// Whether there is more to read without waiting for anything.
    fn is_behind(&self) -> bool {
        matches!(self, Self::Log(replay) if replay.is_behind())
    }
}

struct Top<'a> {
    config: &'a TopConfig,
    feed: Feed,
    /// The watch for connections that fail.
    watch: Option<Watch>,
    summary: Summary,
    /// Records that are not shown.
    left_out: LeftOut,
    model: Model,
    verdict: Verdict,
    /// While the screen is frozen: the state at that time, and when that was.
    frozen: Option<Box<(Model, Headline, Duration)>>,
    state: State,
    rows: Rows,
    decoder: Decoder,
    look: Look,
    /// On the clock of the packets' stamps, in ns.
    started_ns: u64,
    losses: Losses,
    /// The wanted processes have ended: what comes now is of others that got their numbers.
    is_over: bool,
}

impl<'a> Top<'a> {
    fn new(config: &'a TopConfig, feed: Feed, look: Look) -> Self {
        let state = State::new(config.filter.direction.unwrap_or(Direction::In), config.sort);
        let started_ns = feed.now_ns();
        let ephemeral = (!config.filter.is_only_some()).then(ports::ephemeral_word);
        let model = Model::new(started_ns, config.window).with_exchanges(ephemeral);
        let is_live = matches!(feed, Feed::Kernel(_));
        // Processes of a log may be those of another machine.
        let model = if is_live { model.with_owners(owners::of) } else { model };
        let summary = match &feed {
            Feed::Kernel(tracer) => {
                let connections = (config.footer == FooterFormat::Json).then(|| Connections::new(ephemeral));
                Summary::since(*tracer.span.start()).with_connections(connections)
            }
            Feed::Log(_) => Summary::default(),
        };
        Self {
            rows: Rows::new(&model, &state, look.is_ascii),
            verdict: Verdict::new(config, started_ns),
            config,
            feed,
            watch: None,
            summary,
            left_out: LeftOut::default(),
            model,
            frozen: None,
            state,
            decoder: Decoder::default(),
            look,
            started_ns,
            losses: Losses::default(),
            is_over: false,
        }
    }

    /// The terminal is open and everything attached.
    fn give_up_privileges(&self) -> Result<(), Failure> {
        let reads = || match &self.feed {
            Feed::Kernel(tracer) => tracer.losses().is_ok(),
            Feed::Log(_) => true,
        };
        let later = Later { reads_names: true, draws: true, ..Later::default() };
        privileges::give_up(&later, reads).map(drop)
    }

    /// Reads and draws until something ends the run.
    async fn show(&mut self, sources: &mut Sources, screen: &mut Screen) -> Result<(), Failure> {
        let filling = match &self.feed {
            Feed::Kernel(tracer) => Some(
                tracer.capture.descriptor().and_then(readable).context("cannot wait for the ring buffer")?,
            ),
            Feed::Log(_) => None,
        };
        let mut tick = pace::ticks(TICK);
        let mut refresh = pace::ticks(self.config.delay);
        let mut has_typed = false;
        loop {
            let mut keys = Vec::new();
            let mut is_due = false;
            tokio::select! {
                biased;
                () = sources.signals.any() => return Ok(()),
                _ = sources.hangup.recv() => return Ok(()),
                ended = sources.selected.all_gone(), if !self.is_over => {
                    ended?;
                    self.drain()?;
                    if let Feed::Kernel(tracer) = &mut self.feed {
                        tracer.close();
                    }
                    self.is_over = true;
                    is_due = true;
                }
                ready = sources.keyboard.readable() => {
                    let mut ready = ready.context("cannot wait for the keyboard")?;
                    let mut bytes = [0; 256];
                    match rustix::io::read(sources.keyboard.get_ref(), &mut bytes) {
                        // The terminal has gone.
                        Ok(0) | Err(rustix::io::Errno::IO) => return Ok(()),
                        Ok(read) => {
                            keys = self.decoder.feed(&bytes[..read]);
                            has_typed = true;
                            if read < bytes.len() {
                                ready.clear_ready();
                            }
                        }
                        Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
                        Err(rustix::io::Errno::INTR) => {}
                        Err(error) => return Err(anyhow::Error::from(error).context("cannot read the keyboard").into()),
                    }
                }
                _ = sources.resized.recv() => is_due = true,
                _ = sources.continued.recv() => {
                    if screen.retake().is_err() {
                        return Ok(());
                    }
                    is_due = true;
                }
                _ = refresh.tick() => {
                    if let Feed::Kernel(tracer) = &self.feed {
                        self.losses = Losses { missed_probes: tracer.missed(), ..tracer.losses()? };
                    }
                    is_due = true;
                }
                filled = fills(filling.as_ref()) => filled?,
                () = sleep(PAUSE), if self.feed.is_behind() => {}
                _ = tick.tick() => {
                    if !has_typed {
                        keys.extend(self.decoder.pause());
                    }
                    has_typed = false;
                }
            }
            self.drain()?;
            for key in &keys {
                if self.press(*key, screen).is_break() {
                    return Ok(());
                }
            }
            // A terminal that can't be written to has gone; there is no reader to tell.
            if (is_due || !keys.is_empty()) && self.draw(screen).is_err() {
                return Ok(());
            }
        }
    }

    /// Takes the records that wait, a batch at most.
    fn drain(&mut self) -> Result<(), Failure> {
        let now_ns = self.feed.now_ns();
        self.model.advance(now_ns);
        self.verdict.advance(now_ns, &self.losses);
        let clock = LazyClock::new(Clock::sample);
        if let Some(watch) = self.watch.as_mut().filter(|_| !self.is_over) {
            watch.read(&clock, &mut self.model.failed)?;
        }
        for _ in 0..BATCH {
            if self.take_next(&clock)?.is_none() {
                break;
            }
        }
        self.is_over |= matches!(&self.feed, Feed::Log(replay) if replay.is_over());
        Ok(())
    }

    fn take_next(&mut self, clock: &LazyClock) -> Result<Option<()>, Failure> {
        let Self { feed, model, verdict, summary, left_out, .. } = self;
        match feed {
            Feed::Kernel(tracer) => tracer.records(clock, None, left_out).next(|event| {
                model.record(event);
                verdict.record(event);
                summary.record_event(event);
            }),
            Feed::Log(replay) => replay.next(|event| {
                // A batch of a log may last longer than the screen's window.
                model.advance(event.completion_ns());
                verdict.advance(event.completion_ns(), &Losses::default());
                model.record(event);
                verdict.record(event);
                summary.record(&Packet::of_log(event));
            }),
        }
    }

    fn press(&mut self, key: Key, screen: &Screen) -> ControlFlow<()> {
        let action = input::action(key, self.state.is_typing());
        let placed = columns::columns(self.state.place, self.state.shown, screen.width());
        let page = screen::page(&self.state, self.model.has_parts(), screen.height());
        self.state.apply(action, &self.rows.keys(), &columns::sortable(&placed), page)?;
        match (self.state.is_frozen, &self.frozen) {
            (true, None) => {
                let headline = self.verdict.headline().clone();
                self.frozen = Some(Box::new((self.model.clone(), headline, self.elapsed())));
            }
            (false, Some(_)) => self.frozen = None,
            _ => {}
        }
        // The next key is about what this one leads to.
        self.rows = Rows::new(self.shown().0, &self.state, self.look.is_ascii);
        ControlFlow::Continue(())
    }

    /// How long the run has lasted, of a log: how much of its time.
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.feed.now_ns().saturating_sub(self.started_ns))
    }

    /// The state on the screen, and how long the run had lasted then.
    fn shown(&self) -> (&Model, &Headline, Duration) {
        match &self.frozen {
            Some(frozen) => (&frozen.0, &frozen.1, frozen.2),
            None => (&self.model, self.verdict.headline(), self.elapsed()),
        }
    }

    fn draw(&mut self, screen: &mut Screen) -> io::Result<()> {
        self.refresh();
        screen.draw(|buffer| self.paint(buffer))
    }

    /// Brings the screen up to date.
    fn refresh(&mut self) {
        let lost = matches!(self.feed, Feed::Kernel(_)).then_some(&self.losses);
        self.verdict.refresh(lost, self.is_over);
        self.rows = Rows::new(self.shown().0, &self.state, self.look.is_ascii);
    }

    fn paint(&self, buffer: &mut Buffer) {
        let (model, headline, elapsed) = self.shown();
        let status = Status {
            source: self.feed.title(),
            traced: traced::options(&self.config.filter),
            elapsed,
            window: self.config.window,
            losses: self.losses,
            is_watching: self.watch.is_some(),
            unread: match &self.feed {
                Feed::Kernel(_) => Vec::new(),
                Feed::Log(replay) => replay.notes(),
            },
            end: self.is_over.then_some(match self.feed {
                Feed::Kernel(_) => End::Processes,
                Feed::Log(_) => End::Log,
            }),
            zone: self.config.zone,
        };
        let (state, rows) = (&self.state, &self.rows);
        let view = View { model, headline, state, rows, status: &status, look: self.look };
        screen::draw(&view, buffer);
    }

    /// Says what was seen, at the end.
    fn finish(self) -> Result<(), Failure> {
        let elapsed = self.elapsed();
        let Self { config, feed, mut summary, mut left_out, is_over, .. } = self;
        match feed {
            Feed::Kernel(mut tracer) => {
                let losses = tracer.detach()?;
                let clock = LazyClock::new(Clock::sample);
                while tracer
                    .records(&clock, None, &mut left_out)
                    .next(|event| summary.record_event(event))?
                    .is_some()
                {}
                summary.finish();
                let ledger = tracer.ledger(summary.packets(), left_out, 0)?;
                let losses = Losses { evicted_in: ledger.evicted, ..losses };
                let packets = summary.by_direction();
                let balance = Balance { packets, elapsed, losses: &losses, ledger: &ledger, cost: None };
                let footer =
                    Footer { balance, summary: &summary, view: object::View::Top, zone: config.zone };
                tracer.say_footer(config.footer, footer)
            }
            Feed::Log(replay) => {
                if config.footer != FooterFormat::None {
                    let did = ["shown", "played"];
                    say(|out| write_replayed(&replay, &summary, Some(elapsed), did, config.zone, out));
                }
                match replay.tally().filter(|_| is_over) {
                    Some(tally) => tally.check_whole("replay"),
                    None => Ok(()),
                }
            }
        }
    }
}

//! The live table of processes, their connections, and the slowest packets of each.
//!
//! [`model`] knows, [`state`] is what the user has chosen, [`rows`] puts the two together, [`screen`] and what it
//! calls draws, and this module runs it all.

mod columns;
mod help;
mod input;
mod keys;
mod model;
mod paint;
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
mod window;

use std::{
    io::{self, Write as _},
    ops::ControlFlow,
    os::fd::{AsFd as _, OwnedFd},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use net_latency_common::{Direction, PacketRecord};
use tokio::{
    io::unix::AsyncFd,
    signal::unix::{Signal, SignalKind, signal},
    time::{MissedTickBehavior, interval},
};

use self::{
    keys::{Decoder, Key},
    model::Model,
    paint::Look,
    rows::Rows,
    screen::{Status, View},
    state::State,
    terminal::Screen,
};
use crate::{
    accounting::{Footer, Losses, Summary, object},
    clock::{Clock, monotonic_ns},
    error::Failure,
    packet::event::{Event, completion_ns},
    request::{FooterFormat, TopConfig},
    run::{
        ends::{Processes, Signals, readable},
        tracer::Tracer,
    },
};

/// How often the ring buffer is read when it doesn't fill quickly.
const TICK: Duration = Duration::from_millis(50);
/// Records read before signals and keys get their turn.
const BATCH: usize = 16_384;

/// Runs the table to its end.
///
/// # Errors
/// A usage failure without a terminal; [`Failure::CannotTrace`] before anything is attached; a runtime failure if
/// reading fails.
pub fn run(config: &TopConfig) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(top(config))
}

async fn top(config: &TopConfig) -> Result<(), Failure> {
    // What can fail without touching the kernel comes first.
    let look = terminal::look()?;
    let mut sources = Sources::open(&config.filter.pids)?;
    let tracer = Tracer::start(&config.filter, &config.tracing, false, config.quiet)?;
    let mut top = Top::new(config, tracer, look);
    let outcome = match Screen::enter() {
        Ok(mut screen) => top.show(&mut sources, &mut screen).await,
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
    processes: Processes,
    keyboard: AsyncFd<OwnedFd>,
}

impl Sources {
    fn open(pids: &[u32]) -> Result<Self, Failure> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self {
            signals: Signals::listen().context("cannot listen for signals")?,
            hangup: listen(SignalKind::hangup())?,
            resized: listen(SignalKind::window_change())?,
            continued: listen(SignalKind::from_raw(libc::SIGCONT))?,
            processes: Processes::watch(pids)?,
            keyboard: io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .and_then(readable)
                .context("cannot wait for the keyboard")?,
        })
    }
}

struct Top<'a> {
    config: &'a TopConfig,
    tracer: Tracer,
    summary: Summary,
    /// Records of packets finished while not every hook was attached: they are not shown.
    outside: u64,
    model: Model,
    /// While the screen is frozen: what was known then, and when.
    frozen: Option<Box<(Model, Duration)>>,
    state: State,
    rows: Rows,
    decoder: Decoder,
    look: Look,
    started: Instant,
    losses: Losses,
    /// The processes that were asked for have ended: what comes now is of others that got their numbers.
    is_over: bool,
}

impl<'a> Top<'a> {
    fn new(config: &'a TopConfig, tracer: Tracer, look: Look) -> Self {
        let state = State::new(config.filter.direction.unwrap_or(Direction::In));
        let model = Model::new(monotonic_ns(), config.window);
        Self {
            rows: Rows::new(&model, &state, look.is_ascii),
            config,
            summary: Summary::since(*tracer.span.start()),
            tracer,
            outside: 0,
            model,
            frozen: None,
            state,
            decoder: Decoder::default(),
            look,
            started: Instant::now(),
            losses: Losses::default(),
            is_over: false,
        }
    }

    /// Reads and draws until something ends the run.
    async fn show(&mut self, sources: &mut Sources, screen: &mut Screen) -> Result<(), Failure> {
        let filling =
            self.tracer.capture.descriptor().and_then(readable).context("cannot wait for the ring buffer")?;
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut refresh = interval(self.config.delay);
        refresh.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut has_typed = false;
        loop {
            let mut keys = Vec::new();
            let mut is_due = false;
            tokio::select! {
                biased;
                () = sources.signals.any() => return Ok(()),
                _ = sources.hangup.recv() => return Ok(()),
                ended = sources.processes.all_ended(), if !self.is_over => {
                    ended?;
                    self.drain()?;
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
                    self.losses = self.tracer.losses()?;
                    self.losses.missed_probes = self.tracer.missed();
                    is_due = true;
                }
                ready = filling.readable() => {
                    ready.context("cannot wait for the ring buffer")?.clear_ready();
                }
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
            // A terminal that can't be written to has gone; there is nobody to tell.
            if (is_due || !keys.is_empty()) && self.draw(screen).is_err() {
                return Ok(());
            }
        }
    }

    /// Takes the records that wait, a batch at most.
    fn drain(&mut self) -> Result<(), Failure> {
        self.model.advance(monotonic_ns());
        let clock = Clock::sample();
        for _ in 0..BATCH {
            if self.take_next(&clock)?.is_none() {
                break;
            }
        }
        Ok(())
    }

    fn take_next(&mut self, clock: &Clock) -> Result<Option<()>, Failure> {
        let Tracer { capture, span, counted_until, .. } = &mut self.tracer;
        let next = capture.next(|record: &PacketRecord| {
            let completion_ns = completion_ns(record);
            if self.is_over || !span.contains(&completion_ns) {
                self.outside += u64::from(completion_ns <= *counted_until);
                return;
            }
            let event = Event::new(record, clock.to_utc_ns(completion_ns), None);
            self.model.record(&event);
            self.summary.record_event(&event);
        });
        Ok(next?)
    }

    fn press(&mut self, key: Key, screen: &Screen) -> ControlFlow<()> {
        let action = input::action(key, self.state.is_typing());
        let placed = columns::columns(self.state.place, self.state.shown, screen.width());
        let page = screen::page(&self.state, screen.height());
        self.state.apply(action, &self.rows.keys(), &columns::sortable(&placed), page)?;
        match (self.state.is_frozen, &self.frozen) {
            (true, None) => self.frozen = Some(Box::new((self.model.clone(), self.started.elapsed()))),
            (false, Some(_)) => self.frozen = None,
            _ => {}
        }
        // The next key is about what this one leads to.
        self.rows = Rows::new(self.shown().0, &self.state, self.look.is_ascii);
        ControlFlow::Continue(())
    }

    /// What is on the screen, and how long the run had lasted then.
    fn shown(&self) -> (&Model, Duration) {
        match &self.frozen {
            Some(frozen) => (&frozen.0, frozen.1),
            None => (&self.model, self.started.elapsed()),
        }
    }

    fn draw(&mut self, screen: &mut Screen) -> io::Result<()> {
        self.rows = Rows::new(self.shown().0, &self.state, self.look.is_ascii);
        let (model, elapsed) = self.shown();
        let status = Status {
            mechanism: self.tracer.mechanism().name(),
            traced: traced::options(&self.config.filter),
            elapsed,
            window: self.config.window,
            losses: self.losses,
            is_over: self.is_over,
            zone: self.config.zone,
        };
        let view = View { model, state: &self.state, rows: &self.rows, status: &status, look: self.look };
        screen.draw(|buffer| screen::draw(&view, buffer))
    }

    /// Detaches, reads the rest, and says what was seen.
    fn finish(mut self) -> Result<(), Failure> {
        let elapsed = self.started.elapsed();
        let mut losses = self.tracer.detach()?;
        let clock = Clock::sample();
        while self.take_next(&clock)?.is_some() {}
        if self.config.footer == FooterFormat::None {
            return Ok(());
        }
        let ledger = self.tracer.ledger(self.summary.packets(), self.outside, 0)?;
        losses.evicted_in = ledger.evicted;
        let footer = Footer {
            summary: &self.summary,
            elapsed,
            losses: &losses,
            ledger: &ledger,
            cost: &self.tracer.cost()?,
            view: object::View::Top,
            zone: self.config.zone,
        };
        let mut text = Vec::new();
        // In one piece; whoever closed stderr doesn't want to know.
        let _ = footer.write(self.config.footer, &mut text).and_then(|()| io::stderr().write_all(&text));
        Ok(())
    }
}

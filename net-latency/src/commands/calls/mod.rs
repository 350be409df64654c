//! Calls of functions in the kernel: attaches to each, reads until told to stop, detaches, and sums up.
//!
//! [`choice`] says which functions, [`tree`] puts calls together, [`graph`], [`indent`] and [`json`] write them, [`totals`]
//! sums them up, and this module runs it all.

mod choice;
mod graph;
mod indent;
mod json;
mod names;
#[cfg(test)]
mod tests;
mod totals;
mod tree;

use std::{
    io::{self, Write as _},
    ops::RangeInclusive,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use net_latency_common::{CallCounters, CallRecord};
use tokio::{signal::unix::Signal, task::yield_now, time::sleep};

use self::{
    choice::Choice,
    indent::Indent,
    json::Json,
    names::Functions,
    totals::{Footer, Totals},
    tree::{Tree, Trees},
};
use crate::{
    clock::{Clock, monotonic_ns},
    error::Failure,
    kernel::{self, facts::Live, functions::Function, prerequisites},
    message::{counted, say, tell},
    output::{LONGEST_LINE, Sink},
    probes::calls::{self, CallMaps, CallProbes, Cost},
    request::{CallFormat, CallsConfig, FooterFormat, Style},
    run::{
        beats::{Beat, Beats},
        ends::{self, Selected, Signals},
        names::tell_unmatched,
        notice::Notice,
        pace::{self, BATCH, End, Ended, LAST_PATIENCE, PATIENCE, TICK},
        privileges::{self, Later},
    },
};

/// A program that has taken the time of a return has written its record by then.
const SETTLING: Duration = Duration::from_millis(5);
/// How long it may take at all.
const LONGEST_ATTACHING: Duration = Duration::from_secs(60);

/// Shows calls until something ends the run.
///
/// # Errors
/// A usage failure for functions that there are not, [`Failure::CannotTrace`] before anything is attached, a runtime
/// failure if reading or writing fails.
pub(crate) fn run(config: &CallsConfig) -> Result<(), Failure> {
    pace::block_on(trace(config))
}

async fn trace(config: &CallsConfig) -> Result<(), Failure> {
    // What can fail without touching the kernel comes first.
    let mut signals = Signals::listen().context("cannot listen for signals")?;
    let hangup = signals.take_hangup(config.output.is_some()).context("cannot listen for signals")?;
    let mut sink = Sink::open(config.output.as_deref(), b"")?;
    let mut selected = Selected::hold(&config.filter, false)?;
    prerequisites::check()?;
    prerequisites::kprobes(&Live).map_err(|missing| missing.failure())?;
    let choice = Choice::make(config)?;
    tell_unmatched(&config.filter, config.quiet);
    if config.verbose {
        choice.tell();
    }
    let btf = kernel::read_btf()?;
    let settings = calls::settings(&btf, &choice.addresses)?;
    let notice = Notice::new("loading programs …", config.quiet);
    let mut probes = CallProbes::load(&btf, &settings, &config.filter, config.tracing.buffer_bytes)?;
    drop(btf);
    let mut maps = probes.take_maps()?;
    let cost = probes.measure(&choice.addresses, &mut maps)?;
    let Some(attached) = attach(&mut probes, choice.functions, &mut signals, config, notice).await? else {
        return Ok(());
    };
    if attached.is_empty() {
        return Err(Failure::cannot_trace("none of the functions can be traced", "-v says why"));
    }
    selected.are_there()?;
    sink.begin();
    probes.watch()?;
    let later = Later { output: sink.reopened(), reads_names: true, ..Later::default() };
    privileges::give_up(&later, || maps.counters().is_ok())?;
    // Until now calls met some of the probes only.
    while maps.oldest()?.is_some() {}
    let start_ns = monotonic_ns();
    let before = maps.counters()?;
    if !config.quiet {
        say(|out| tell_start(attached.len(), choice.refused.len(), cost, out));
    }
    let mut run = Run {
        config,
        form: Form::new(config),
        functions: Functions::new(attached),
        sink,
        maps,
        span: start_ns..=u64::MAX,
        before,
        trees: Trees::default(),
        totals: Totals::default(),
        text: Vec::new(),
        written: 0,
        shown: 0,
        fast: 0,
        told: 0,
    };
    run.form.begin(&mut run.text);
    let started = Instant::now();
    let mut outcome = run.follow(&mut signals, hangup, &mut selected).await;
    let elapsed = started.elapsed();

    run.span = start_ns..=monotonic_ns();
    let counters = run.counters()?;
    let skipped = probes.missed();
    let under_way = run.maps.under_way(&run.span);
    // What has returned by now is in the buffer or just being put there.
    sleep(SETTLING).await;
    let unwritten = match outcome {
        Ok(End::Done) => match run.finish() {
            Ok(unwritten) => unwritten,
            Err(end) => {
                outcome = end;
                0
            }
        },
        _ => 0,
    };
    if config.footer != FooterFormat::None {
        let footer = Footer {
            totals: &run.totals,
            functions: &run.functions,
            elapsed,
            shown: run.shown,
            fast: run.fast,
            counters,
            under_way,
            cut: run.trees.cut,
            unwritten,
            skipped,
        };
        say(|out| footer.write(config.footer, out));
    }
    // Last, since it can take minutes.
    let notice = Notice::new(format!("detaching from {} functions …", probes.functions()), config.quiet);
    drop(probes);
    drop(notice);
    outcome.map(drop)
}

/// Attaches to the functions, and returns those that it could attach to; `None` if a signal came.
async fn attach(
    probes: &mut CallProbes,
    functions: Vec<Function>,
    signals: &mut Signals,
    config: &CallsConfig,
    notice: Notice,
) -> Result<Option<Vec<Function>>, Failure> {
    let begun = Instant::now();
    let all = functions.len();
    let mut attached = Vec::new();
    // Told when the notice has gone, which is on the same line of the screen.
    let mut messages = Vec::new();
    for (number, function) in functions.into_iter().enumerate() {
        tokio::select! {
            biased;
            () = signals.any() => return Ok(None),
            () = yield_now() => {}
        }
        match probes.attach(&function) {
            Ok(()) => attached.push(function),
            Err(reason) if config.verbose => {
                messages.push(format!("{} can't be traced: {reason}", function.name));
            }
            Err(_) => {}
        }
        notice.change(|| format!("attaching to {} of {all} functions …", number + 1));
        if begun.elapsed() > LONGEST_ATTACHING && number + 1 < all {
            messages.push(format!(
                "{} of {all} functions are skipped, since attaching took more than {} s; name fewer",
                all - number - 1,
                LONGEST_ATTACHING.as_secs()
            ));
            break;
        }
    }
    drop(notice);
    for message in messages {
        tell(message);
    }
    Ok(Some(attached))
}

/// The line that says that everything is attached.
fn tell_start(
    functions: usize,
    refused: usize,
    cost: Option<Cost>,
    out: &mut impl io::Write,
) -> io::Result<()> {
    write!(out, "net-latency: tracing {} by kprobe", counted(functions, "function"))?;
    if refused > 0 {
        write!(out, " ({refused} can't be traced, -v names them)")?;
    }
    if let Some(Cost { call_ns, within_ns }) = cost {
        write!(
            out,
            "; tracing adds {:.1} us to each call, {:.1} us of that to the call's own time",
            call_ns as f64 / 1000.0,
            within_ns as f64 / 1000.0
        )?;
    }
    writeln!(out, "; Ctrl-C ends it")
}

/// How trees are written.
enum Form {
    Graph(graph::Options),
    Indent(graph::Options, Indent),
    Json(Json),
}

impl Form {
    fn new(config: &CallsConfig) -> Self {
        let options = graph::Options { addresses: config.addresses, self_time: config.self_time };
        match (config.format, config.style) {
            (CallFormat::Json, _) => Self::Json(Json::new(config.zone)),
            (CallFormat::Text, Style::Graph) => Self::Graph(options),
            (CallFormat::Text, Style::Indent) => Self::Indent(options, Indent::default()),
        }
    }

    fn begin(&self, out: &mut Vec<u8>) {
        if let Self::Graph(options) = self {
            graph::write_head(*options, out);
        }
    }

    fn write(&mut self, tree: &Tree, functions: &Functions, clock: Clock, out: &mut Vec<u8>) {
        match self {
            Self::Graph(options) => graph::write(tree, functions, *options, out),
            Self::Indent(options, indent) => indent.write(tree, functions, *options, out),
            Self::Json(json) => json.write(tree, functions, clock, out),
        }
    }
}

struct Run<'a> {
    config: &'a CallsConfig,
    form: Form,
    functions: Functions,
    sink: Sink,
    maps: CallMaps,
    /// Entries and returns that are valid: while everything was attached.
    span: RangeInclusive<u64>,
    before: CallCounters,
    trees: Trees,
    totals: Totals,
    /// Lines for the sink, those of one read at most.
    text: Vec<u8>,
    /// Bytes of them that it has.
    written: usize,
    shown: u64,
    fast: u64,
    /// Lost calls that stderr was told of.
    told: u64,
}

impl Run<'_> {
    /// The counts since everything was attached.
    fn counters(&self) -> Result<CallCounters, Failure> {
        Ok(self.maps.counters()?.since(&self.before))
    }

    /// Reads and writes until something ends the run.
    async fn follow(
        &mut self,
        signals: &mut Signals,
        mut hangup: Option<Signal>,
        selected: &mut Selected,
    ) -> Ended {
        let ring = Some(self.maps.descriptor());
        let mut beats = Beats::new(Some((signals, selected)), self.config.duration, ring, TICK)?;
        loop {
            tokio::select! {
                biased;
                () = ends::next(hangup.as_mut()) => {
                    if let Err(ended) = pace::reopen(&mut self.sink) {
                        return ended;
                    }
                }
                beat = beats.next() => match beat? {
                    Beat::Over => return Ok(End::Done),
                    Beat::Filled => {}
                    Beat::Tick { is_second } => {
                        if is_second {
                            self.alarm()?;
                        }
                        if self.sink.reader_gone() {
                            return Ok(End::Closed);
                        }
                    }
                },
            }
            match self.read(PATIENCE) {
                Ok(_) if self.is_enough() => return Ok(End::Done),
                Ok(_) => {}
                Err(ended) => return ended,
            }
        }
    }

    /// Whether as many were shown as were requested.
    fn is_enough(&self) -> bool {
        self.config.count.is_some_and(|count| self.shown >= count.get())
    }

    /// Reads a batch of calls, and writes those that are complete; whether it got through. The error is how the run ends.
    fn read(&mut self, patience: Duration) -> Result<bool, Ended> {
        // While its reader is slow, records wait in the ring buffer, which counts what it can't hold.
        if !self.write(patience)? {
            return Ok(false);
        }
        let clock = Clock::sample();
        for _ in 0..BATCH {
            if self.is_enough() {
                break;
            }
            match self.maps.oldest() {
                Ok(Some(call)) => self.take(call, clock),
                Ok(None) => return self.write(patience),
                Err(error) => return Err(Err(error.into())),
            }
        }
        self.write(patience)?;
        Ok(self.is_enough())
    }

    /// A call has returned.
    fn take(&mut self, call: CallRecord, clock: Clock) {
        let is_valid = self.span.contains(&call.entry_ns) && self.span.contains(&call.exit_ns);
        if is_valid {
            self.totals.add(&call, &self.functions);
        } else if call.exit_ns < *self.span.start() || call.entry_ns > *self.span.end() {
            return;
        }
        let mut complete = Vec::new();
        self.trees.add(call, |tree| complete.push(tree));
        for tree in complete {
            self.show(&tree, clock);
        }
    }

    fn show(&mut self, tree: &Tree, clock: Clock) {
        // What began before everything was attached, or ended after, has not met all probes.
        let is_whole =
            |call: &CallRecord| self.span.contains(&call.entry_ns) && self.span.contains(&call.exit_ns);
        if !tree.calls.iter().all(is_whole) {
            return;
        }
        if let Some(least) = self.config.slower
            && tree.duration_ns().is_none_or(|ns| u128::from(ns) < least.as_nanos())
        {
            self.fast += u64::from(tree.has_root);
            return;
        }
        self.shown += u64::from(tree.has_root);
        self.form.write(tree, &self.functions, clock, &mut self.text);
    }

    /// Hands lines to the sink, as far as its reader takes them; whether none is left.
    fn write(&mut self, patience: Duration) -> Result<bool, Ended> {
        while self.written < self.text.len() {
            let rest = &self.text[self.written..];
            let line = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |end| end + 1);
            debug_assert!(line <= LONGEST_LINE, "a line is too long for the sink");
            if !self.sink.has_room() && !pace::flush(&mut self.sink, patience)? {
                return Ok(false);
            }
            let line = &self.text[self.written..self.written + line];
            self.sink.buffer().extend_from_slice(line);
            self.written += line.len();
        }
        self.text.clear();
        self.written = 0;
        pace::flush(&mut self.sink, patience)
    }

    /// Tells stderr of calls that are being lost.
    fn alarm(&mut self) -> Result<(), Failure> {
        let lost = Footer::lost(&self.counters()?);
        if lost > self.told && !self.config.quiet {
            say(|out| {
                let calls = counted(lost - self.told, "call");
                writeln!(out, "net-latency: {calls} lost just now; the summary at the end says why")
            });
        }
        self.told = lost;
        Ok(())
    }

    /// After everything is detached: the rest. Returns the lines that were not read.
    fn finish(&mut self) -> Result<u64, Ended> {
        while !self.read(LAST_PATIENCE)? && !self.sink.is_stalled() {}
        if !self.is_enough() {
            let mut rest = Vec::new();
            self.trees.finish(|tree| rest.push(tree));
            let clock = Clock::sample();
            for tree in rest {
                self.show(&tree, clock);
            }
        }
        if !self.sink.is_stalled() {
            self.write(LAST_PATIENCE)?;
        }
        let lines = self.text[self.written..].iter().filter(|&&byte| byte == b'\n').count();
        Ok(lines as u64 + self.sink.waiting_lines())
    }
}

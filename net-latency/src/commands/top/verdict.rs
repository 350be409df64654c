//! What makes the packets of the last seconds slow, by the model and the verdict of `diagnose`.

use crate::{
    accounting::Losses,
    clock::monotonic_ns,
    diagnosis::{Headline, Model, Recent},
    kernel::{owners, ports},
    packet::event::Event,
    request::{THRESHOLD, TopConfig, TopInput},
};

/// Between two verdicts, ns: people don't read faster. A little less than the usual delay, so that each of those screens has a new one.
const PAUSE_NS: u64 = 900_000_000;

/// The verdict, and what it rests on.
pub(super) struct Verdict {
    /// Nothing where the filter leaves only some of the packets.
    recent: Option<Recent>,
    headline: Headline,
    /// When it was judged, on the monotonic clock, and whether nothing more came then.
    judged: Option<(u64, bool)>,
}

impl Verdict {
    /// Of the wanted packets, from `now_ns` on.
    pub(super) fn new(config: &TopConfig, now_ns: u64) -> Self {
        let is_live = matches!(config.input, TopInput::Kernel(_));
        let recent = || {
            let model = Model::new(THRESHOLD, ports::ephemeral());
            if is_live {
                Recent::new(model.with_owners(owners::of), now_ns).with_sensors()
            } else {
                Recent::new(model, now_ns)
            }
        };
        let recent = (!config.filter.is_only_some()).then(recent);
        let headline = match recent {
            Some(_) => Headline::default(),
            None => Headline::without("No verdict: with --slower and --sample only some packets are seen"),
        };
        Self { recent, headline, judged: None }
    }

    /// Later records happen at `now_ns`; `lost` are the losses by now.
    pub(super) fn advance(&mut self, now_ns: u64, lost: &Losses) {
        if let Some(recent) = &mut self.recent {
            recent.advance(now_ns, lost);
        }
    }

    /// Adds a packet.
    pub(super) fn record(&mut self, event: &Event<'_>) {
        if let Some(recent) = &mut self.recent {
            recent.record(event);
        }
    }

    /// Judges anew, if the last time was about a second ago or everything `is_over` since. A log does not know the losses.
    pub(super) fn refresh(&mut self, lost: Option<&Losses>, is_over: bool) {
        let now_ns = monotonic_ns();
        let is_new = self.judged.is_some_and(|(judged_ns, was_over)| {
            was_over == is_over && now_ns.saturating_sub(judged_ns) < PAUSE_NS
        });
        if let Some(recent) = self.recent.as_mut().filter(|_| !is_new) {
            self.headline = recent.headline(lost);
            self.judged = Some((now_ns, is_over));
        }
    }

    /// The last verdict.
    pub(super) fn headline(&self) -> &Headline {
        &self.headline
    }
}

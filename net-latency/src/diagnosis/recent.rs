//! The verdict on what came just now: two models that take turns.

use super::{headline::Headline, machine::Sensors, model::Model, verdict::judge};
use crate::{accounting::Losses, kernel::cpus::Sample, packet::event::Event};

/// After so long the younger model takes the older one's place, ns: the verdict is on one to two of these.
const TURN_NS: u64 = 5_000_000_000;

/// The packets of the last five to ten seconds. Its size is bounded as that of a [`Model`] is.
#[derive(Clone, Debug)]
pub struct Recent {
    /// This one is judged.
    older: Turn,
    /// It takes its place.
    younger: Turn,
    now_ns: u64,
    packets: u64,
    /// `None` for a log.
    sensors: Option<Sensors>,
}

/// A model, and since when it collects.
#[derive(Clone, Debug)]
struct Turn {
    model: Model,
    began_ns: u64,
    /// What had been lost by then, and what the machine had said.
    lost: Losses,
    before: Sample,
}

impl Turn {
    /// Collects from now on.
    fn begin(&mut self, now_ns: u64, lost: Losses, before: Sample) {
        self.model.clear();
        (self.began_ns, self.lost, self.before) = (now_ns, lost, before);
    }
}

impl Recent {
    /// Two turns of this model, which has seen nothing, at `now_ns` of any clock.
    #[must_use]
    pub fn new(model: Model, now_ns: u64) -> Self {
        let turn = Turn { model, began_ns: now_ns, lost: Losses::default(), before: Sample::default() };
        Self { older: turn.clone(), younger: turn, now_ns, packets: 0, sensors: None }
    }

    /// For this machine, whose CPUs it looks at.
    pub(crate) fn with_sensors(mut self) -> Self {
        let sensors = Sensors::start(self.now_ns);
        self.older.before = sensors.mark();
        self.younger.before = sensors.mark();
        self.sensors = Some(sensors);
        self
    }

    /// Later records happen at `now_ns`; `lost` are the losses until now.
    pub fn advance(&mut self, now_ns: u64, lost: &Losses) {
        self.now_ns = now_ns.max(self.now_ns);
        match self.now_ns - self.younger.began_ns {
            ..TURN_NS => {}
            passed => {
                std::mem::swap(&mut self.older, &mut self.younger);
                let mark = || self.sensors.as_ref().map(Sensors::mark).unwrap_or_default();
                self.younger.begin(self.now_ns, *lost, mark());
                // Nothing was seen for so long that it is no longer of the last seconds.
                if passed >= 2 * TURN_NS {
                    self.older.begin(self.now_ns, *lost, mark());
                }
            }
        }
    }

    /// Adds a packet.
    pub fn record(&mut self, event: &Event<'_>) {
        self.packets += 1;
        self.older.model.record(event);
        self.younger.model.record(event);
    }

    /// The verdict in a line. `lost` are the losses by now; a log does not know them.
    pub(crate) fn headline(&mut self, lost: Option<&Losses>) -> Headline {
        let Turn { model, began_ns, lost: before, before: sample } = &mut self.older;
        model.settle_idle();
        if let Some(sensors) = &mut self.sensors {
            sensors.look_at_cpus(self.packets);
            sensors.look(model.processes(), self.now_ns);
            model.set_machine(sensors.since(sample));
        }
        let lost = lost.map(|lost| lost.since(before));
        Headline::of(&judge(model, lost.as_ref()), self.now_ns - *began_ns)
    }
}

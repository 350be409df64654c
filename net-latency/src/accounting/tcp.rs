//! Figures of TCP connections beside the times of their packets: round trips, retransmissions, closed windows, and how long answers took.

use std::fmt::Write as _;

use net_latency_common::{Direction, FLAG_ZERO_WINDOW};
use serde::{Serialize, Serializer};

use super::{
    Ends, Figures, Human, Packet, Percentiles, Places, Times,
    exchanges::{Answers, Exchanges, Outcome, Role, Turn},
    transit::{Passage, Transits},
};
use crate::packet::event::{Event, Protocol};

/// What of a packet of TCP with data matters here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    /// Its turn, of one that is sent for the first time, or received; `None` of one that is sent again.
    pub turn: Option<Turn>,
    /// Which way it goes.
    pub direction: Direction,
    /// Segments that it holds.
    pub segs: u16,
    /// The smoothed round-trip time when it was sent, ns.
    pub rtt_ns: Option<u64>,
    /// How many segments the peer had said to have twice by then ([`net_latency_common::PacketRecord::dsacks`]).
    pub dsacks: Option<u16>,
    /// Whether it met a closed window; `None` where that is not looked at.
    pub met_zero_window: Option<bool>,
    /// Its way between both ends; `None` where they are not known.
    pub passage: Option<Passage>,
}

impl Segment {
    /// The segment of an event; `None` if it has no data, or is not TCP.
    #[must_use]
    pub(crate) fn of(event: &Event<'_>) -> Option<Self> {
        Self::of_packet(event, &Packet::of_log(event))
    }

    /// [`Self::of`] an event that is that packet.
    pub(crate) fn of_packet(event: &Event<'_>, packet: &Packet<'_>) -> Option<Self> {
        if event.protocol() != Protocol::Tcp || event.is_control() {
            return None;
        }
        let record = event.record();
        let is_again = event.is_retransmission();
        let turn = || Turn::of(packet, event.seq(), record.len);
        Some(Self {
            turn: (!is_again).then(turn),
            direction: event.direction(),
            segs: record.segs,
            rtt_ns: event.rtt_ns(),
            dsacks: event.dsacks(),
            met_zero_window: event.parts().map(|_| record.flags & FLAG_ZERO_WINDOW != 0),
            passage: Passage::of(event, packet),
        })
    }
}

/// News about a connection from one of its segments.
#[derive(Clone, Copy, Debug, Default)]
pub struct News {
    /// See [`Segment::rtt_ns`].
    pub rtt_ns: Option<u64>,
    /// Segments sent, for the first time or again.
    pub sent: u64,
    /// Those that were sent again.
    pub resent: u64,
    /// Those that the peer had already, as its DSACKs say.
    pub needless: u64,
    /// See [`Segment::met_zero_window`].
    pub met_zero_window: Option<bool>,
    /// An exchange is over.
    pub answer: Option<(Role, Outcome)>,
    /// Nothing more will come of the connection, and no further request confirms that exchange.
    pub is_last: bool,
}

/// How many segments a peer has said to have got twice, when it was last told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dsacks(Option<u16>);

impl Dsacks {
    /// How many more than that.
    pub(crate) fn tell(&mut self, count: u16) -> u64 {
        // From the first that is told on, which is that of the first segment sent again.
        let more = count.wrapping_sub(self.0.unwrap_or(count));
        // A line that comes late tells an older count.
        if more > u16::MAX / 2 {
            return 0;
        }
        self.0 = Some(count);
        u64::from(more)
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Conversation {
    exchanges: Exchanges,
    dsacks: Dsacks,
}

impl Conversation {
    /// Takes the next segment of this end. Without a role nothing is known of exchanges.
    pub(crate) fn see(&mut self, role: Option<Role>, segment: &Segment) -> News {
        let segs = match segment.direction {
            Direction::In => 0,
            Direction::Out => u64::from(segment.segs),
        };
        let answer = role.zip(segment.turn).and_then(|(role, turn)| {
            let outcome = self.exchanges.see(role, &turn)?;
            Some((role, outcome))
        });
        News {
            rtt_ns: segment.rtt_ns,
            sent: segs,
            resent: if segment.turn.is_none() { segs } else { 0 },
            needless: segment.dsacks.map_or(0, |count| self.dsacks.tell(count)),
            met_zero_window: segment.met_zero_window,
            answer,
            is_last: false,
        }
    }

    /// Nothing more will come.
    pub(crate) fn finish(&mut self, role: Option<Role>) -> News {
        let answer = role.zip(self.exchanges.finish());
        News { answer, is_last: true, ..News::default() }
    }
}

/// The figures of one connection, or of several together.
#[derive(Clone, Debug, Default)]
pub struct Tcp {
    /// Whether there was a segment with data.
    is_seen: bool,
    rtt: Times,
    transit: Times,
    sent: u64,
    resent: u64,
    needless: u64,
    zero_windows: Option<u64>,
    service: Answers,
    response: Answers,
}

impl Tcp {
    /// Adds what a segment has brought.
    pub fn add(&mut self, news: &News) {
        self.is_seen |= !news.is_last;
        if let Some(ns) = news.rtt_ns {
            self.rtt.add(ns);
        }
        self.sent += news.sent;
        self.resent += news.resent;
        self.needless += news.needless;
        if let Some(met) = news.met_zero_window {
            *self.zero_windows.get_or_insert(0) += u64::from(met);
        }
        match news.answer {
            Some((Role::Server, outcome)) => self.service.add(outcome, news.is_last),
            Some((Role::Client, outcome)) => self.response.add(outcome, news.is_last),
            None => {}
        }
    }

    /// Adds how long a segment took from its sender's device to here ([`Transits`]).
    pub fn add_transit(&mut self, ns: u64) {
        self.transit.add(ns);
    }

    /// Forgets all and keeps the memory.
    pub fn clear(&mut self) {
        self.is_seen = false;
        self.rtt.clear();
        self.transit.clear();
        (self.sent, self.resent, self.needless, self.zero_windows) = (0, 0, 0, None);
        self.service.clear();
        self.response.clear();
    }

    /// These figures, if there was a segment with data.
    #[must_use]
    pub fn seen(&self) -> Option<&Self> {
        self.is_seen.then_some(self)
    }

    /// In a few words, for a line of a table; nothing where there is nothing to say.
    #[must_use]
    pub fn words(&self) -> String {
        let mut words = String::new();
        let mut part = |text: String| {
            // To a string nothing fails.
            let _ = write!(words, "{}{text}", if words.is_empty() { "" } else { "; " });
        };
        if let Some(p50) = self.rtt.quantile(500) {
            part(format!("rtt p50 {}", Human(p50)));
        }
        if let Some(p50) = self.transit.quantile(500) {
            part(format!("transit p50 {}", Human(p50)));
        }
        if self.resent > 0 {
            part(format!("{} of {} segments sent again", self.resent, self.sent));
        }
        if self.needless > 0 {
            part(format!("{} needlessly", self.needless));
        }
        if let Some(count) = self.zero_windows.filter(|count| *count > 0) {
            part(format!("{count} met a zero window"));
        }
        for (name, answers) in [("service", &self.service), ("response", &self.response)] {
            let times = answers.times();
            if let (Some(p50), Some(p99)) = (times.quantile(500), times.quantile(990)) {
                part(format!("{name} p50 {}, p99 {}", Human(p50), Human(p99)));
            } else if !answers.is_empty() {
                part(format!("{name} -"));
            }
        }
        words
    }

    /// Half of the smoothed round-trip times do not exceed this; and so of transit, service and response times.
    #[must_use]
    pub fn medians(&self) -> [Option<u64>; 4] {
        let [rtt, transit] = [&self.rtt, &self.transit].map(|times| times.quantile(500));
        let [service, response] =
            [&self.service, &self.response].map(|answers| answers.times().quantile(500));
        [rtt, transit, service, response]
    }

    /// Segments sent again, and those of them that the peer had already.
    #[must_use]
    pub fn sent_again(&self) -> (u64, u64) {
        (self.resent, self.needless)
    }
}

#[derive(Serialize)]
struct Spread {
    count: u64,
    min_ns: Option<u64>,
    #[serde(flatten)]
    percentiles: Percentiles,
}

impl From<&Times> for Spread {
    fn from(times: &Times) -> Self {
        let Figures { count, min_ns, percentiles, .. } = times.figures();
        Self { count, min_ns, percentiles }
    }
}

impl Serialize for Tcp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Object<'a> {
            rtt: Spread,
            transit: Spread,
            segments_sent: u64,
            segments_sent_again: u64,
            sent_needlessly: u64,
            zero_windows: Option<u64>,
            service: &'a Answers,
            response: &'a Answers,
        }
        let object = Object {
            rtt: (&self.rtt).into(),
            transit: (&self.transit).into(),
            segments_sent: self.sent,
            segments_sent_again: self.resent,
            sent_needlessly: self.needless,
            zero_windows: self.zero_windows,
            service: &self.service,
            response: &self.response,
        };
        object.serialize(serializer)
    }
}

/// The connections of a run together. Those that were not used for longest are over when there are too many.
#[derive(Clone, Debug)]
pub struct Connections {
    ephemeral: Option<u32>,
    ends: Places<Ends, Conversation>,
    transits: Transits<()>,
    tcp: Tcp,
}

impl Connections {
    /// None yet. The kernel gives out `ephemeral` ports to clients, as [`Role::of`] takes them. Without them nothing is known of
    /// requests and answers, as where only some packets are seen.
    #[must_use]
    pub fn new(ephemeral: Option<u32>) -> Self {
        Self { ephemeral, ends: Places::new(), transits: Transits::default(), tcp: Tcp::default() }
    }

    /// Adds a packet.
    pub fn record(&mut self, event: &Event<'_>) {
        let Some(segment) = Segment::of(event) else { return };
        let Self { ephemeral, ends: places, transits, tcp } = self;
        let ends = Ends::of(event);
        let settle = |old: &Ends, conversation: &mut Conversation| {
            tcp.add(&conversation.finish(old.role(*ephemeral)));
        };
        let news =
            places.find(&ends, (event.record().pid.into(), 0), settle).see(ends.role(*ephemeral), &segment);
        tcp.add(&news);
        if let Some(((), ns)) = segment.passage.and_then(|passage| transits.see(&passage, ())) {
            tcp.add_transit(ns);
        }
    }

    /// Nothing more will come.
    pub fn finish(&mut self) {
        let Self { ephemeral, ends, tcp, .. } = self;
        for (ends, conversation) in ends.iter_mut() {
            tcp.add(&conversation.finish(ends.role(*ephemeral)));
        }
    }

    /// Forgets the counts, but not how far connections are.
    pub fn clear(&mut self) {
        self.tcp.clear();
    }

    /// All of them together.
    #[must_use]
    pub fn tcp(&self) -> &Tcp {
        &self.tcp
    }
}

#[cfg(test)]
mod tests {
    use net_latency_common::{FLAG_CONTROL, FLAG_RETRANS, PacketRecord, STAMP_APP, STAMP_DRV};
    use serde_json::json;

    use super::*;
    use crate::packet::event::fixtures::{incoming, outgoing, udp};

    const RANGE: u32 = 32_768 | 60_999 << 16;

    /// At N us the client writes, or reads what came 5 us before. Each packet has 100 bytes.
    fn at(us: u64, record: PacketRecord, number: u32) -> (PacketRecord, i64) {
        let mut record = PacketRecord { seq: number * 100, len: 100, ..record };
        let us = us * 1_000;
        let last = if record.direction == Direction::In as u8 {
            record.stamps = [us - 5_000, us - 4_000, us - 3_000, us];
            STAMP_APP
        } else {
            record.stamps = [us + 3_000, us + 2_000, us + 1_000, us];
            STAMP_DRV
        };
        (record, record.stamps[last] as i64)
    }

    fn connections(packets: &[(PacketRecord, i64)]) -> Connections {
        let mut connections = Connections::new(Some(RANGE));
        for (record, wall_ns) in packets {
            connections.record(&Event::new(record, *wall_ns, None));
        }
        connections.finish();
        connections
    }

    #[test]
    fn a_client_has_response_times() {
        let packets = [
            at(100, outgoing(), 0),
            at(250, incoming(), 0),
            at(300, outgoing(), 1),
            at(400, outgoing(), 2),
            at(505, incoming(), 1),
        ];
        let seen = connections(&packets);
        let value = serde_json::to_value(seen.tcp()).expect("JSON");
        assert_eq!(value["response"]["count"], 2);
        // From 100 to 245 us, and from 400 to 500 us.
        assert_eq!(
            (&value["response"]["min_ns"], &value["response"]["max_ns"]),
            (&json!(100_000), &json!(145_000))
        );
        assert_eq!(value["service"]["count"], 0);
        assert_eq!(value["segments_sent"], 3);
        assert_eq!(value["zero_windows"], json!(null));
        assert_eq!(seen.tcp().words(), "response p50 100 us, p99 145 us");
    }

    #[test]
    fn round_trips_and_what_is_sent_again_are_counted() {
        let mut packets =
            [at(100, outgoing(), 0), at(200, outgoing(), 0), at(300, outgoing(), 1), at(400, outgoing(), 2)];
        // Eighths of a microsecond.
        packets[0].0.rtt_or_holder = 8_000;
        packets[1].0.flags = FLAG_RETRANS;
        packets[1].0.segs = 2;
        // It had said so before, about segments sent before tracing began.
        packets[1].0.dsacks = 5;
        packets[2].0.dsacks = 7;
        // Late.
        packets[3].0.dsacks = 6;
        let tcp = connections(&packets).tcp().clone();
        assert_eq!(tcp.sent_again(), (2, 2));
        assert_eq!(tcp.medians(), [Some(1_000_000), None, None, None]);
        assert_eq!(tcp.words(), "rtt p50 1.00 ms; 2 of 5 segments sent again; 2 needlessly");
    }

    #[test]
    fn a_count_of_dsacks_may_begin_anew() {
        let mut dsacks = Dsacks::default();
        let counts = [u16::MAX - 1, u16::MAX, 1, 1];
        assert_eq!(counts.map(|count| dsacks.tell(count)), [0, 1, 2, 0]);
    }

    #[test]
    fn packets_without_data_and_datagrams_say_nothing() {
        let control = PacketRecord { flags: FLAG_CONTROL, rtt_or_holder: 8, ..outgoing() };
        for record in [control, udp(outgoing())] {
            assert!(Segment::of(&Event::new(&record, 0, None)).is_none());
        }
    }
}

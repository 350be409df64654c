//! Everything that a report tells, gathered in memory that doesn't depend on the logs' length.

use super::table::{Owner, Table};
use super::timeline::Timeline;
use crate::accounting::{self as summary, Ends, Worst, tcp::Segment, transit::Transits};
use crate::diagnosis::{Model, Verdict, judge};
use crate::kernel::ports;
use crate::packet::event::{Event, FLAGS};
use crate::request::{ReportConfig, THRESHOLD};
use crate::source::log::read::Tally;

/// Processes told apart at a time.
const PROCESSES: usize = 1_024;
/// Connections told apart at a time.
const CONNECTIONS: usize = 2_048;

#[derive(Debug)]
pub(super) struct Report {
    pub(super) log: Tally,
    /// Packets that are reported.
    pub(super) packets: u64,
    /// First and last completion, in ns since 1970.
    pub(super) span: Option<(i64, i64)>,
    /// The offset of the clock by which the first packet's time was told, in seconds east of Greenwich.
    pub(super) offset_s: i32,
    pub(super) flags: [u64; FLAGS.len()],
    pub(super) stages: summary::Table,
    pub(super) worst: Worst,
    pub(super) processes: Table<Owner>,
    pub(super) connections: Table<Ends>,
    pub(super) timeline: Timeline,
    transits: Transits<(Ends, Owner)>,
    /// Ports of clients, as [`Ends::role`] takes them, where requests and answers are followed: not if some packets are left out.
    ephemeral: Option<u32>,
    /// What makes it slow; there too, and of one log alone: several come in any order.
    model: Option<Model>,
}

impl Report {
    /// Nothing read yet.
    pub(super) fn new(files: usize, config: &ReportConfig) -> Self {
        Self {
            log: Tally { files, ..Tally::default() },
            packets: 0,
            span: None,
            offset_s: 0,
            flags: [0; FLAGS.len()],
            stages: summary::Table::default(),
            worst: Worst::keeping(config.top),
            processes: Table::new(PROCESSES),
            connections: Table::new(CONNECTIONS),
            timeline: Timeline::new(config.interval),
            transits: Transits::default(),
            ephemeral: config.filter.slower.is_none().then(ports::ephemeral_word),
            model: (files == 1 && config.filter.slower.is_none())
                .then(|| Model::new(THRESHOLD, ports::ephemeral())),
        }
    }

    /// Nothing more will come that belongs to what came before: exchanges in two logs are not put together.
    pub(super) fn finish(&mut self) {
        if let Some(model) = &mut self.model {
            model.finish();
        }
        for (connection, entry) in self.connections.iter_mut() {
            let news = entry.finish(connection.role(self.ephemeral));
            if let Some(process) = entry.owner.and_then(|owner| self.processes.get_mut(&owner)) {
                process.tcp.add(&news);
            }
        }
    }

    /// What makes it slow, if that can be judged.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        self.model.as_ref().map(|model| judge(model, None))
    }

    /// Adds a packet whose time was told by a clock N seconds east of Greenwich.
    pub(super) fn add(&mut self, event: &Event<'_>, offset_s: i32) {
        self.packets += 1;
        if let Some(model) = &mut self.model {
            model.record(event);
        }
        let wall_ns = event.wall_ns();
        self.span = Some(match self.span {
            Some((first, last)) => (first.min(wall_ns), last.max(wall_ns)),
            None => {
                self.offset_s = offset_s;
                (wall_ns, wall_ns)
            }
        });
        event.count_flags(&mut self.flags);
        let packet = summary::Packet::of_log(event);
        self.stages.record(&packet);
        self.worst.record(&packet);
        let owner = Owner::of(event);
        let process = self.processes.add(owner, owner, event, &packet);
        if let Some(connection) = Ends::known(event) {
            let entry = self.connections.add(connection, owner, event, &packet);
            if let Some(segment) = Segment::of_packet(event, &packet) {
                process.tcp.add(&entry.converse(connection.role(self.ephemeral), &segment));
                let receiver = (connection, owner);
                let told = segment.passage.and_then(|passage| self.transits.see(&passage, receiver));
                if let Some(((connection, owner), ns)) = told {
                    let [connection, process] =
                        [self.connections.get_mut(&connection), self.processes.get_mut(&owner)];
                    for entry in [connection, process].into_iter().flatten() {
                        entry.tcp.add_transit(ns);
                    }
                }
            }
        }
        if let Some(total_ns) = packet.total {
            self.timeline.add(wall_ns, packet.direction, total_ns);
        }
    }
}

//! The truth about what threads did to answer, from their last read of a connection to their call to write to it. And whether a line says
//! that (`crate::service`).

use std::{format, string::String, vec::Vec};

use net_latency_common::{FLAG_CONTROL, FLAG_RETRANS, FineRecord, STAMP_TRANSPORT, Served, Unknown, part};

use super::{
    out::Source,
    reader_truth::What,
    truth::{Answer, Call, Hook, Place, Truth},
};

impl Truth {
    /// That call has read from the socket there. Of a task that the filter does not want it counts if that is one by names, of TCP: a task may
    /// have another name soon.
    pub(super) fn has_read(&mut self, socket: Place, call: usize) {
        let Call { is_wanted, is_skipped, ids, .. } = self.calls[call];
        if !is_skipped && (is_wanted || socket.1 == 0 && self.is_by_name) {
            self.forgets_request(socket);
            self.services.asked.push((socket, call));
            self.scheduled.note(ids as u32, What::HasRead, call);
        }
    }

    /// That call begins to write to it. Of TCP it counts, whoever does so: a wanted task has used the connection.
    pub(super) fn begins_to_write(&mut self, socket: Place, call: usize) {
        let Call { is_wanted, is_skipped, .. } = self.calls[call];
        if !is_skipped && (is_wanted || socket.1 == 0) {
            let read = self.forgets_request(socket);
            self.services.answers.extend(read.map(|read| Answer { read, written: call }));
        }
    }

    /// Nothing is read from it that has no answer yet. Which call had read that.
    pub(super) fn forgets_request(&mut self, socket: Place) -> Option<usize> {
        let asked = &mut self.services.asked;
        let place = asked.iter().position(|(of, _)| *of == socket)?;
        Some(asked.swap_remove(place).1)
    }

    /// Whether what a line says of an answer is true. `is_whole`: whether all that was done was seen.
    pub(super) fn check_served(&self, line: &FineRecord, is_whole: bool) -> Result<(), String> {
        let FineRecord { packet: record, served, .. } = line;
        let sent = self.call_at(record.stamps[STAMP_TRANSPORT]).ok_or("sent at no time")?;
        let packet = &self.out.packets[sent.about];
        let end = packet.start + u64::from(packet.len);
        // Of which stream a call's bytes are, and where they begin.
        let start = |answer: &Answer| {
            let first = self.out.writes.iter().find(|write| write.call == answer.written);
            first.map(|write| (Source::Socket(write.socket), write.start))
        };
        let is_new = packet.flags & (FLAG_CONTROL | FLAG_RETRANS) == 0;
        let is_in = |answer: &&Answer| match packet.source {
            Source::Thread(_) => packet.app == Some(answer.written),
            of => {
                is_new
                    && start(answer).is_some_and(|(its, at)| its == of && (packet.start..end).contains(&at))
            }
        };
        let mut its = self.services.answers.iter().filter(is_in);
        let is_of_one = |answer: &Answer| self.calls[answer.read].ids == self.calls[answer.written].ids;
        match part(served.all) {
            Ok(0) => {}
            Ok(all) => {
                let is_it = |answer: &Answer| is_of_one(answer) && self.is_said(answer, served, all);
                return if its.clone().any(is_it) {
                    Ok(())
                } else {
                    let its: Vec<_> = its.map(|answer| (answer, self.did_off_cpu(answer))).collect();
                    Err(format!("{served:?} was not done for any of {its:?}"))
                };
            }
            Err(Unknown::OtherThread) if its.clone().all(is_of_one) => {
                return Err("answered by the thread that has read".into());
            }
            Err(_) if its.clone().next().is_none() => return Err("no answer begins here".into()),
            Err(_) => {}
        }
        // Sockets of UDP share places.
        let is_whole = is_whole && matches!(packet.source, Source::Socket(_));
        let Some(last) = its.next_back().filter(|_| is_whole) else { return Ok(()) };
        let sent = self.calls.iter().position(|call| call.hook == Hook::Sent && call.about == sent.about);
        // The next answer takes the place of one that is on its way.
        let is_last = !self.services.answers.iter().any(|other| {
            last.written < other.written
                && start(other).is_some_and(|(of, _)| of == packet.source)
                && Some(other.written) < sent
        });
        let is_seen = self.scheduled.is_seen(self.calls[last.read].ids as u32, last.read)
            && self.did_off_cpu(last).is_some()
            && is_last;
        if is_seen && is_of_one(last) { Err(format!("{served:?} of {last:?}")) } else { Ok(()) }
    }

    /// Whether that is what the thread did for an answer.
    fn is_said(&self, answer: &Answer, served: &Served, all: u64) -> bool {
        let [read, written] = [answer.read, answer.written].map(|call| &self.calls[call]);
        // Each has looked at the clock at some time of it.
        let is_all = written.from + 1 - read.to <= all && all < written.to - read.from;
        let said = [served.asleep, served.waited];
        is_all && self.did_off_cpu(answer).is_some_and(|did| did == said)
    }

    /// For how long the thread that has read was asleep, and then waited for a CPU, before it wrote; nothing if that can't be known.
    fn did_off_cpu(&self, answer: &Answer) -> Option<[u64; 2]> {
        self.scheduled.off_cpu(self.calls[answer.read].ids as u32, answer.read, answer.written)
    }
}

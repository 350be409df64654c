//! The last minutes, in memory of a bounded size: blocks, of which the oldest goes first.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use super::block::{Block, Packer};

/// Blocks, and the packets that wait to be one.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Each with the time at which it was complete: the clock on the wall may be set.
    blocks: VecDeque<(Instant, Arc<Block>)>,
    /// Bytes of `blocks`.
    bytes: usize,
    /// Packets of `blocks`.
    packets: u64,
    /// Bytes that all of it may take.
    most: usize,
    /// Blocks go that have been complete for longer.
    last: Duration,
    /// What packets are put into.
    pub(crate) packer: Packer,
    /// Packets that found no room: all older ones were being written to a file.
    refused: u64,
}

impl Ring {
    /// Holds nothing yet.
    pub(crate) fn new(most: usize, last: Duration) -> Self {
        Self {
            blocks: VecDeque::new(),
            bytes: 0,
            packets: 0,
            most,
            last,
            packer: Packer::default(),
            refused: 0,
        }
    }

    /// Makes a block of what waits for it, if that is enough or `is_due`; lets those go that there is no room for.
    #[inline(always)]
    pub(crate) fn turn(&mut self, is_due: bool) {
        if !self.packer.is_full() && !is_due {
            return;
        }
        if let Some(block) = self.packer.finish() {
            self.keep(block, Instant::now());
        }
    }

    /// Keeps a block that is complete now.
    fn keep(&mut self, block: Block, now: Instant) {
        let last = self.last;
        let is_old = |(complete, _): &(Instant, _)| now.duration_since(*complete) > last;
        while self.blocks.front().is_some_and(is_old) && self.forget() {}
        let room = self.most.saturating_sub(self.packer.size());
        while self.bytes + block.size() > room {
            if !self.forget() {
                self.refused += u64::from(block.rows);
                return;
            }
        }
        self.bytes += block.size();
        self.packets += u64::from(block.rows);
        self.blocks.push_back((now, Arc::new(block)));
    }

    /// Lets the oldest block go; not if a file that is being written still needs it, since its memory would stay.
    fn forget(&mut self) -> bool {
        let is_free = |(_, front): &mut (Instant, Arc<Block>)| Arc::strong_count(front) == 1;
        let Some((_, front)) = self.blocks.pop_front_if(is_free) else { return false };
        self.bytes -= front.size();
        self.packets -= u64::from(front.rows);
        true
    }

    /// The blocks of the last minutes, the oldest first.
    pub(crate) fn held(&self) -> Vec<Arc<Block>> {
        let young = self.blocks.iter().filter(|(complete, _)| complete.elapsed() <= self.last);
        young.map(|(_, block)| Arc::clone(block)).collect()
    }

    /// Bytes of memory that it takes, and packets that it holds.
    pub(crate) fn size(&self) -> (usize, u64) {
        (self.bytes + self.packer.size(), self.packets + u64::from(self.packer.rows()))
    }

    /// Bytes of memory that a packet takes, in blocks that are complete.
    pub(crate) fn bytes_per_packet(&self) -> Option<f64> {
        (self.packets > 0).then(|| self.bytes as f64 / self.packets as f64)
    }

    /// Packets that found no room.
    pub(crate) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Clock,
        packet::event::{Found, fixtures::incoming},
        recording::block::Rows,
    };
    use net_latency_common::PacketRecord;

    /// Puts a block's worth of packets, which begins with that number.
    fn put(ring: &mut Ring, number: u32) {
        while {
            let record =
                PacketRecord { seq: number + ring.packer.rows().wrapping_mul(0x9e37_79b9), ..incoming() };
            ring.packer.pack(&record, None, None, Found::default);
            ring.turn(false);
            ring.packer.rows() > 0
        } {}
    }

    /// The number that a block begins with.
    fn number(block: &Block) -> u32 {
        let block = Block { rows: block.rows, bytes: block.bytes.clone() };
        Rows::of(block).next().expect("a packet").record.seq
    }

    fn full(most: usize, blocks: u32) -> Ring {
        let mut ring = Ring::new(most, Duration::from_secs(3_600));
        (0..blocks).for_each(|number| put(&mut ring, number));
        ring
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes() {
        const MOST: usize = 4 << 20;
        let mut ring = full(MOST, 2);
        for number in 2..100 {
            put(&mut ring, number);
            assert!(ring.size().0 <= MOST, "{} bytes", ring.size().0);
        }
        let held = ring.held();
        let numbers: Vec<_> = held.iter().map(|block| number(block)).collect();
        assert!(numbers.len() > 10 && numbers.len() < 98, "{numbers:?}");
        assert_eq!(numbers, Vec::from_iter(100 - numbers.len() as u32..100));
        assert_eq!(ring.refused(), 0);
        assert_eq!(ring.size().1, held.iter().map(|block| u64::from(block.rows)).sum::<u64>());
    }

    #[test]
    fn what_is_older_than_the_last_minutes_goes_however_the_clock_is_set() {
        let mut ring = Ring::new(64 << 20, Duration::from_secs(10));
        let begun = Instant::now();
        for second in 0..40 {
            ring.packer.set_clock(Clock::at([0, -5, 7][second as usize % 3] * 3_600_000_000_000));
            ring.packer.pack(&incoming(), None, None, Found::default);
            let block = ring.packer.finish().expect("a packet");
            ring.keep(block, begun + Duration::from_secs(second));
        }
        assert_eq!(ring.blocks.len(), 11);
        assert_eq!(ring.size().1, 11);
    }

    #[test]
    fn blocks_of_a_file_that_is_written_stay_and_the_bound_holds() {
        const MOST: usize = 4 << 20;
        let mut ring = full(MOST, 100);
        let writing = ring.held();
        for number in 100..120 {
            put(&mut ring, number);
            assert!(ring.size().0 <= MOST);
        }
        assert!(ring.refused() > 0);
        assert!(writing.iter().all(|block| Arc::strong_count(block) == 2), "none is lost to the file");
        let refused = ring.refused();
        drop(writing);
        put(&mut ring, 120);
        assert_eq!(ring.refused(), refused, "there is room again");
    }
}

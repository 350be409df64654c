//! Why the time of a stage is not known.

use crate::{Direction, FLAG_AMBIGUOUS, FLAG_RETRANS, FLAG_WRITE_EVICTED, STAMPS};

/// Why the time between two stages of a packet is not known. The discriminant indexes arrays of [`UNKNOWNS`] counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Unknown {
    /// The packet crossed the stage before every hook was attached.
    BeforeStart,
    /// The stage left no stamp of the packet's skb: the kernel skipped the hook, the skb was replaced on the way, or
    /// another's stamp took its place.
    NoStamp,
    /// Several copies of a received segment came before it was read, and none is known to be the one that was.
    Ambiguous,
    /// A sent segment holds bytes that had been sent before, by an earlier write call.
    SentBefore,
    /// The call that wrote the bytes is not known: it came before every hook was attached, the kernel skipped it, or another call on that
    /// socket waited in the kernel meanwhile.
    WriteUnseen,
    /// The call that wrote the bytes was seen, and evicted from a full map before they were sent.
    WriteEvicted,
    /// The stamps contradict each other: one of them can't be this packet's.
    Contradictory,
    /// Of fine stages: the reader's call for the bytes was not seen, or when bytes before them came.
    ReaderUnseen,
    /// Of fine stages: the device's queue dropped it.
    QueueDrop,
    /// Of fine stages: TCP sent its bytes again, so that no ACK is known to be this one's.
    SentAgain,
    /// Of fine stages: no ACK came before its connection, or the run, was at its end.
    Unacknowledged,
    /// Of fine stages: more segments waited for their ACKs, or in queues, than there is room for.
    NoRoom,
    /// Of the work for an answer: another thread had read the request.
    OtherThread,
}

/// How many reasons there are.
pub const UNKNOWNS: usize = Unknown::ALL.len();

impl Unknown {
    /// All reasons, in the order of their discriminants.
    pub const ALL: [Self; 13] = [
        Self::BeforeStart,
        Self::NoStamp,
        Self::Ambiguous,
        Self::SentBefore,
        Self::WriteUnseen,
        Self::WriteEvicted,
        Self::Contradictory,
        Self::ReaderUnseen,
        Self::QueueDrop,
        Self::SentAgain,
        Self::Unacknowledged,
        Self::NoRoom,
        Self::OtherThread,
    ];

    /// Why a packet's time between two of its stages is not known. `stages` are all its stamps in the order in which it
    /// crosses them, 0 where there is none; `from` and `to` index the two; `start` is when every hook was attached, in ns
    /// of `CLOCK_MONOTONIC` like the stamps.
    #[inline(always)]
    #[must_use]
    pub const fn of(
        direction: Direction,
        flags: u16,
        stages: [u64; STAMPS],
        from: usize,
        to: usize,
        start: u64,
    ) -> Self {
        if stages[from] != 0 && stages[to] != 0 {
            return Self::Contradictory;
        }
        let is_out = matches!(direction, Direction::Out);
        if !is_out && flags & FLAG_AMBIGUOUS != 0 {
            return Self::Ambiguous;
        }
        let missing = if stages[from] == 0 { from } else { to };
        let is_write = is_out && missing == 0;
        if is_write && flags & FLAG_RETRANS != 0 {
            return Self::SentBefore;
        }
        // What it crossed later it crossed before the start.
        let mut later = 0;
        let mut stage = STAMPS - 1;
        while stage > missing {
            if stages[stage] != 0 {
                later = stages[stage];
            }
            stage -= 1;
        }
        if later != 0 && later < start {
            return Self::BeforeStart;
        }
        if !is_write {
            return Self::NoStamp;
        }
        if flags & FLAG_WRITE_EVICTED != 0 { Self::WriteEvicted } else { Self::WriteUnseen }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 100;

    fn of(direction: Direction, flags: u16, stages: [u64; STAMPS], [from, to]: [usize; 2]) -> Unknown {
        Unknown::of(direction, flags, stages, from, to, START)
    }

    #[test]
    fn all_is_in_the_order_of_discriminants() {
        for (index, reason) in Unknown::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
        }
    }

    #[test]
    fn a_stamp_is_missing_or_another_packets() {
        let [first, total] = [[0, 1], [0, 3]];
        assert_eq!(of(Direction::In, 0, [0, 120, 130, 140], first), Unknown::NoStamp);
        assert_eq!(of(Direction::In, 0, [110, 0, 130, 140], first), Unknown::NoStamp);
        assert_eq!(of(Direction::Out, 0, [110, 0, 130, 140], first), Unknown::NoStamp);
        assert_eq!(of(Direction::In, 0, [150, 120, 130, 140], first), Unknown::Contradictory);
        assert_eq!(of(Direction::In, 0, [150, 0, 0, 140], total), Unknown::Contradictory);
    }

    #[test]
    fn what_was_before_the_start_is_told_by_what_came_next() {
        assert_eq!(of(Direction::In, 0, [0, 90, 130, 140], [0, 1]), Unknown::BeforeStart);
        assert_eq!(of(Direction::In, 0, [0, 90, 130, 140], [0, 3]), Unknown::BeforeStart);
        assert_eq!(of(Direction::In, 0, [80, 0, 130, 140], [0, 1]), Unknown::NoStamp);
        assert_eq!(of(Direction::Out, 0, [0, 90, 130, 140], [0, 1]), Unknown::BeforeStart);
        assert_eq!(of(Direction::Out, 0, [0, 0, 0, 0], [0, 1]), Unknown::WriteUnseen);
    }

    #[test]
    fn of_several_copies_no_stamp_is_told() {
        let stages = [0, 0, 0, 140];
        for columns in [[0, 1], [1, 2], [2, 3], [0, 3]] {
            assert_eq!(of(Direction::In, FLAG_AMBIGUOUS, stages, columns), Unknown::Ambiguous);
        }
    }

    #[test]
    fn a_write_call_is_behind_unseen_or_evicted() {
        let stages = [0, 120, 130, 140];
        let reason = |flags| of(Direction::Out, flags, stages, [0, 1]);
        assert_eq!(reason(FLAG_RETRANS), Unknown::SentBefore);
        assert_eq!(reason(FLAG_RETRANS | FLAG_WRITE_EVICTED), Unknown::SentBefore);
        assert_eq!(reason(FLAG_WRITE_EVICTED), Unknown::WriteEvicted);
        assert_eq!(reason(0), Unknown::WriteUnseen);
        // The other stages have nothing to do with the call.
        let stages = [0, 0, 130, 140];
        assert_eq!(of(Direction::Out, FLAG_RETRANS, stages, [1, 2]), Unknown::NoStamp);
    }
}

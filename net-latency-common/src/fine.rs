//! Fine stages: the parts into which a packet's last stage is split, and those that follow it.

use crate::{Direction, FLAG_DROPPED, FLAG_RTO, PacketRecord, Unknown, tagged};

/// Number of parts of [`FineRecord::parts`].
pub const PARTS: usize = 4;
/// Index in [`FineRecord::parts`], in: bytes before it were missing, until they had come too.
pub const PART_GAP: usize = 0;
/// Index in [`FineRecord::parts`], in: it could be read, and the application did not ask, or was not woken yet.
pub const PART_WAIT: usize = 1;
/// Index in [`FineRecord::parts`], in: the thread that reads waited for a CPU.
pub const PART_CPU: usize = 2;
/// Index in [`FineRecord::parts`], in: the rest, until the application had it.
pub const PART_COPY: usize = 3;
/// Index in [`FineRecord::parts`], out: from the device's queue until its driver had the first segment.
pub const PART_QDISC: usize = 0;
/// Index in [`FineRecord::parts`], out: the driver's call.
pub const PART_DRIVER: usize = 1;
/// Index in [`FineRecord::parts`], out, TCP: from the driver's call until the ACK of its last byte came.
pub const PART_NET: usize = 2;
/// Index in [`FineRecord::parts`], out: no part, but when the line was finished, ns of `CLOCK_MONOTONIC`.
pub const PART_FINISHED: usize = 3;

/// The part for which that is the reason that it is not known. None lasts that long.
#[inline(always)]
#[must_use]
pub const fn unknown_part(reason: Unknown) -> u64 {
    u64::MAX - reason as u64
}

/// The parts of a packet of which none is known, for this reason. Only an outgoing one's line has an end of its own, which is `now`.
#[inline(always)]
#[must_use]
pub fn unknown_parts(direction: Direction, reason: Unknown, now: impl FnOnce() -> u64) -> [u64; PARTS] {
    let mut parts = [unknown_part(reason); PARTS];
    if matches!(direction, Direction::Out) {
        parts[PART_FINISHED] = now();
    }
    parts
}

/// What a part says: its time in ns, or why that is not known.
///
/// # Errors
/// The reason.
#[inline(always)]
pub const fn part(value: u64) -> Result<u64, Unknown> {
    let reason = u64::MAX - value;
    if reason < Unknown::ALL.len() as u64 { Err(Unknown::ALL[reason as usize]) } else { Ok(value) }
}

/// Why TCP did not send bytes that the application had written: what stopped `tcp_write_xmit` for half of that time or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Held {
    /// The peer's window had no room for them.
    ReceiveWindow = 1,
    /// The congestion window was in use.
    CongestionWindow = 2,
    /// Nagle's algorithm: they fill no segment, and an ACK is missing.
    Nagle = 3,
    /// `TCP_CORK`: they fill no segment.
    Cork = 4,
    /// The rate at which the socket may send (`SO_MAX_PACING_RATE`, BBR).
    Pacing = 5,
    /// Enough of the socket waits in the device's queue (TCP small queues).
    SmallQueue = 6,
    /// The application waited for room in the socket's send buffer.
    SendBuffer = 7,
}

impl Held {
    /// All of them, in the order of their numbers, which begin with 1.
    pub const ALL: [Self; 7] = [
        Self::ReceiveWindow,
        Self::CongestionWindow,
        Self::Nagle,
        Self::Cork,
        Self::Pacing,
        Self::SmallQueue,
        Self::SendBuffer,
    ];

    /// That of [`PacketRecord::held`].
    #[must_use]
    pub fn of(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|held| *held as u32 == number)
    }
}

/// What the thread that writes an answer has done since it read the request, up to that call. Its times are in ns, by this tool's clock:
/// what interrupts took of them is in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Served {
    /// All of it; 0 if the packet is not the first of an answer, and an [`unknown_part`] where it is unknown. Then the others are 0.
    pub all: u64,
    /// The part of that in which it was asleep.
    pub asleep: u64,
    /// The part of that in which it waited for a CPU.
    pub waited: u64,
    /// The number of the system call in which it slept for half of `asleep` or more, and 1; 0 for none, or one that is not known.
    pub call: u64,
}

impl Served {
    /// For a packet that is not the first of an answer.
    pub const NONE: Self = Self { all: 0, asleep: 0, waited: 0, call: 0 };

    /// For an answer's first packet whose time is unknown for this reason.
    #[inline(always)]
    #[must_use]
    pub const fn unknown(reason: Unknown) -> Self {
        Self { all: unknown_part(reason), ..Self::NONE }
    }

    /// What it did, unless these times can't be parts of each other.
    #[inline(always)]
    #[must_use]
    pub const fn of(all: u64, off_cpu: u64, asleep: u64, call: u64) -> Self {
        if asleep > off_cpu || off_cpu > all {
            return Self::unknown(Unknown::Contradictory);
        }
        Self { all, asleep, waited: off_cpu - asleep, call }
    }

    /// For how long it was on a CPU, ns; nothing if there are no such times.
    #[must_use]
    pub const fn on_cpu(&self) -> Option<u64> {
        match self.all.checked_sub(self.asleep) {
            Some(awake) => awake.checked_sub(self.waited),
            None => None,
        }
    }
}

/// One finished packet, with its fine stages in ns, index with the `PART_` constants. An incoming one's parts add up to its last stage, or
/// all are unknown ([`unknown_part`]), as they are where that stage is; UDP never has a gap. For an outgoing one each is known or unknown
/// by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FineRecord {
    /// What every run has.
    pub packet: PacketRecord,
    /// What runs with `--stages fine` have besides.
    pub parts: [u64; PARTS],
    /// Likewise, of an answer's first packet; not written for an incoming one.
    pub served: Served,
}

const _: () = assert!(
    size_of::<FineRecord>() == size_of::<PacketRecord>() + PARTS * 8 + size_of::<Served>(),
    "records have no padding"
);

/// A sent packet that is complete but for its fine stages, and waits for its ACK, or its driver. The times are tagged words
/// ([`tagged`], with [`SENT_TAG_BITS`] bits of its key), 0 where there is none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Sent {
    /// What its line will say.
    pub packet: PacketRecord,
    /// Likewise.
    pub served: Served,
    /// Address of its socket.
    pub socket: u64,
    /// When the driver got its first segment.
    pub started: u64,
    /// When the driver was done with that.
    pub finished: u64,
    /// When its ACK came, if the socket was in use then, so that TCP has it later.
    pub acked: u64,
    /// Number of the first byte of the segment that waits behind it.
    pub next: u32,
    /// `SENT_` bits.
    pub state: u32,
}

/// Of [`Sent::state`]: some of its bytes were sent again.
pub const SENT_AGAIN: u32 = 1 << 0;
/// Of [`Sent::state`]: because the retransmission timer fired.
pub const SENT_BY_TIMER: u32 = 1 << 1;
/// Of [`Sent::state`]: the device's queue dropped it.
pub const SENT_DROPPED: u32 = 1 << 2;

/// Of [`Sent::state`]: its device has no queue.
pub const SENT_UNQUEUED: u32 = 1 << 3;

/// Bits of a tag of [`Sent`]: a time lasts for 78 hours.
pub const SENT_TAG_BITS: u32 = 16;

/// The tag of the times of the entry with this key.
#[inline(always)]
#[must_use]
pub const fn sent_tag(key: u64) -> u64 {
    key & ((1 << SENT_TAG_BITS) - 1)
}

/// The time in a word of the entry with this key; 0 if there is none, or it is another one's.
#[inline(always)]
#[must_use]
pub const fn sent_time(word: u64, key: u64, now: u64) -> u64 {
    if tagged::is_of::<SENT_TAG_BITS>(word, sent_tag(key)) {
        tagged::time::<SENT_TAG_BITS>(word, now)
    } else {
        0
    }
}

/// The part between two times, in ns, 0 for one that is not known; `missing` is the reason then.
#[inline(always)]
#[must_use]
pub const fn between(from: u64, to: u64, missing: u64) -> u64 {
    if from == 0 || to == 0 {
        missing
    } else if to < from {
        unknown_part(Unknown::Contradictory)
    } else {
        to - from
    }
}

/// Times of a sent packet, in ns; 0 if unknown.
#[derive(Clone, Copy, Debug)]
pub struct SentTimes {
    /// When it was at the device's queue.
    pub queued: u64,
    /// When the driver had its first segment.
    pub started: u64,
    /// When the driver was done with that.
    pub finished: u64,
    /// When its ACK came.
    pub acked: u64,
}

/// The parts of a sent packet in this state whose line ends `now`. `unacked` is why there is no ACK where none is waited for any
/// more. The caller says what [`between`] is: the verifier goes through one that is a function of its own only once.
#[inline(always)]
#[must_use]
pub fn sent_parts(
    times: SentTimes,
    state: u32,
    unacked: Option<Unknown>,
    now: u64,
    between: impl Fn(u64, u64, u64) -> u64,
) -> [u64; PARTS] {
    let SentTimes { queued, started, finished, acked } = times;
    let missing = unknown_part(if state & SENT_DROPPED != 0 { Unknown::QueueDrop } else { Unknown::NoStamp });
    let net = if state & SENT_AGAIN != 0 {
        unknown_part(Unknown::SentAgain)
    } else if let Some(reason) = unacked {
        unknown_part(reason)
    } else {
        between(started, acked, missing)
    };
    // Without a queue it is with its driver at once, if that has got it at all.
    let is_unqueued = state & SENT_UNQUEUED != 0 && started != 0;
    let qdisc = if is_unqueued { 0 } else { between(queued, started, missing) };
    [qdisc, between(started, finished, missing), net, now]
}

/// The flags that the state of a sent packet gives its line.
#[inline(always)]
#[must_use]
pub const fn sent_flags(state: u32) -> u16 {
    let by_timer = if state & SENT_BY_TIMER != 0 { FLAG_RTO } else { 0 };
    by_timer | if state & SENT_DROPPED != 0 { FLAG_DROPPED } else { 0 }
}

/// A slot of the table of sent segments, as `slots.rs` of the kernel side has it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SentSlot {
    /// Attempts to have it.
    pub claims: u64,
    /// Those that have ended.
    pub releases: u64,
    /// Whose entry it is; 0 for none.
    pub key: u64,
    /// The entry.
    pub sent: Sent,
}

/// What an element of the table of sent segments is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SentSlots {
    /// Two that serve the same keys.
    pub pair: [SentSlot; 2],
    /// Always 0.
    pub spilled: u64,
}

// SAFETY: `repr(C)`, integers only, without padding: all sizes are multiples of 8.
#[cfg(feature = "user")]
unsafe impl aya::Pod for SentSlots {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_a_time_or_a_reason() {
        for reason in Unknown::ALL {
            assert_eq!(part(unknown_part(reason)), Err(reason));
        }
        for time in [0, 1, u64::MAX >> 1] {
            assert_eq!(part(time), Ok(time));
        }
    }

    #[test]
    fn what_comes_in_has_no_part_of_which_nothing_is_known() {
        let parts = |direction| unknown_parts(direction, Unknown::NoRoom, || 900).map(part);
        let unknown = Err(Unknown::NoRoom);
        assert_eq!(parts(Direction::In), [unknown; PARTS]);
        assert_eq!(parts(Direction::Out), [unknown, unknown, unknown, Ok(900)]);
    }

    fn parts(started: u64, finished: u64, acked: u64, state: u32) -> [Result<u64, Unknown>; 3] {
        let times = SentTimes { queued: 100, started, finished, acked };
        let unacked = (acked == u64::MAX).then_some(Unknown::Unacknowledged);
        let [qdisc, driver, net, now] = sent_parts(times, state, unacked, 900, between);
        assert_eq!(now, 900);
        [qdisc, driver, net].map(part)
    }

    #[test]
    fn what_was_sent_is_in_three_parts() {
        assert_eq!(parts(110, 130, 500, 0), [Ok(10), Ok(20), Ok(390)]);
        let no_stamp = Err(Unknown::NoStamp);
        assert_eq!(parts(0, 130, 500, 0), [no_stamp, no_stamp, no_stamp]);
        assert_eq!(parts(110, 0, 0, 0), [Ok(10), no_stamp, no_stamp]);
        let contradictory = Err(Unknown::Contradictory);
        assert_eq!(parts(90, 130, 500, 0), [contradictory, Ok(40), Ok(410)]);
        assert_eq!(parts(110, 130, u64::MAX, 0), [Ok(10), Ok(20), Err(Unknown::Unacknowledged)]);
    }

    #[test]
    fn nothing_waits_where_there_is_no_queue() {
        assert_eq!(parts(110, 130, 500, SENT_UNQUEUED), [Ok(0), Ok(20), Ok(390)]);
        // In the state of a packet that has not left, an earlier one's may remain.
        let no_stamp = Err(Unknown::NoStamp);
        assert_eq!(parts(0, 0, 0, SENT_UNQUEUED), [no_stamp, no_stamp, no_stamp]);
    }

    #[test]
    fn no_ack_is_known_to_be_that_of_bytes_sent_twice() {
        let again = Err(Unknown::SentAgain);
        assert_eq!(parts(110, 130, 500, SENT_AGAIN), [Ok(10), Ok(20), again]);
        let dropped = Err(Unknown::QueueDrop);
        assert_eq!(parts(0, 0, 500, SENT_AGAIN | SENT_DROPPED), [dropped, dropped, again]);
    }

    #[test]
    fn a_time_of_another_entry_is_none() {
        let word = tagged::word::<SENT_TAG_BITS>(5_000, sent_tag(0xabcd_1234));
        assert_eq!(sent_time(word, 0xabcd_1234, 6_000), 5_000);
        assert_eq!(sent_time(word, 0xabcd_1235, 6_000), 0);
        assert_eq!(sent_time(0, 0, 6_000), 0);
    }
}

//! Counters that the kernel side keeps: what happened to packets that became no line, and the ledger of
//! those that wait.

/// The counters. The discriminant indexes [`Counters::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Finished packets whose record found no room in the ring buffer.
    RingFull,
    /// Received packets that could not be followed, because a map, or their connection's share of it, was full.
    MapFull,
    /// Times a TCP socket could not be followed, because a map was full.
    SocketLost,
    /// A stage or a write call could not be stored, because a map was full: a line with a gap.
    StampLost,
    /// Received data whose way through the stack was not seen whole: taken by the application
    /// without a matching segment (resynchronisations, not packets).
    UnmatchedIn,
    /// Received data segments that brought nothing new: TCP had all their bytes, or the first copy waited.
    /// No line of their own.
    DuplicateIn,
    /// Received packets that TCP or UDP had got and that were dropped before the application took them.
    DroppedIn,
    /// Received data segments still unread when their socket was destroyed.
    UnreadIn,
    /// Packets that TCP or UDP sent and that were dropped on the way to a device queue.
    UnfinishedOut,
    /// Sent data whose write call was not seen, so that the first column is unknown.
    UnmatchedOut,
    /// No loss: received packets that a filter excluded when they were taken.
    FilteredIn,
    /// No loss: sent packets that a filter excluded.
    FilteredOut,
    /// No loss: packets that TCP or UDP sent.
    SeenOut,
    /// No loss: received packets that began to wait for the application.
    Stored,
    /// No loss: packets that stopped waiting: taken, dropped, or unread when their socket went.
    Taken,
    /// No loss: received packets without data that got a line.
    ControlIn,
    /// No loss: received packets that a filter excluded as soon as TCP or UDP had them.
    RejectedIn,
    /// Processes that the traced command started and that could not be followed, because a map was full.
    ProcessLost,
    /// Finished packets that were not counted, because the map of counts was full.
    HistogramFull,
    /// Times of a stage that were not counted, of packets that were.
    TimeLost,
    /// No loss: packets that would have been counted, but were finished while not every hook was attached.
    Outside,
    /// Finished packets left out of the sample for a reader that can't take all.
    Shed,
    /// No loss: received packets that wait in a map that evicts, since their slots were taken; among [`Self::Stored`].
    Spilled,
    /// No loss: those of them that were taken out; among [`Self::Taken`].
    SpilledTaken,
    /// Slow packets that were counted ([`crate::Settings::record_slower_ns`]), and whose record found no room in the ring buffer.
    SlowLost,
    /// Packets that TCP or UDP sent, and whose socket or thread had sent the next one before they were seen at a device queue: they
    /// wait on the way to it, or their end was not seen.
    OvertakenOut,
    /// Received data segments whose read was not seen: those of MPTCP that came by several subflows, or of which MPTCP has dropped some, or
    /// where this kernel's is not followed; and those that came twice, where a call that read them was not seen.
    NotFollowedIn,
}

impl Counter {
    /// All counters, in the order of their discriminants.
    pub const ALL: [Self; 27] = [
        Self::RingFull,
        Self::MapFull,
        Self::SocketLost,
        Self::StampLost,
        Self::UnmatchedIn,
        Self::DuplicateIn,
        Self::DroppedIn,
        Self::UnreadIn,
        Self::UnfinishedOut,
        Self::UnmatchedOut,
        Self::FilteredIn,
        Self::FilteredOut,
        Self::SeenOut,
        Self::Stored,
        Self::Taken,
        Self::ControlIn,
        Self::RejectedIn,
        Self::ProcessLost,
        Self::HistogramFull,
        Self::TimeLost,
        Self::Outside,
        Self::Shed,
        Self::Spilled,
        Self::SpilledTaken,
        Self::SlowLost,
        Self::OvertakenOut,
        Self::NotFollowedIn,
    ];
}

/// One CPU's counters, or their sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Values by [`Counter`].
    pub values: [u64; Counter::ALL.len()],
}

impl Counters {
    /// The value of `counter`.
    #[must_use]
    pub const fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// The counts between `earlier` and this.
    #[must_use]
    pub fn since(mut self, earlier: &Self) -> Self {
        for (value, earlier) in self.values.iter_mut().zip(earlier.values) {
            *value = value.saturating_sub(earlier);
        }
        self
    }
}

// SAFETY: `repr(C)`, an array of integers.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Counters {}

#[cfg(test)]
mod tests {
    use super::Counter;

    #[test]
    fn all_is_in_the_order_of_discriminants() {
        for (index, counter) in Counter::ALL.into_iter().enumerate() {
            assert_eq!(counter as usize, index);
        }
    }
}

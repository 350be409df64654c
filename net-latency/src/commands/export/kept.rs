//! Answers that are kept for others who ask: many scrapers take a part of a processor only.

use std::time::{Duration, Instant};

use bytes::Bytes;

/// A scrape within this time after another gets the same answer.
const SHARED: Duration = Duration::from_millis(100);
/// CPU time that answers may take at once, and the part of a processor that they may take beyond: after that, a scrape gets the answer of
/// the one before.
const CREDIT: Duration = Duration::from_secs(10);
const SHARE: u32 = 20;

/// When the counts were read, and the answers made of them.
#[derive(Debug)]
pub(super) struct Kept<K> {
    looked: Option<Instant>,
    /// By its kind.
    made: Vec<(K, Bytes)>,
    /// Until when a part of all time pays for what answers took.
    paid: Instant,
}

impl<K: PartialEq> Kept<K> {
    /// Nothing was read.
    pub(super) fn new(now: Instant) -> Self {
        Self { looked: None, made: Vec::new(), paid: now }
    }

    /// Whether the counts are older than that.
    pub(super) fn is_older(&self, age: Duration, now: Instant) -> bool {
        self.looked.is_none_or(|looked| now - looked >= age)
    }

    /// Whether a scrape gets new counts now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let has_credit = self.paid.saturating_duration_since(now) <= CREDIT * SHARE;
        self.looked.is_none() || has_credit && self.is_older(SHARED, now)
    }

    /// The counts have been read, which `took` that much CPU time.
    pub(super) fn looked(&mut self, now: Instant, took: Duration) {
        self.looked = Some(now);
        self.made.clear();
        self.spend(now, took);
    }

    /// The answer of that kind, if it was made.
    pub(super) fn made(&self, kind: &K) -> Option<Bytes> {
        self.made.iter().find(|(known, _)| known == kind).map(|(_, made)| made.clone())
    }

    /// That was made of them, which `took` that much CPU time.
    pub(super) fn keep(&mut self, kind: K, made: Bytes, now: Instant, took: Duration) {
        self.made.push((kind, made));
        self.spend(now, took);
    }

    fn spend(&mut self, now: Instant, took: Duration) {
        self.paid = self.paid.max(now) + took * SHARE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_scrapers_take_a_part_of_a_processor() {
        const MS: Duration = Duration::from_millis(1);
        let start = Instant::now();
        let (mut kept, mut now, mut spent, mut answers) = (Kept::new(start), start, Duration::ZERO, 0);
        // For five minutes all ask for all that there is, again and again.
        while now - start < 300_000 * MS {
            let begun = now;
            if kept.is_due(now) {
                now += 40 * MS;
                kept.looked(now, 40 * MS);
            }
            for kind in ["plain", "packed"] {
                if kept.made(&kind).is_none() {
                    now += 80 * MS;
                    kept.keep(kind, Bytes::from_static(b"1"), now, 80 * MS);
                }
                assert!(kept.made(&kind).is_some());
                answers += 1;
            }
            spent += now - begun;
            now += MS;
        }
        assert!(answers > 100_000, "{answers}");
        // A twentieth, after what it may take at once.
        assert!(spent <= CREDIT + 300_000 * MS / SHARE + 200 * MS, "{spent:?}");
        // A scrape now and then gets new counts.
        for _ in 0..20 {
            now += 15_000 * MS;
            assert!(kept.is_due(now));
            kept.looked(now + 40 * MS, 40 * MS);
            assert_eq!(kept.made(&"plain"), None);
            kept.keep("plain", Bytes::new(), now + 80 * MS, 80 * MS);
            assert!(!kept.is_due(now + 90 * MS) && kept.is_older(MS, now + 90 * MS));
        }
    }
}

//! Who has more votes than all others together, in the memory of one of them (Boyer and Moore).

/// So many votes more than others at most: who has led for long is replaced all the same.
const MOST: u8 = 16;

/// Who leads, and by how many votes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leader<T> {
    who: T,
    lead: u8,
}

impl<T: Copy + PartialEq> Leader<T> {
    /// One more vote.
    pub(super) fn vote(&mut self, who: T) {
        if self.lead == 0 {
            self.who = who;
        }
        if self.who == who {
            self.lead = (self.lead + 1).min(MOST);
        } else {
            self.lead -= 1;
        }
    }

    /// A vote for nobody.
    pub(super) fn abstain(&mut self) {
        self.lead = self.lead.saturating_sub(1);
    }

    /// Who leads by so many votes, or more.
    #[must_use]
    pub(super) fn by(&self, least: u8) -> Option<T> {
        (self.lead >= least).then_some(self.who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_most_votes_leads_and_who_had_them_long_ago_does_not() {
        let mut leader = Leader::default();
        assert_eq!(leader.by(1), None);
        (0..1_000).for_each(|vote| leader.vote(if vote % 3 == 0 { 7 } else { 8 }));
        assert_eq!(leader.by(2), Some(8));
        (0..1_000).for_each(|_| leader.vote(8));
        (0..u32::from(MOST) + 2).for_each(|_| leader.vote(9));
        assert_eq!(leader.by(2), Some(9));
        (0..2).for_each(|_| leader.abstain());
        assert_eq!(leader.by(1), None);
    }
}

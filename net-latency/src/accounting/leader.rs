//! The candidate with more votes than all others together, in the memory of one of them (Boyer and Moore).

/// The leader, and by how many votes: by `MOST` at most, so that one that has led for long can still be replaced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leader<T, const MOST: u32> {
    who: Option<T>,
    lead: u32,
}

impl<T, const MOST: u32> Default for Leader<T, MOST> {
    fn default() -> Self {
        Self { who: None, lead: 0 }
    }
}

impl<T: Copy + PartialEq, const MOST: u32> Leader<T, MOST> {
    /// One more vote.
    pub(crate) fn vote(&mut self, who: T) {
        if self.lead == 0 {
            self.who = Some(who);
        }
        if self.who == Some(who) {
            self.lead = (self.lead + 1).min(MOST);
        } else {
            self.lead -= 1;
        }
    }

    /// A vote for no one.
    pub(crate) fn abstain(&mut self) {
        self.lead = self.lead.saturating_sub(1);
    }

    /// The leader has this name from now on; without one it has no votes.
    pub(crate) fn rename(&mut self, name: impl FnOnce(T) -> Option<T>) {
        self.who = self.who.and_then(name);
        if self.who.is_none() {
            self.lead = 0;
        }
    }

    /// The leader, if it leads by N votes or more.
    #[must_use]
    pub(crate) fn by(&self, least: u32) -> Option<T> {
        self.who.filter(|_| self.lead >= least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_most_votes_leads_and_who_had_them_long_ago_does_not() {
        const MOST: u32 = 16;
        let mut leader = Leader::<_, MOST>::default();
        assert_eq!(leader.by(1), None);
        (0..1_000).for_each(|vote| leader.vote(if vote % 3 == 0 { 7 } else { 8 }));
        assert_eq!(leader.by(2), Some(8));
        (0..1_000).for_each(|_| leader.vote(8));
        (0..MOST + 2).for_each(|_| leader.vote(9));
        assert_eq!(leader.by(2), Some(9));
        leader.rename(|who| Some(who + 1));
        assert_eq!(leader.by(2), Some(10));
        (0..2).for_each(|_| leader.abstain());
        assert_eq!(leader.by(1), None);
        leader.vote(7);
        leader.rename(|_| None);
        assert_eq!(leader.by(0), None);
    }
}

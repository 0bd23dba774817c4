//! Vector clocks: how much of each stream came before.
//!
//! Main types: [`Clock`], [`Stamp`]. Neighbours: `detector` has one for the host, for each stream, event and signal. The
//! scheme is that of Mattern ("Virtual Time and Global States of Distributed Systems", 1989).

/// The n-th access of a stream, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) stream: u32,
    pub(crate) number: u64,
}

/// For each stream, up to which number its accesses came before. Streams beyond the end: none of them.
#[derive(Debug, Default)]
pub(crate) struct Clock(Vec<u64>);

impl Clone for Clock {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }

    fn clone_from(&mut self, other: &Self) {
        self.0.clone_from(&other.0);
    }
}

impl Clock {
    /// Nothing came before.
    pub(crate) const NONE: Self = Self(Vec::new());

    pub(crate) fn covers(&self, stamp: Stamp) -> bool {
        self.0.get(stamp.stream as usize).is_some_and(|&number| number >= stamp.number)
    }

    pub(crate) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// One more of the stream, whose clock it is.
    pub(crate) fn advance(&mut self, stream: u32) -> Stamp {
        let index = stream as usize;
        if self.0.len() <= index {
            self.0.resize(index + 1, 0);
        }
        self.0[index] += 1;
        Stamp { stream, number: self.0[index] }
    }
}

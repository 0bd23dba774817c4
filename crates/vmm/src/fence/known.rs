//! What one stream comes after: up to which tick of each other one.
//!
//! Main type: [`Known`], a row of the known-order table. Neighbours: a timeline has one; `order` asks.

use super::Use;
use crate::units::StreamId;

/// Up to which tick of each stream another one comes after it, by stream.
#[derive(Default)]
pub(super) struct Known(Vec<(StreamId, u64)>);

impl Known {
    fn find(&self, stream: StreamId) -> Result<usize, usize> {
        self.0.binary_search_by_key(&stream, |(known, _)| *known)
    }

    /// Whether the stream is known to come after the use.
    pub(super) fn covers(&self, use_: Use) -> bool {
        self.find(use_.stream).is_ok_and(|at| self.0[at].1 >= use_.tick)
    }

    /// The stream comes after the use from now on.
    pub(super) fn learn(&mut self, use_: Use) {
        match self.find(use_.stream) {
            Ok(at) => self.0[at].1 = self.0[at].1.max(use_.tick),
            Err(at) => self.0.insert(at, (use_.stream, use_.tick)),
        }
    }

    /// Forgets the streams that have gone, if there are more than `most`.
    pub(super) fn forget_if_over(&mut self, most: usize, gone: impl Fn(StreamId) -> bool) {
        if self.0.len() > most {
            self.0.retain(|(stream, _)| !gone(*stream));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_(stream: u32, tick: u64) -> Use {
        Use { stream: StreamId::new(stream), tick }
    }

    #[test]
    fn the_latest_tick_of_each_stream_counts() {
        let mut known = Known::default();
        for (stream, tick) in [(7, 3), (2, 5), (7, 1), (9, 1), (2, 6)] {
            known.learn(use_(stream, tick));
        }
        let covered = |stream| (0..10).take_while(|&tick| known.covers(use_(stream, tick))).last();
        assert_eq!([2, 3, 7, 9].map(covered), [Some(6), None, Some(3), Some(1)]);
    }

    #[test]
    fn what_has_gone_is_forgotten_once_it_is_much() {
        let mut known = Known::default();
        (0..6).for_each(|stream| known.learn(use_(stream, 1)));
        let gone = |stream: StreamId| stream.get() < 4;
        known.forget_if_over(6, gone);
        assert!(known.covers(use_(3, 1)), "not over the bound");
        known.forget_if_over(5, gone);
        assert!(!known.covers(use_(3, 1)) && known.covers(use_(4, 1)) && known.covers(use_(5, 1)));
    }
}

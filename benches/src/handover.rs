//! Blocks that one thread allocates and another frees, in batches.
//!
//! Main types: [`FreedBy`], [`Handed`]. Neighbours: `contender` has the allocator; `benches/cross_free.rs` and `cargo
//! xtask speed` run it. Allocations and frees are timed each on its own thread, so that what the channel takes is in
//! neither.

use std::sync::mpsc::sync_channel;
use std::time::Instant;

use crate::contender::{ByHandle, Contender as _};

/// Blocks that are handed over at once.
pub const BATCH: usize = 256;

/// Sizes in bytes by turns: bins, parts of a page, many pages.
const SIZES: [u64; 4] = [512, 64 << 10, 1 << 20, 20 << 20];

/// Who frees a batch, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FreedBy {
    /// The thread that allocated it.
    Same,
    /// Another thread, for which the first one waits.
    OtherByTurns,
    /// Another thread, while the first one allocates the next batch: a free that finds the heap's lock taken is queued.
    OtherMeanwhile,
}

/// Ns a block of each batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Handed {
    /// Of the allocations.
    pub allocation_ns: Vec<f64>,
    /// Of the frees.
    pub free_ns: Vec<f64>,
}

impl FreedBy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Same, Self::OtherByTurns, Self::OtherMeanwhile];

    /// The name used in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same thread",
            Self::OtherByTurns => "other thread, by turns",
            Self::OtherMeanwhile => "other thread, meanwhile",
        }
    }

    /// Hands over so many batches.
    ///
    /// # Panics
    /// If the device is too small.
    pub fn run(self, contender: &mut ByHandle, batches: usize) -> Handed {
        let ns = |begun: Instant| begun.elapsed().as_nanos() as f64 / BATCH as f64;
        let sizes = || SIZES.into_iter().cycle().take(BATCH);
        let mut handed = Handed::default();
        let mut batch = || {
            let begun = Instant::now();
            let blocks: Vec<_> = sizes().map(|bytes| contender.allocate(bytes)).collect();
            handed.allocation_ns.push(ns(begun));
            blocks
        };
        let free = |blocks: Vec<_>| {
            let begun = Instant::now();
            drop(blocks);
            ns(begun)
        };
        if self == Self::Same {
            let free_ns = (0..batches).map(|_| free(batch())).collect();
            return Handed { free_ns, ..handed };
        }
        let (sender, receiver) = sync_channel(1);
        let (answers, answer) = sync_channel(1);
        let free_ns = std::thread::scope(|scope| {
            let freeing = scope.spawn(move || {
                let mut free_ns = Vec::with_capacity(batches);
                for blocks in receiver {
                    free_ns.push(free(blocks));
                    if self == Self::OtherByTurns {
                        answers.send(()).expect("the first thread waits");
                    }
                }
                free_ns
            });
            for _ in 0..batches {
                sender.send(batch()).expect("the other thread takes all");
                if self == Self::OtherByTurns {
                    answer.recv().expect("the other thread answers");
                }
            }
            drop(sender);
            freeing.join().expect("a free does not panic")
        });
        Handed { free_ns, ..handed }
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCH, FreedBy};
    use crate::contender::ByHandle;

    #[test]
    fn every_batch_is_timed_twice_and_nothing_stays_live() {
        for by in FreedBy::ALL {
            let mut contender = ByHandle::new();
            let handed = by.run(&mut contender, 5);
            assert_eq!((handed.allocation_ns.len(), handed.free_ns.len()), (5, 5), "{by:?}");
            let stats = contender.allocator().stats();
            assert_eq!(stats.live_bytes, 0, "{by:?}");
            // A quarter of a batch each of 512 B, 64 KiB, 1 MiB and 20 MiB was live at once.
            let batch = (BATCH as u64 / 4) * (512 + (64 << 10) + (21 << 20));
            assert!(stats.live_peak_bytes >= batch, "{by:?}: {stats:?}");
        }
    }
}

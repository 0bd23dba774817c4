//! Several things at once, with results in the order of what they are of.
//!
//! Neighbours: `cargo xtask bench` searches for minimum capacities with it. Replays whose time is taken run alone.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Calls `work` for each item, on up to `jobs` threads; the results in the order of the items.
///
/// # Panics
/// If `work` does.
pub fn in_parallel<T: Sync, R: Send>(
    jobs: NonZeroUsize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::with_capacity(items.len()));
    thread::scope(|scope| {
        for _ in 0..jobs.get().min(items.len()) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { break };
                    let result = work(item);
                    results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|&(index, _)| index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::Barrier;

    use super::in_parallel;

    fn jobs(jobs: usize) -> NonZeroUsize {
        NonZeroUsize::new(jobs).expect("above 0")
    }

    #[test]
    fn results_have_the_order_of_the_items() {
        let items: Vec<u64> = (0..100).collect();
        let squares: Vec<u64> = items.iter().map(|item| item * item).collect();
        for count in [1, 2, 7, 200] {
            assert_eq!(in_parallel(jobs(count), &items, |item| item * item), squares, "{count} jobs");
        }
        assert_eq!(in_parallel(jobs(3), &[] as &[u64], |item| *item), [0; 0]);
    }

    #[test]
    fn as_many_as_asked_run_at_once() {
        // Ends only if three are there at the same time.
        let barrier = Barrier::new(3);
        let met = in_parallel(jobs(3), &[1, 2, 3], |item| {
            barrier.wait();
            *item
        });
        assert_eq!(met, [1, 2, 3]);
    }
}

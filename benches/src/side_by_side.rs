//! What loops on several threads take while all of them run.
//!
//! Neighbours: `threads` has pairs to run so; `cargo xtask speed` runs churns and snapshots side by side.
//!
//! On a loaded machine, or when the scheduler puts two threads on one processor, threads often run one after the other,
//! and then nothing can slow them. Those times are left out.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Pairs between two looks at the clock.
pub const CHUNK: u64 = 256;

/// A chunk that took this long was interrupted: some 20 times what it takes by itself, and less than a slice of the
/// scheduler.
pub const INTERRUPTED: Duration = Duration::from_micros(500);

/// Runs each loop on a thread of its own, chunk by chunk, until the first one has run so many pairs. Returns by loop
/// the ns a pair took while *all* were running, one value for each chunk of [`CHUNK`] pairs: a chunk counts if chunks
/// of every loop cover it that took no longer than [`INTERRUPTED`].
///
/// # Panics
/// If a loop does.
pub fn ns_while_all_run<W: FnMut(u64) + Send>(loops: &mut [W], pairs: u64) -> Vec<Vec<f64>> {
    let (start, done) = (Barrier::new(loops.len()), AtomicBool::new(false));
    let chunks: Vec<Vec<(Instant, Instant)>> = std::thread::scope(|scope| {
        let (start, done) = (&start, &done);
        let work = |(number, run): (usize, &mut W)| {
            let mut chunks = Vec::with_capacity((pairs / CHUNK) as usize);
            start.wait();
            let mut begun = Instant::now();
            while if number == 0 {
                (chunks.len() as u64) < pairs / CHUNK
            } else {
                !done.load(Ordering::Relaxed)
            } {
                run(CHUNK);
                let ended = Instant::now();
                chunks.push((begun, ended));
                begun = ended;
            }
            if number == 0 {
                done.store(true, Ordering::Relaxed);
            }
            chunks
        };
        let threads: Vec<_> =
            loops.iter_mut().enumerate().map(|one| scope.spawn(move || work(one))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no loop panics")).collect()
    });
    let running: Vec<Vec<(Instant, Instant)>> = chunks.iter().map(|chunks| running(chunks)).collect();
    let counts = |&(begun, ended): &(Instant, Instant)| {
        running.iter().all(|spans| {
            let at = spans.partition_point(|(_, end)| *end < ended);
            spans.get(at).is_some_and(|(start, _)| *start <= begun)
        })
    };
    let ns = |(begun, ended): &(Instant, Instant)| (*ended - *begun).as_nanos() as f64 / CHUNK as f64;
    chunks.iter().map(|of_one| of_one.iter().filter(|chunk| counts(chunk)).map(ns).collect()).collect()
}

/// The times in which a thread was not interrupted: its chunks, joined where none took too long.
fn running(chunks: &[(Instant, Instant)]) -> Vec<(Instant, Instant)> {
    let mut spans: Vec<(Instant, Instant)> = Vec::new();
    for &(begun, ended) in chunks.iter().filter(|(begun, ended)| *ended - *begun < INTERRUPTED) {
        match spans.last_mut() {
            Some((_, end)) if *end == begun => *end = ended,
            _ => spans.push((begun, ended)),
        }
    }
    spans
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{CHUNK, ns_while_all_run, running};

    #[test]
    fn the_first_loop_runs_all_its_chunks_and_the_others_until_then() {
        let mut ran = [0_u64; 2];
        let [first, second] = &mut ran;
        let mut loops = [first, second].map(|ran| move |pairs| *ran += pairs);
        let times = ns_while_all_run(&mut loops, 10 * CHUNK);
        assert_eq!(times.len(), 2);
        assert!(times[0].len() <= 10, "{times:?}");
        assert_eq!((ran[0], ran[1] % CHUNK), (10 * CHUNK, 0));
    }

    #[test]
    fn a_chunk_that_was_interrupted_parts_what_is_joined_else() {
        let begun = Instant::now();
        let at = |micros| begun + Duration::from_micros(micros);
        // From 20 to 620 something else ran; the others follow one another.
        let chunks = [(at(0), at(10)), (at(10), at(20)), (at(20), at(620)), (at(620), at(630))];
        assert_eq!(running(&chunks), [(at(0), at(20)), (at(620), at(630))]);
    }
}

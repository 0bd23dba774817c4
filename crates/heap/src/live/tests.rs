//! The peak of the sum against a model that adds everything up after every step.

use proptest::prelude::*;

use concertina_vmm::StreamId;

use super::*;

/// The key of the heap with this number: every second one is the large heap of the stream before it.
fn key(number: usize) -> HeapKey {
    let kind = if number.is_multiple_of(2) { Kind::Small } else { Kind::Large };
    HeapKey { pool: 0, stream: StreamId::new(number as u32 / 2), kind }
}

/// Bytes of one heap go up, go down, or leave by the queue.
#[derive(Clone, Copy, Debug)]
enum Op {
    Add { heap: usize, bytes: u64 },
    Sub { heap: usize, percent: u64 },
    Queue { heap: usize, percent: u64 },
    Look { bytes: u64 },
    Replace { heap: usize },
}

fn op(heaps: usize) -> impl Strategy<Value = Op> {
    let bytes = prop_oneof![1u64..100, 1u64..100_000];
    prop_oneof![
        4 => (0..heaps, bytes.clone()).prop_map(|(heap, bytes)| Op::Add { heap, bytes }),
        4 => (0..heaps, 0u64..=100).prop_map(|(heap, percent)| Op::Sub { heap, percent }),
        1 => (0..heaps, 0u64..=100).prop_map(|(heap, percent)| Op::Queue { heap, percent }),
        1 => bytes.prop_map(|bytes| Op::Look { bytes }),
        1 => (0..heaps).prop_map(|heap| Op::Replace { heap }),
    ]
}

proptest! {
    #[test]
    fn the_peak_is_that_of_the_sum(program in prop::collection::vec(op(5), 1..300)) {
        let all = Arc::default();
        let mut heaps: Vec<HeapLive> = (0..5).map(|number| HeapLive::new(key(number), &all)).collect();
        let (mut live, mut queued, mut peak) = ([0u64; 5], [0u64; 5], 0);
        for op in program {
            match op {
                Op::Add { heap, bytes } => {
                    // Whoever has the lock has emptied the queue.
                    heaps[heap].sub(queued[heap]);
                    heaps[heap].count().note_drained(queued[heap]);
                    queued[heap] = 0;
                    heaps[heap].add(bytes);
                    live[heap] += bytes;
                }
                Op::Sub { heap, percent } => {
                    let bytes = live[heap] * percent / 100;
                    heaps[heap].sub(bytes);
                    live[heap] -= bytes;
                }
                Op::Queue { heap, percent } => {
                    let bytes = live[heap] * percent / 100;
                    heaps[heap].count().note_queued(bytes);
                    live[heap] -= bytes;
                    queued[heap] += bytes;
                }
                Op::Look { bytes } => {
                    let sum: u64 = live.iter().sum();
                    prop_assert_eq!(all.peak_with(bytes), peak.max(sum + bytes));
                }
                // The heap of a retired stream goes.
                Op::Replace { heap } if live[heap] + queued[heap] == 0 => {
                    heaps[heap] = HeapLive::new(key(heap), &all);
                }
                Op::Replace { .. } => {}
            }
            peak = peak.max(live.iter().sum());
            prop_assert_eq!(all.bytes(), live.iter().sum::<u64>());
        }
        prop_assert_eq!(all.peak_bytes(), peak);
    }
}

/// Nobody shares out while the streams stay under their ceilings: what keeps the hit path off other streams' cache lines.
#[test]
fn a_stream_under_its_ceiling_looks_at_no_other() {
    let all = Arc::default();
    let [small, large, other] = [0, 1, 2].map(|number| HeapLive::new(key(number), &all));
    large.add(100);
    other.add(50);
    let ceilings = || [&small, &large, &other].map(|heap| heap.count().ceiling.load(Ordering::Relaxed));
    // Both streams were at their most when the peak was reached, so that the ceilings are these.
    assert_eq!((ceilings(), all.peak_bytes()), ([100, 100, 50], 150));
    for _ in 0..10 {
        // By turns, as a thread does: both kinds together never have more than one of them had.
        large.sub(100);
        small.add(30);
        other.sub(50);
        small.sub(30);
        other.add(50);
        large.add(100);
    }
    assert_eq!(ceilings(), [100, 100, 50]);
    // A byte over the ceiling with 101 live: the 49 up to the peak are shared by both.
    other.sub(50);
    small.add(1);
    assert_eq!((ceilings(), all.peak_bytes()), ([101 + 24, 101 + 24, 24], 150));
}

//! Pending blocks against a list that is gone through from the front each time.

use std::cell::Cell;

use proptest::prelude::*;

use super::*;

const STREAMS: u32 = 4;

#[derive(Clone, Debug)]
enum Step {
    // A block is freed, with uses of these streams up to now.
    Push(Vec<u32>),
    // So many ticks end on a stream.
    Tick(u32, u64),
    // What is done on a stream is what had ended so many ticks ago.
    Settle(u32, u64),
    // The oldest block of which all uses are of these streams comes back.
    Oldest(Vec<u32>),
    // Blocks with such numbers come back.
    Extract(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let streams = || prop::collection::vec(0..STREAMS, 1..4);
    let step = prop_oneof![
        6 => streams().prop_map(Step::Push),
        2 => (0..STREAMS, 1..3u64).prop_map(|(stream, ticks)| Step::Tick(stream, ticks)),
        3 => (0..STREAMS, 0..3u64).prop_map(|(stream, ago)| Step::Settle(stream, ago)),
        2 => streams().prop_map(Step::Oldest),
        1 => (2..5u32).prop_map(Step::Extract),
    ];
    prop::collection::vec(step, 1..200)
}

fn use_(stream: u32, tick: u64) -> Use {
    Use { stream: StreamId::new(stream), tick }
}

fn numbers(blocks: &[PendingBlock]) -> Vec<u32> {
    blocks.iter().map(|pending| pending.block).collect()
}

proptest! {
    #[test]
    fn agrees_with_a_list(steps in steps()) {
        let mut pending = PendingBlocks::default();
        let mut model: Vec<(u32, Vec<Use>)> = Vec::new();
        let mut now = [10; STREAMS as usize];
        let mut done = [0; STREAMS as usize];
        for (block, step) in (0..).zip(&steps) {
            match step {
                Step::Push(streams) => {
                    let mut streams = streams.clone();
                    streams.sort_unstable();
                    streams.dedup();
                    let uses: Vec<Use> =
                        streams.iter().map(|&stream| use_(stream, now[stream as usize])).collect();
                    pending.push(PendingBlock { block, uses: uses.iter().copied().collect() });
                    model.push((block, uses));
                }
                Step::Tick(stream, ticks) => now[*stream as usize] += ticks,
                Step::Settle(stream, ago) => {
                    let stream = *stream as usize;
                    done[stream] = done[stream].max(now[stream] - ago);
                    let is_done = |use_: Use| use_.tick <= done[use_.stream.index()];
                    let settled = pending.extract_done(is_done);
                    let expected: Vec<u32> = model
                        .extract_if(.., |(_, uses)| uses.iter().all(|use_| is_done(*use_)))
                        .map(|(block, _)| block)
                        .collect();
                    prop_assert_eq!(numbers(&settled), expected);
                    model.iter_mut().for_each(|(_, uses)| uses.retain(|use_| !is_done(*use_)));
                }
                Step::Oldest(streams) => {
                    let may = |use_: Use| streams.contains(&use_.stream.get());
                    let oldest = pending.oldest(may).and_then(|number| pending.remove(number));
                    let expected = model.iter().position(|(_, uses)| uses.iter().all(|use_| may(*use_)));
                    let expected = expected.map(|at| model.remove(at).0);
                    prop_assert_eq!(oldest.map(|pending| pending.block), expected);
                }
                Step::Extract(every) => {
                    let gone = pending.extract(|pending| pending.block.is_multiple_of(*every));
                    let expected: Vec<u32> = model
                        .extract_if(.., |(block, _)| block.is_multiple_of(*every))
                        .map(|(block, _)| block)
                        .collect();
                    prop_assert_eq!(numbers(&gone), expected);
                }
            }
            let known: Vec<(u32, Vec<Use>)> =
                pending.iter().map(|pending| (pending.block, pending.uses.to_vec())).collect();
            prop_assert_eq!(&known, &model);
            prop_assert_eq!(pending.is_empty(), model.is_empty());
            let last: Vec<Use> = pending.last_uses().collect();
            let all = || model.iter().flat_map(|(_, uses)| uses);
            let expected: Vec<Use> = (0..STREAMS)
                .filter_map(|stream| all().filter(|use_| use_.stream.get() == stream).max_by_key(|use_| use_.tick))
                .copied()
                .collect();
            prop_assert_eq!(last, expected);
        }
    }
}

/// How often a look asks what is done, or may be followed, with so many blocks of two streams that are not.
fn questions(blocks: u32, look: impl FnOnce(&mut PendingBlocks, &Cell<u64>)) -> u64 {
    let mut pending = PendingBlocks::default();
    for block in 0..blocks {
        pending.push(PendingBlock { block, uses: Uses::from_iter([use_(block % 2, u64::from(block))]) });
    }
    let asked = Cell::new(0);
    look(&mut pending, &asked);
    asked.get()
}

#[test]
fn a_look_does_not_grow_with_what_stays() {
    for blocks in [10, 10_000] {
        let in_vain = questions(blocks, |pending, asked| {
            let never = |_| {
                asked.set(asked.get() + 1);
                false
            };
            assert!(pending.extract_done(never).is_empty());
            assert_eq!(pending.oldest(never), None);
        });
        assert_eq!(in_vain, 4, "one question a stream, of {blocks} blocks");
        let some = questions(blocks, |pending, asked| {
            let early = |use_: Use| {
                asked.set(asked.get() + 1);
                use_.tick < 6
            };
            assert_eq!(numbers(&pending.extract_done(early)), [0, 1, 2, 3, 4, 5]);
        });
        assert_eq!(some, 8, "one question a block that comes back, and one a stream, of {blocks} blocks");
    }
}

//! The table of blocks against a trivial model: for each arena a list of ranges.

use std::collections::HashSet;

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::*;

const ARENAS: usize = 3;

/// Blocks are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Append { arena: usize, steps: u32 },
    Split { nth: usize, at: u32 },
    AbsorbNext { nth: usize },
    Rename { nth: usize, state: BlockState },
}

fn step() -> impl Strategy<Value = Step> {
    let state = prop::sample::select(vec![
        BlockState::Hole,
        BlockState::Claimed,
        BlockState::Live,
        BlockState::Binned,
        BlockState::Pending,
    ]);
    prop_oneof![
        3 => (0..ARENAS, 1..50_u32).prop_map(|(arena, steps)| Step::Append { arena, steps }),
        4 => (any::<usize>(), any::<u32>()).prop_map(|(nth, at)| Step::Split { nth, at }),
        4 => any::<usize>().prop_map(|nth| Step::AbsorbNext { nth }),
        2 => (any::<usize>(), state).prop_map(|(nth, state)| Step::Rename { nth, state }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    number: u32,
    steps: u32,
    state: BlockState,
}

#[derive(Default)]
struct Run {
    table: BlockTable,
    arenas: [Vec<Range>; ARENAS],
    /// Every number and generation that a block ever had.
    handles: HashSet<(u32, u32)>,
}

impl Run {
    fn pick(&self, nth: usize) -> Option<(usize, usize)> {
        let places = |arena: usize| (0..self.arenas[arena].len()).map(move |at| (arena, at));
        let all: Vec<_> = (0..ARENAS).flat_map(places).collect();
        all.get(nth.checked_rem(all.len())?).copied()
    }

    fn note_new(&mut self, number: u32) -> Result<(), TestCaseError> {
        let handle = (number, self.table.get(number).generation);
        prop_assert!(self.handles.insert(handle), "{:?} was another block before", handle);
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Append { arena, steps } => {
                let (last, start) = match self.arenas[arena].last() {
                    Some(last) => (last.number, self.table.get(last.number).end()),
                    None => (NONE, 0),
                };
                let number = self.table.append(arena as u32, last, start, steps, BlockState::Claimed);
                self.note_new(number)?;
                self.arenas[arena].push(Range { number, steps, state: BlockState::Claimed });
            }
            Step::Split { nth, at } => {
                let Some((arena, place)) = self.pick(nth) else { return Ok(()) };
                let whole = self.arenas[arena][place];
                if whole.steps == 1 {
                    return Ok(());
                }
                let first = 1 + at % (whole.steps - 1);
                let number = self.table.split(whole.number, first);
                self.note_new(number)?;
                prop_assert_eq!(self.table.get(number).bytes(), 0);
                self.arenas[arena][place].steps = first;
                self.arenas[arena].insert(place + 1, Range { number, steps: whole.steps - first, ..whole });
            }
            Step::AbsorbNext { nth } => {
                let Some((arena, place)) = self.pick(nth) else { return Ok(()) };
                if place + 1 == self.arenas[arena].len() {
                    return Ok(());
                }
                let gone = self.arenas[arena].remove(place + 1);
                self.arenas[arena][place].steps += gone.steps;
                let generation = self.table.get(gone.number).generation;
                self.table.absorb_next(self.arenas[arena][place].number);
                let vacant = self.table.find(gone.number).unwrap();
                prop_assert_eq!(vacant.state(), BlockState::Vacant);
                prop_assert_ne!(vacant.generation, generation, "an old handle must not fit");
            }
            Step::Rename { nth, state } => {
                let Some((arena, place)) = self.pick(nth) else { return Ok(()) };
                let range = &mut self.arenas[arena][place];
                range.state = state;
                self.table.get_mut(range.number).set_state(state);
            }
        }
        self.compare()
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        for (arena, ranges) in self.arenas.iter().enumerate() {
            let mut start = 0;
            for (at, range) in ranges.iter().enumerate() {
                let block = self.table.get(range.number);
                prop_assert_eq!((block.arena, block.start), (arena as u32, start));
                prop_assert_eq!((block.steps, block.state()), (range.steps, range.state));
                start += range.steps;
                prop_assert_eq!(block.end(), start);
                let before = at.checked_sub(1).map(|before| ranges[before].number);
                prop_assert_eq!(self.table.prev(range.number), before);
                prop_assert_eq!(self.table.next(range.number), ranges.get(at + 1).map(|next| next.number));
            }
        }
        let mut numbers: Vec<u32> = self.arenas.iter().flatten().map(|range| range.number).collect();
        numbers.sort_unstable();
        prop_assert_eq!(self.table.iter().map(|(number, _)| number).collect::<Vec<_>>(), numbers);
        Ok(())
    }
}

proptest! {
    #[test]
    fn agrees_with_lists_of_ranges(steps in prop::collection::vec(step(), 1..200)) {
        let mut run = Run::default();
        for (index, step) in steps.iter().enumerate() {
            run.step(step).map_err(|error| TestCaseError::fail(format!("step {index}, {step:?}: {error}")))?;
        }
    }
}

#[test]
fn vacant_numbers_are_given_again() {
    let mut table = BlockTable::default();
    let first = table.append(0, NONE, 0, 8, BlockState::Hole);
    let second = table.split(first, 3);
    table.absorb_next(first);
    assert_eq!(table.get(first).steps, 8);
    assert_eq!((table.find(second).unwrap().generation, table.find(2).is_none()), (1, true));
    assert_eq!(table.split(first, 5), second, "the table does not grow");
    assert_eq!((table.get(second).start, table.get(second).generation), (5, 1));
}

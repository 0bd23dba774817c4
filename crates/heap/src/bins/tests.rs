//! Bins against a trivial model: a list of blocks, each with its size.

use proptest::prelude::*;

use super::*;
use crate::step::STEP_BYTES;

#[derive(Clone, Debug)]
enum Step {
    Push { steps: u32 },
    Pop { steps: u32 },
    Empty,
}

fn step() -> impl Strategy<Value = Step> {
    // A few small sizes that meet often, and large ones that fill the bins.
    let steps = || prop_oneof![1..4_u32, 100..700_u32];
    prop_oneof![
        8 => steps().prop_map(|steps| Step::Push { steps }),
        4 => steps().prop_map(|steps| Step::Pop { steps }),
        1 => Just(Step::Empty),
    ]
}

proptest! {
    #[test]
    fn agree_with_a_list(steps in prop::collection::vec(step(), 1..150)) {
        let mut bins = Bins::default();
        // In the order of the pushes: size and block.
        let mut model: Vec<(u32, u32)> = Vec::new();
        for (block, step) in (0..).zip(steps) {
            match step {
                Step::Push { steps } => {
                    let kept: u64 = model.iter().map(|(steps, _)| u64::from(*steps)).sum();
                    let fits = (kept + u64::from(steps)) * STEP_BYTES <= BINS_BYTES;
                    prop_assert_eq!(bins.push(block, steps), fits);
                    if fits {
                        model.push((steps, block));
                    }
                }
                Step::Pop { steps } => {
                    let last = model.iter().rposition(|(size, _)| *size == steps);
                    prop_assert_eq!(bins.pop(steps), last.map(|at| model.remove(at).1));
                }
                Step::Empty => {
                    // A stable sort: in a bin, the order of the pushes.
                    model.sort_by_key(|(steps, _)| *steps);
                    let expected: Vec<u32> = model.drain(..).map(|(_, block)| block).collect();
                    prop_assert_eq!(bins.empty(), expected);
                }
            }
            let bytes: u64 = model.iter().map(|(steps, _)| u64::from(*steps) * STEP_BYTES).sum();
            prop_assert_eq!(bins.bytes(), bytes);
            prop_assert!(bytes <= BINS_BYTES);
            prop_assert_eq!(bins.is_empty(), model.is_empty());
        }
    }
}

#[test]
fn full_to_the_last_step() {
    let mut bins = Bins::default();
    let most = (BINS_BYTES / STEP_BYTES) as u32;
    assert!(bins.push(0, most - 1));
    assert!(!bins.push(1, 2));
    assert!(bins.push(1, 1));
    assert_eq!(bins.bytes(), BINS_BYTES);
    assert!(!bins.push(2, 1));
    assert_eq!(bins.pop(1), Some(1));
    assert!(bins.push(2, 1));
}

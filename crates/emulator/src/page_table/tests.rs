//! The page table against a plain map of pages, across the borders of leaves.
//!
//! Main types: none. Neighbours: `page_table`.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{LEAF_PAGES, PageTable};

const PAGES: u64 = 5 * LEAF_PAGES - 100;

/// A run of pages: near a leaf's border, or anywhere.
fn run() -> impl Strategy<Value = (u64, u64)> {
    let near = (1..5_u64, 0..20_u64).prop_map(|(leaf, back)| leaf * LEAF_PAGES - back);
    let first = prop_oneof![near, 0..PAGES];
    let length = prop_oneof![1..30_u64, 1..3 * LEAF_PAGES];
    (first, length).prop_map(|(first, length)| (first.min(PAGES - 1), (first + length).min(PAGES)))
}

proptest! {
    #[test]
    fn agrees_with_a_map(steps in prop::collection::vec((run(), prop::option::of(0..9_u32)), 1..20), ask in run()) {
        let mut table = PageTable::new(PAGES);
        let mut model = BTreeMap::new();
        for ((first, end), mapping) in steps {
            match mapping {
                Some(mapping) => {
                    table.set(first, end, mapping);
                    model.extend((first..end).map(|page| (page, mapping)));
                }
                None => {
                    table.clear(first, end);
                    model.retain(|page, _| !(first..end).contains(page));
                }
            }
            let (first, end) = ask;
            for (first, end) in [(first, end), (0, PAGES)] {
                prop_assert_eq!(table.first_mapped(first, end), model.range(first..end).next().map(|(&page, _)| page));
            }
        }
        for page in 0..PAGES {
            prop_assert_eq!(table.get(page), model.get(&page).copied(), "page {}", page);
        }
    }
}

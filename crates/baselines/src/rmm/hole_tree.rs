//! Holes in the order of their addresses, with the first that is large enough found in logarithmic time.
//!
//! Main type: [`HoleTree`]. Neighbours: `superblocks` has one for each arena.
//!
//! RMM walks from the lowest address on until a hole fits. This is a treap (R. Seidel and C. R. Aragon, "Randomized search
//! trees", Algorithmica 16, 1996) in which each node knows the longest hole below it. Priorities are mixed from
//! addresses, so that the same holes always make the same tree.

/// The place of a node.
type Link = Option<u32>;

/// A hole, and the tree of those below it.
#[derive(Debug)]
struct Node {
    start: u64,
    bytes: u64,
    /// Bytes of the longest hole in this tree.
    longest: u64,
    left: Link,
    right: Link,
}

#[derive(Debug, Default)]
pub(crate) struct HoleTree {
    nodes: Vec<Node>,
    /// Nodes that are in no tree.
    vacant: Vec<u32>,
    root: Link,
}

/// The mixing function of `splitmix64` (S. Vigna, <https://prng.di.unimi.it/splitmix64.c>).
const fn priority(start: u64) -> u64 {
    let mut mixed = start.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl HoleTree {
    fn at(&self, place: u32) -> &Node {
        &self.nodes[place as usize]
    }

    fn at_mut(&mut self, place: u32) -> &mut Node {
        &mut self.nodes[place as usize]
    }

    fn longest(&self, tree: Link) -> u64 {
        tree.map_or(0, |place| self.at(place).longest)
    }

    fn update(&mut self, place: u32) {
        let &Node { bytes, left, right, .. } = self.at(place);
        self.at_mut(place).longest = bytes.max(self.longest(left)).max(self.longest(right));
    }

    /// Adds a hole where none begins yet.
    pub(crate) fn insert(&mut self, start: u64, bytes: u64) {
        let node = Node { start, bytes, longest: bytes, left: None, right: None };
        let place = if let Some(place) = self.vacant.pop() {
            self.nodes[place as usize] = node;
            place
        } else {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 holes")
        };
        let (below, above) = self.split(self.root, start);
        let below = self.join(below, Some(place));
        self.root = self.join(below, above);
    }

    /// Takes out the hole that begins there: its bytes.
    pub(crate) fn remove(&mut self, start: u64) -> Option<u64> {
        let (below, rest) = self.split(self.root, start);
        let (found, above) = self.split(rest, start.saturating_add(1));
        self.root = self.join(below, above);
        let place = found?;
        self.vacant.push(place);
        Some(self.at(place).bytes)
    }

    /// The hole with the lowest address of those that have so many bytes: where it begins, and its bytes.
    pub(crate) fn first_fit(&self, bytes: u64) -> Option<(u64, u64)> {
        if self.longest(self.root) < bytes {
            return None;
        }
        let mut tree = self.root;
        while let Some(place) = tree {
            let node = self.at(place);
            if self.longest(node.left) >= bytes {
                tree = node.left;
            } else if node.bytes >= bytes {
                return Some((node.start, node.bytes));
            } else {
                tree = node.right;
            }
        }
        None
    }

    /// The last hole that begins before an address, as [`first_fit`](Self::first_fit) gives it.
    pub(crate) fn last_before(&self, address: u64) -> Option<(u64, u64)> {
        let (mut tree, mut last) = (self.root, None);
        while let Some(place) = tree {
            let node = self.at(place);
            if node.start < address {
                last = Some((node.start, node.bytes));
                tree = node.right;
            } else {
                tree = node.left;
            }
        }
        last
    }

    /// The first hole that begins at an address or behind it, likewise.
    pub(crate) fn first_from(&self, address: u64) -> Option<(u64, u64)> {
        let (mut tree, mut first) = (self.root, None);
        while let Some(place) = tree {
            let node = self.at(place);
            if node.start < address {
                tree = node.right;
            } else {
                first = Some((node.start, node.bytes));
                tree = node.left;
            }
        }
        first
    }

    /// Two trees of one: what begins before an address, and the others.
    fn split(&mut self, tree: Link, address: u64) -> (Link, Link) {
        let Some(place) = tree else { return (None, None) };
        let &Node { start, left, right, .. } = self.at(place);
        let halves = if start < address {
            let (below, above) = self.split(right, address);
            self.at_mut(place).right = below;
            (tree, above)
        } else {
            let (below, above) = self.split(left, address);
            self.at_mut(place).left = above;
            (below, tree)
        };
        self.update(place);
        halves
    }

    /// One tree of two, of which the first lies before the second.
    fn join(&mut self, below: Link, above: Link) -> Link {
        let (Some(low), Some(high)) = (below, above) else { return below.or(above) };
        let (top, side) = if priority(self.at(low).start) >= priority(self.at(high).start) {
            let right = self.at(low).right;
            (low, self.join(right, above))
        } else {
            let left = self.at(high).left;
            (high, self.join(below, left))
        };
        if top == low {
            self.at_mut(top).right = side;
        } else {
            self.at_mut(top).left = side;
        }
        self.update(top);
        Some(top)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::{Strategy, any, prop_assert_eq, prop_oneof, proptest};

    use super::HoleTree;

    #[derive(Clone, Copy, Debug)]
    enum Op {
        Insert(u64, u64),
        Remove(u64),
        FirstFit(u64),
        Around(u64),
    }

    fn ops() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..64_u64, 1..20_u64).prop_map(|(start, bytes)| Op::Insert(start, bytes)),
            2 => (0..64_u64).prop_map(Op::Remove),
            2 => (1..24_u64).prop_map(Op::FirstFit),
            2 => (0..70_u64).prop_map(Op::Around),
            1 => any::<u8>().prop_map(|_| Op::Remove(u64::MAX)),
        ]
    }

    proptest! {
        #[test]
        fn it_finds_what_a_walk_finds(program in proptest::collection::vec(ops(), 1..200)) {
            let (mut tree, mut model) = (HoleTree::default(), BTreeMap::new());
            for op in program {
                match op {
                    Op::Insert(start, bytes) => {
                        if let std::collections::btree_map::Entry::Vacant(entry) = model.entry(start) {
                            entry.insert(bytes);
                            tree.insert(start, bytes);
                        }
                    }
                    Op::Remove(start) => prop_assert_eq!(tree.remove(start), model.remove(&start)),
                    Op::FirstFit(least) => {
                        let walked = model.iter().find(|(_, bytes)| **bytes >= least);
                        prop_assert_eq!(tree.first_fit(least), walked.map(|(&start, &bytes)| (start, bytes)));
                    }
                    Op::Around(address) => {
                        let before = model.range(..address).next_back();
                        prop_assert_eq!(tree.last_before(address), before.map(|(&start, &bytes)| (start, bytes)));
                        let from = model.range(address..).next();
                        prop_assert_eq!(tree.first_from(address), from.map(|(&start, &bytes)| (start, bytes)));
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_addresses_do_not_make_it_deep() {
        let mut tree = HoleTree::default();
        for at in 0..100_000_u64 {
            tree.insert(at * 256, 256 - at % 7);
        }
        let mut rows = vec![tree.root];
        let mut depth = 0;
        while !rows.is_empty() {
            let nodes = rows.iter().flatten().map(|&place| tree.at(place));
            rows = nodes.flat_map(|node| [node.left, node.right]).filter(Option::is_some).collect();
            depth += 1;
        }
        // A random treap of so many is about 40 deep.
        assert!(depth < 60, "{depth}");
    }
}

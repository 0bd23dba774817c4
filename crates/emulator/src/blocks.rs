//! The blocks that a program was given, and those that it gave back.
//!
//! Main types: [`Blocks`], [`Block`], [`Standing`]. Neighbours: `detector` asks whose addresses an access names.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::slab::{Key, Slab};
use crate::work::Access;

/// How many freed blocks are remembered, the latest.
const FREED: usize = 4096;

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) name: Arc<str>,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The stream in whose order it was freed.
    freed_on: Option<u32>,
}

/// How an access stands to the block that it means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Right,
    Freed { on: Option<u32> },
    Outside { start: u64, end: u64 },
}

#[derive(Debug)]
pub(crate) struct Blocks {
    blocks: Slab<Block>,
    /// By their start, live ones and freed ones; a new one drives out those in its place.
    places: BTreeMap<u64, Key>,
    freed: VecDeque<Key>,
}

impl Blocks {
    pub(crate) const fn new() -> Self {
        Self { blocks: Slab::new(), places: BTreeMap::new(), freed: VecDeque::new() }
    }

    pub(crate) fn allocate(&mut self, name: Arc<str>, start: u64, bytes: u64) -> Key {
        let end = start.saturating_add(bytes);
        while let Some((place, _)) = self.at(start, end) {
            self.places.remove(&place);
        }
        let key = self.blocks.insert(Block { name, start, end, freed_on: None });
        self.places.insert(start, key);
        key
    }

    pub(crate) fn get(&self, key: Key) -> Option<&Block> {
        self.blocks.get(key)
    }

    /// The block is freed on a stream. How a free stands to it.
    pub(crate) fn free(&mut self, key: Key, stream: u32) -> Standing {
        match self.blocks.get(key) {
            None => return Standing::Freed { on: None },
            Some(Block { freed_on: Some(on), .. }) => return Standing::Freed { on: Some(*on) },
            Some(_) => {}
        }
        if self.freed.len() == FREED
            && let Some(oldest) = self.freed.pop_front()
        {
            let oldest_start = self.blocks.remove(oldest.slot).start;
            if self.places.get(&oldest_start) == Some(&oldest) {
                self.places.remove(&oldest_start);
            }
        }
        self.freed.push_back(key);
        self.blocks.at_mut(key.slot).freed_on = Some(stream);
        Standing::Right
    }

    /// The block that an access means, if one is known, and how it stands to it.
    pub(crate) fn of(&self, access: &Access) -> (Option<&Block>, Standing) {
        let start = access.address.get();
        let end = start.saturating_add(access.bytes);
        let Some(block) = access.block else {
            let found = self.at(start, end).and_then(|(_, key)| self.blocks.get(key));
            let freed = found.and_then(|block| block.freed_on);
            return (found, freed.map_or(Standing::Right, |on| Standing::Freed { on: Some(on) }));
        };
        match self.blocks.get(block.0) {
            None => (None, Standing::Freed { on: None }),
            Some(block) => {
                let standing = match block.freed_on {
                    Some(on) => Standing::Freed { on: Some(on) },
                    None if start < block.start || end > block.end => {
                        Standing::Outside { start: block.start, end: block.end }
                    }
                    None => Standing::Right,
                };
                (Some(block), standing)
            }
        }
    }

    /// The first block with a byte in a range.
    fn at(&self, start: u64, end: u64) -> Option<(u64, Key)> {
        let before = self.places.range(..=start).next_back();
        let reaches = |key: &Key| self.blocks.get(*key).is_some_and(|block| block.end > start);
        let found = before.filter(|(_, key)| reaches(key)).or_else(|| self.places.range(start..end).next());
        found.map(|(place, key)| (*place, *key))
    }
}

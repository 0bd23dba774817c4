//! Mapped memory that no block has, by address, size and age.
//!
//! Main types: [`FreeRegions`], [`Region`]. Neighbours: `vpmm` searches; `defragment` takes what lies about.
//!
//! Source: stark-backend, `vm_pool.rs`: `FreeRegionMeta`, `find_best_fit`, and the order in
//! `defragment_or_create_new_pages`. The source looks at all regions one by one; here they are indexed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// A run of whole pages.
#[derive(Debug)]
pub(crate) struct Region<E> {
    pub(crate) bytes: u64,
    /// Whose work came last here.
    pub(crate) stream: u32,
    /// Recorded on that stream behind this work.
    pub(crate) event: Arc<E>,
    /// How many regions were filed before.
    pub(crate) id: u64,
}

#[derive(Debug)]
pub(crate) struct FreeRegions<E> {
    by_address: BTreeMap<u64, Region<E>>,
    /// Stream, bytes, address.
    by_size: BTreeSet<(u32, u64, u64)>,
    /// Stream, id, address.
    own_by_age: BTreeSet<(u32, u64, u64)>,
    /// Id, address.
    by_age: BTreeSet<(u64, u64)>,
    bytes: u64,
}

impl<E> FreeRegions<E> {
    pub(crate) const fn new() -> Self {
        Self {
            by_address: BTreeMap::new(),
            by_size: BTreeSet::new(),
            own_by_age: BTreeSet::new(),
            by_age: BTreeSet::new(),
            bytes: 0,
        }
    }

    /// Bytes of all of them.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn at(&self, address: u64) -> Option<&Region<E>> {
        self.by_address.get(&address)
    }

    pub(crate) fn insert(&mut self, address: u64, region: Region<E>) {
        self.by_size.insert((region.stream, region.bytes, address));
        self.own_by_age.insert((region.stream, region.id, address));
        self.by_age.insert((region.id, address));
        self.bytes += region.bytes;
        self.by_address.insert(address, region);
    }

    pub(crate) fn remove(&mut self, address: u64) -> Option<Region<E>> {
        let region = self.by_address.remove(&address)?;
        self.by_size.remove(&(region.stream, region.bytes, address));
        self.own_by_age.remove(&(region.stream, region.id, address));
        self.by_age.remove(&(region.id, address));
        self.bytes -= region.bytes;
        Some(region)
    }

    /// The smallest region of the stream with `bytes`; of equal ones the lowest.
    pub(crate) fn best_fit(&self, stream: u32, bytes: u64) -> Option<u64> {
        self.fitting(stream, bytes).next().map(|(_, address)| address)
    }

    /// Regions of the stream with `bytes` or more, the smallest first: bytes and address.
    pub(crate) fn fitting(&self, stream: u32, bytes: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let range = (stream, bytes, 0)..=(stream, u64::MAX, u64::MAX);
        self.by_size.range(range).map(|&(_, bytes, address)| (bytes, address))
    }

    /// The addresses of all regions: those of the stream first, and each group from the oldest on.
    pub(crate) fn oldest_first(&self, stream: u32) -> impl Iterator<Item = u64> + '_ {
        let own = self.own_by_age.range((stream, 0, 0)..=(stream, u64::MAX, u64::MAX));
        let others = self.by_age.iter().filter(move |(_, address)| self.by_address[address].stream != stream);
        own.map(|&(_, _, address)| address).chain(others.map(|&(_, address)| address))
    }

    /// Takes out the neighbours of the stream that touch these addresses in their chunk: where the whole begins, and
    /// its bytes.
    pub(crate) fn absorb_neighbours(
        &mut self,
        mut address: u64,
        mut bytes: u64,
        stream: u32,
        chunk: Range<u64>,
    ) -> (u64, u64) {
        let after = address + bytes;
        if after < chunk.end
            && self.at(after).is_some_and(|next| next.stream == stream)
            && let Some(next) = self.remove(after)
        {
            bytes += next.bytes;
        }
        let before = self.by_address.range(chunk.start..address).next_back();
        let touching = before.filter(|(at, region)| region.stream == stream && *at + region.bytes == address);
        if let Some((&at, _)) = touching
            && let Some(region) = self.remove(at)
        {
            address = at;
            bytes += region.bytes;
        }
        (address, bytes)
    }
}

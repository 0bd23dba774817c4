//! Pinned memory of the host: copies from and to it are asynchronous in earnest.
//!
//! Main types: [`Pinned`]. Neighbours: `exports::host` allocates and registers, `exports::copy` asks.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::code::{Code, Outcome};

/// Pinned memory begins at a page.
const ALIGNMENT: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Range {
    bytes: usize,
    /// How it was allocated here; nothing if the program registered its own.
    layout: Option<Layout>,
}

/// All pinned ranges, by address.
#[derive(Debug, Default)]
pub(crate) struct Pinned {
    ranges: Mutex<BTreeMap<usize, Range>>,
}

impl Pinned {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Range>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Outcome<usize> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| Code::OUT_OF_MEMORY)?;
        if bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the size is above 0.
        let start = unsafe { alloc_zeroed(layout) } as usize;
        if start == 0 {
            return Err(Code::OUT_OF_MEMORY);
        }
        self.lock().insert(start, Range { bytes, layout: Some(layout) });
        Ok(start)
    }

    /// Frees what was allocated here. The caller has waited for all work.
    pub(crate) fn free(&self, start: usize) -> Outcome {
        let mut ranges = self.lock();
        let layout = ranges.get(&start).and_then(|range| range.layout).ok_or(Code::INVALID_VALUE)?;
        ranges.remove(&start);
        // SAFETY: it was allocated with this layout, and is not in the table any more.
        unsafe { dealloc(start as *mut u8, layout) };
        Ok(())
    }

    pub(crate) fn register(&self, start: usize, bytes: usize) -> Outcome {
        let end = start.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
        if start == 0 || bytes == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let mut ranges = self.lock();
        if ranges.range(..end).next_back().is_some_and(|(&at, range)| at + range.bytes > start) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        ranges.insert(start, Range { bytes, layout: None });
        Ok(())
    }

    pub(crate) fn unregister(&self, start: usize) -> Outcome {
        let mut ranges = self.lock();
        match ranges.get(&start) {
            Some(Range { layout: None, .. }) => {
                ranges.remove(&start);
                Ok(())
            }
            _ => Err(Code::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// Whether all these bytes are pinned.
    pub(crate) fn contains(&self, start: usize, bytes: usize) -> bool {
        let ranges = self.lock();
        let before = ranges.range(..=start).next_back();
        before.is_some_and(|(&at, range)| start.saturating_add(bytes) <= at + range.bytes)
    }

    pub(crate) fn len(&self) -> u64 {
        self.lock().len() as u64
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for (&start, range) in self.lock().iter() {
            if let Some(layout) = range.layout {
                // SAFETY: it was allocated with this layout, once, and the table goes now.
                unsafe { dealloc(start as *mut u8, layout) };
            }
        }
    }
}

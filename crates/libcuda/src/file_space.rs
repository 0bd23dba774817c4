//! Which bytes of the memory file a frame gets. The file is sparse and far larger than any device, so space in it is only
//! given again to frames of the same size: nothing fragments.
//!
//! Main types: [`FileSpace`]. Neighbours: `memory` takes a stretch for each frame.

use std::collections::HashMap;

#[derive(Debug)]
pub(crate) struct FileSpace {
    next: u64,
    end: u64,
    /// Offsets given back, by size in bytes.
    idle: HashMap<u64, Vec<u64>>,
}

impl FileSpace {
    /// The bytes from 0 to `end`.
    pub(crate) fn new(end: u64) -> Self {
        Self { next: 0, end, idle: HashMap::new() }
    }

    /// The offset of `bytes` that nobody uses, if there are any.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        if let Some(offset) = self.idle.get_mut(&bytes).and_then(Vec::pop) {
            return Some(offset);
        }
        let offset = self.next;
        self.next = offset.checked_add(bytes).filter(|&next| next <= self.end)?;
        Some(offset)
    }

    /// Gives back what one `take` gave.
    pub(crate) fn give_back(&mut self, offset: u64, bytes: u64) {
        self.idle.entry(bytes).or_default().push(offset);
    }
}

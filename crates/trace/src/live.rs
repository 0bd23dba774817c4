//! The IDs that are live at a point of a trace, and the slots that stand for them.
//!
//! Main types: [`LiveIds`]. Neighbours: `reader` and `writer` check events against it, `loaded` takes the slots.

use std::collections::HashMap;

use crate::event::{Event, Letter};
use crate::mistake::Mistake;

/// What is known of a live block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    line: u64,
}

/// Live IDs, each with a slot: a small number, given again as soon as its block is freed.
#[derive(Debug, Default)]
pub(crate) struct LiveIds {
    slots: HashMap<u64, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    bytes: u64,
}

impl LiveIds {
    /// Checks an event of this line against the events before and takes it over. The slot of the block that it names,
    /// if it names one. A mistake changes nothing.
    pub(crate) fn apply(&mut self, event: &Event, line: u64) -> Result<Option<u32>, Mistake> {
        match *event {
            Event::Allocate { id, bytes, .. } => self.allocate(id, bytes, line).map(Some),
            Event::Free { id } => {
                let slot = self.slots.remove(&id).ok_or(Mistake::NotLive { letter: Letter::F, id })?;
                self.bytes -= self.entries[slot as usize].bytes;
                self.free.push(slot);
                Ok(Some(slot))
            }
            Event::RecordStream { id, .. } => {
                self.slots.get(&id).copied().map(Some).ok_or(Mistake::NotLive { letter: Letter::U, id })
            }
            _ => Ok(None),
        }
    }

    fn allocate(&mut self, id: u64, bytes: u64, line: u64) -> Result<u32, Mistake> {
        if let Some(&slot) = self.slots.get(&id) {
            return Err(Mistake::AllocatedAgain { id, since_line: self.entries[slot as usize].line });
        }
        let total = self.bytes.checked_add(bytes).ok_or(Mistake::TooMuchLive { id, bytes })?;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.entries.len()).map_err(|_| Mistake::TooManyLive)?;
                self.entries.push(Entry { bytes: 0, line: 0 });
                slot
            }
        };
        self.entries[slot as usize] = Entry { bytes, line };
        self.bytes = total;
        self.slots.insert(id, slot);
        Ok(slot)
    }

    /// Bytes that are live, as asked.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most blocks that were live at once: slots are below it.
    pub(crate) fn slot_count(&self) -> u32 {
        // `allocate` made sure that it fits.
        self.entries.len() as u32
    }
}

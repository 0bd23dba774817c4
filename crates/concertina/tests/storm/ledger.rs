//! Which bytes of which memory have an owner, kept beside the allocator and without its help.
//!
//! Main type: [`Ledger`]. Neighbours: `site` writes in it what is handed out and what comes back.

use std::collections::HashMap;
use std::ops::Range;

use concertina_emulator::{BackingId, Piece};

#[derive(Default)]
pub(crate) struct Ledger {
    owned: HashMap<BackingId, Vec<Range<u64>>>,
    pub(crate) live_bytes: u64,
}

/// The memory behind a piece, and which bytes of it; none if nothing is there, or no access was given.
fn bytes_behind(piece: &Piece) -> Option<(BackingId, Range<u64>)> {
    let backing = piece.backing.filter(|backing| backing.accessible)?;
    Some((backing.memory, backing.offset_bytes..backing.offset_bytes + piece.bytes))
}

impl Ledger {
    /// Somebody owns these bytes now.
    ///
    /// # Panics
    /// If they are not there, or somebody else owns one of them.
    pub(crate) fn hand_out(&mut self, pieces: &[Piece]) {
        for piece in pieces {
            let (memory, bytes) =
                bytes_behind(piece).unwrap_or_else(|| panic!("handed out with nothing behind it: {piece:?}"));
            let owned = self.owned.entry(memory).or_default();
            let shared = owned.iter().find(|other| other.start < bytes.end && bytes.start < other.end);
            assert!(shared.is_none(), "{memory:?}: {bytes:?} and {shared:?} have two owners");
            self.live_bytes += piece.bytes;
            owned.push(bytes);
        }
    }

    /// The owner of exactly these bytes gives them back.
    ///
    /// # Panics
    /// If they were not handed out so.
    pub(crate) fn take_back(&mut self, pieces: &[Piece]) {
        for (memory, bytes) in pieces.iter().filter_map(bytes_behind) {
            let owned = self.owned.get_mut(&memory);
            let at = owned.as_ref().and_then(|owned| owned.iter().position(|other| *other == bytes));
            let (Some(owned), Some(at)) = (owned, at) else { panic!("{memory:?}: nobody owns {bytes:?}") };
            owned.swap_remove(at);
            if owned.is_empty() {
                self.owned.remove(&memory);
            }
            self.live_bytes -= bytes.end - bytes.start;
        }
    }
}

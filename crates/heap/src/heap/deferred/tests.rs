//! The names of blocks whose free is deferred. Neighbours: `concertina/tests/many_blocks.rs` has what programs see; their random
//! programs, and the storm, defer in half of their setups.

use std::collections::HashSet;

use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_vmm::sync::Arc;
use concertina_vmm::{Device, FrameProperties};

use crate::block_id::BlockId;
use crate::cell::Freeing;
use crate::heaps::Heaps;
use crate::policy::Settings;
use crate::references::Take;
use crate::step::{Kind, Request, STEP_BYTES};
use crate::stream_heaps::StreamHeaps;

/// Bytes of all blocks: too many for a bin.
const BYTES: u64 = 4 << 10;

fn allocate(heaps: &Heaps<Emulator>, stream: &StreamHeaps<Emulator>) -> BlockId {
    let (cell, request) = (stream.cell(Kind::Small), Request::new(BYTES, STEP_BYTES).unwrap());
    let hit = match stream.hit_again(&request, Take::None) {
        Ok(hit) => Some(hit),
        Err(entered) => cell.hit_entered(entered, &request, Take::None),
    };
    let granted = hit.map_or_else(|| heaps.allocate_missed(cell, &request).unwrap(), |(granted, _)| granted);
    granted.id
}

/// A free by address that comes late must not find another block under the name that it read.
#[test]
fn no_name_of_a_block_comes_again() {
    let emulator = Emulator::new(EmulatorConfig::default()).unwrap();
    let device = Device::new(emulator.clone(), FrameProperties::default()).unwrap();
    let settings = Settings { deferred_from_blocks: Some(0), ..Settings::default() };
    let heaps = Arc::new(Heaps::new(device, settings).unwrap());
    let clock = heaps.register(emulator.stream(), None);
    let stream = StreamHeaps::new(&heaps, &clock);
    let mut live: Vec<BlockId> = (0..10).map(|_| allocate(&heaps, &stream)).collect();
    let mut names: HashSet<BlockId> = live.iter().copied().collect();
    for round in 0..200 {
        let id = live.remove(round * 7 % live.len());
        stream.free_owned(Freeing { id, bytes: BYTES }).unwrap();
        if round % 16 == 0 {
            // Whoever looks has both of them done.
            assert!(stream.cell(Kind::Small).lock().deferred.is_empty());
        }
        let id = allocate(&heaps, &stream);
        assert!(names.insert(id), "{id:?} in round {round}");
        live.push(id);
    }
    let numbers: HashSet<u32> = names.iter().map(|id| id.number()).collect();
    assert!(numbers.len() < 20, "numbers are used again");
}

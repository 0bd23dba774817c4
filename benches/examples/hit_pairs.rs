//! So many pairs of an allocation and its free that make no driver call, and nothing else: for a profiler, and for
//! `cargo xtask instructions`, which runs it twice under callgrind and takes the difference.
//!
//! Neighbours: `benches/hit_path.rs` times the same pairs. Prints nothing; an error, or a driver call in a pair, is exit
//! code 1.

use std::error::Error;
use std::hint::black_box;

use concertina::{Allocator, Config, Layout};
use concertina_emulator::{Emulator, EmulatorConfig};

/// Blocks that stay live beside the pair, so that the heap is not empty.
const NEIGHBOURS: usize = 1_000;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [face, bytes, pairs] = arguments.as_slice() else {
        return Err("usage: hit_pairs handle|scoped|raw|on-stream|by-address BYTES PAIRS".into());
    };
    let (layout, pairs) = (Layout::new(bytes.parse()?), pairs.parse::<u64>()?);

    let device = Emulator::new(EmulatorConfig::default())?;
    let allocator = Allocator::new(device.clone(), Config::default())?;
    let stream = allocator.register_stream(device.stream());
    let neighbours = (0..NEIGHBOURS)
        .map(|_| allocator.allocate(Layout::new(64 << 10), &stream))
        .collect::<Result<Vec<_>, _>>()?;
    // The first pair grows the heap; what it leaves is held.
    drop(allocator.allocate(layout, &stream)?);
    let calls = device.counts().memory_calls();
    match face.as_str() {
        "handle" => {
            for _ in 0..pairs {
                drop(black_box(allocator.allocate(layout, &stream)?));
            }
        }
        "scoped" => {
            let on_stream = allocator.on(&stream)?;
            for _ in 0..pairs {
                drop(black_box(on_stream.allocate_scoped(layout)?));
            }
        }
        "raw" => {
            for _ in 0..pairs {
                allocator.free_raw(black_box(allocator.allocate_raw(layout, &stream)?))?;
            }
        }
        "on-stream" => {
            let on_stream = allocator.on(&stream)?;
            for _ in 0..pairs {
                on_stream.free_raw(black_box(on_stream.allocate_raw(layout)?))?;
            }
        }
        "by-address" => {
            let by_address = allocator.by_address();
            for _ in 0..pairs {
                by_address.free(black_box(by_address.allocate(layout, &stream)?))?;
            }
        }
        other => {
            return Err(format!("no face {other:?}: handle, scoped, raw, on-stream or by-address").into());
        }
    }
    if device.counts().memory_calls() != calls {
        return Err("a pair made a driver call".into());
    }
    drop(neighbours);
    Ok(())
}

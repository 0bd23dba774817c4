//! Cases of programs that ask for a little more each time, or on other streams each time.
//!
//! Neighbours: `case` has the reports. Each adds its events and returns the bytes of the device that the case demands,
//! if it demands one.

use crate::generator::builder::Builder;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Keys and values of a layer, or of both: 20 blocks that get one token longer at each step, each by a new block and a
/// free of the old one.
pub(super) fn concatenation(trace: &mut Builder) -> Option<u64> {
    let mut blocks: Vec<_> = (0..20).map(|_| trace.allocate(2 * MIB)).collect();
    for tokens in 513..=4_096 {
        if tokens % 512 == 1 {
            trace.mark(format!("{tokens} tokens"));
        }
        for block in &mut blocks {
            let longer = trace.allocate(4_096 * tokens);
            trace.free(std::mem::replace(block, longer));
        }
    }
    None
}

/// Inference with batches of growing size, in which all layers' tensors live until the end of the batch. What is N × A
/// in one batch fits into nothing of the batch before but N × A × B, and leaves a sliver there.
pub(super) fn batches(trace: &mut Builder) -> Option<u64> {
    const LAYERS: usize = 50;
    const A: u64 = 1_000_000;
    const B: u64 = 4;
    for batch in 32..=40 {
        trace.mark(format!("batch of {batch}"));
        let mut tensors = Vec::new();
        for _ in 0..LAYERS {
            tensors.push(trace.allocate(batch * A));
            tensors.push(trace.allocate(batch * A * B));
        }
        for tensor in tensors.into_iter().rev() {
            trace.free(tensor);
        }
    }
    None
}

/// Weights are converted layer by layer: a copy of 530 MiB passes, its result stays, and so does one of 270 MiB.
pub(super) fn two_kinds_of_weights(trace: &mut Builder) -> Option<u64> {
    for layer in 1..=36 {
        trace.mark(format!("layer {layer}"));
        let copy = trace.allocate(530 * MIB);
        trace.allocate(530 * MIB);
        trace.free(copy);
        trace.allocate(270 * MIB);
    }
    None
}

/// Each call asks for two new streams and gets two of the program's pool of 32, which come in turn.
pub(super) fn streams_per_call(trace: &mut Builder) -> Option<u64> {
    const STREAMS: u32 = 32;
    trace.allocate(8_000_000_000);
    for call in 0..64 {
        trace.mark(format!("call {}", call + 1));
        let streams = [2 * call, 2 * call + 1].map(|number| 1 + number % STREAMS);
        let buffers = streams.map(|stream| trace.allocate_on(GIB, stream));
        for stream in streams {
            trace.synchronize(stream);
        }
        for buffer in buffers {
            trace.free(buffer);
        }
    }
    None
}

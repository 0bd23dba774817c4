//! The work of a traced program: traces have none, so it is made up.
//!
//! Main types: [`Workload`], [`WorkModel`]. Neighbours: `replay` tells it of each event; the emulator runs it.
//!
//! Each allocation queues a kernel that writes the block on its stream; each free, and each use on another stream, one
//! that reads it there. A kernel takes 2 to 200 µs, log-uniform: as many in each octave. The host runs at most 1,000
//! kernels ahead of the device. Durations are drawn in the order of the trace, so that they are the same for every allocator.

use std::collections::VecDeque;

use concertina_emulator::{Access, BlockId, Detection, Emulator, Hang, Queued, Work};
use concertina_vmm::Address;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How many kernels the host may be ahead of the device.
const MOST_AHEAD: usize = 1000;
/// Shortest kernel, in nanoseconds.
const SHORTEST_NS: f64 = 2_000.0;
/// How many times longer the longest is.
const LONGEST: f64 = 100.0;

/// What a replay's program queues, and where.
#[derive(Clone, Copy, Debug)]
pub struct Workload<'a> {
    /// The device, on which the n-th stream is the trace's stream n.
    pub emulator: &'a Emulator,
    /// The seed of the durations.
    pub seed: u64,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct WorkBlock {
    id: BlockId,
    stream: u32,
    address: Address,
    bytes: u64,
}

/// The program on its way.
#[derive(Debug)]
pub(crate) struct WorkModel<'a> {
    emulator: &'a Emulator,
    dice: ChaCha8Rng,
    ahead: VecDeque<Queued>,
    /// By slot; of live blocks. Kept only if somebody looks for races.
    blocks: Option<Vec<Option<WorkBlock>>>,
    /// By slot: the stream of the block.
    streams: Vec<u32>,
}

impl<'a> WorkModel<'a> {
    /// Nothing queued, with room for so many live blocks.
    pub(crate) fn new(workload: Workload<'a>, slots: usize) -> Self {
        let Workload { emulator, seed } = workload;
        Self {
            emulator,
            dice: ChaCha8Rng::seed_from_u64(seed),
            ahead: VecDeque::with_capacity(MOST_AHEAD + 1),
            blocks: (emulator.detection() == Detection::On).then(|| vec![None; slots]),
            streams: vec![0; slots],
        }
    }

    /// The block of this line of the trace is the program's now.
    pub(crate) fn allocate(
        &mut self,
        line: u64,
        slot: u32,
        stream: u32,
        address: Address,
        bytes: u64,
    ) -> Result<(), Hang> {
        self.streams[slot as usize] = stream;
        let mut work = Work::new("write");
        if let Some(blocks) = &mut self.blocks {
            let name = format!("the block of line {line}");
            let id = self.emulator.block_allocated(name, address, bytes, &self.emulator.nth_stream(stream));
            blocks[slot as usize] = Some(WorkBlock { id, stream, address, bytes });
            work = work.touching(Access::write(address, bytes).of_block(id));
        }
        self.queue(stream, work)
    }

    /// The block is read on a stream.
    pub(crate) fn read(&mut self, slot: u32, stream: u32) -> Result<(), Hang> {
        let mut work = Work::new("read");
        if let Some(Some(block)) = self.blocks.as_ref().map(|blocks| blocks[slot as usize]) {
            work = work.touching(Access::read(block.address, block.bytes).of_block(block.id));
        }
        self.queue(stream, work)
    }

    /// The block is read on its own stream for the last time.
    pub(crate) fn free(&mut self, slot: u32) -> Result<(), Hang> {
        self.read(slot, self.streams[slot as usize])?;
        if let Some(block) = self.blocks.as_mut().and_then(|blocks| blocks[slot as usize].take()) {
            self.emulator.block_freed(block.id, &self.emulator.nth_stream(block.stream));
        }
        Ok(())
    }

    /// A stream waits for another on the device.
    pub(crate) fn wait(&self, stream: u32, on: u32) {
        self.emulator.queue_wait(&self.emulator.nth_stream(stream), &self.emulator.nth_stream(on));
    }

    /// The host waits for a stream, or for the device.
    pub(crate) fn synchronize(&self, stream: Option<u32>) -> Result<(), Hang> {
        match stream {
            Some(stream) => self.emulator.synchronize_stream(&self.emulator.nth_stream(stream)),
            None => self.emulator.synchronize_device(),
        }
    }

    fn queue(&mut self, stream: u32, work: Work) -> Result<(), Hang> {
        let ns = duration_ns(self.dice.random());
        let queued = self.emulator.queue(&self.emulator.nth_stream(stream), work.lasting(ns));
        self.ahead.push_back(queued);
        if self.ahead.len() > MOST_AHEAD
            && let Some(oldest) = self.ahead.pop_front()
        {
            self.emulator.catch_up(&oldest)?;
        }
        Ok(())
    }
}

/// A duration in nanoseconds, log-uniform in the drawn number. By square roots and products alone, which every machine
/// rounds alike.
fn duration_ns(drawn: u16) -> u64 {
    let mut ns = SHORTEST_NS;
    let mut factor = LONGEST;
    for bit in (0..u16::BITS).rev() {
        factor = factor.sqrt();
        if drawn >> bit & 1 == 1 {
            ns *= factor;
        }
    }
    ns.round() as u64
}

#[cfg(test)]
mod tests {
    use super::duration_ns;

    #[test]
    fn durations_are_log_uniform() {
        assert_eq!(duration_ns(0), 2_000);
        // Half of the way, a quarter, and the last step: 100^(1 − 2^-16) × 2 µs.
        assert_eq!(duration_ns(1 << 15), 20_000);
        assert_eq!(duration_ns(1 << 14), 6_325);
        assert_eq!(duration_ns(u16::MAX), 199_986);
        let below_the_middle = (0..=u16::MAX).filter(|drawn| duration_ns(*drawn) < 20_000).count();
        assert_eq!(below_the_middle, 1 << 15);
    }
}

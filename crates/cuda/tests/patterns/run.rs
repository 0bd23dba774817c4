//! Does a program: right by CUDA's rules, and checked everywhere.
//!
//! Main types: [`Happened`]. Neighbours: `program` has the operations, `device` the kernels.

use std::sync::Arc;

use concertina::{Allocation, Allocator, Layout, Stream};
use concertina_cuda::Cuda;
use cudarc::driver::CudaStream;

use crate::device::PatternDevice;
use crate::program::{End, Operation, Program, STREAMS};

/// How often what happened.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Happened {
    pub(crate) operations: u64,
    pub(crate) stolen: u64,
    pub(crate) revived: u64,
    pub(crate) refused: u64,
    pub(crate) foreign: u64,
    pub(crate) retired: u64,
    pub(crate) trimmed_bytes: u64,
    pub(crate) device_waits: u64,
}

impl Happened {
    pub(crate) fn add(&mut self, other: Self) {
        self.operations += other.operations;
        self.stolen += other.stolen;
        self.revived += other.revived;
        self.refused += other.refused;
        self.foreign += other.foreign;
        self.retired += other.retired;
        self.trimmed_bytes += other.trimmed_bytes;
        self.device_waits += other.device_waits;
    }
}

/// A live block, and the streams that work on it.
struct Block {
    allocation: Allocation<Cuda>,
    home: Arc<CudaStream>,
    pattern: u64,
    /// The stream of the last write.
    writer: Arc<CudaStream>,
    /// Streams that have read since, apart from those that the next writer comes after anyway.
    readers: Vec<Arc<CudaStream>>,
}

impl Block {
    /// `stream` reads: after the last write.
    fn read_on(&mut self, device: &PatternDevice, stream: &Arc<CudaStream>) {
        come_after(stream, &self.writer);
        device.check(stream, self.allocation.address(), self.allocation.bytes(), self.pattern);
        if !self.readers.iter().any(|reader| Arc::ptr_eq(reader, stream)) {
            self.readers.push(Arc::clone(stream));
        }
    }

    /// `stream` writes: after the last write and all reads since.
    fn write_on(&mut self, device: &PatternDevice, stream: &Arc<CudaStream>, pattern: u64) {
        come_after(stream, &self.writer);
        for reader in self.readers.drain(..) {
            come_after(stream, &reader);
        }
        device.fill(stream, self.allocation.address(), self.allocation.bytes(), pattern);
        self.pattern = pattern;
        self.writer = Arc::clone(stream);
    }
}

fn come_after(stream: &Arc<CudaStream>, other: &Arc<CudaStream>) {
    if !Arc::ptr_eq(stream, other) {
        stream.join(other).expect("a wait");
    }
}

/// A stream of the program's, known to the allocator.
struct Known {
    stream: Arc<CudaStream>,
    registered: Stream<Cuda>,
}

struct Run<'a> {
    device: &'a PatternDevice,
    allocator: Allocator<Cuda>,
    streams: Vec<Known>,
    blocks: Vec<Block>,
    patterns: u64,
    happened: Happened,
}

/// Runs the program, telling before each operation which it is.
///
/// # Panics
/// At the first wrong byte that is seen, and at all that is not as it should be.
pub(crate) fn run(program: &Program, mut tell: impl FnMut(usize)) -> Happened {
    let device = PatternDevice::new();
    let allocator = Allocator::new(device.cuda.clone(), program.config.clone()).expect("an allocator");
    let (streams, blocks) = (Vec::new(), Vec::new());
    let mut run =
        Run { device: &device, allocator, streams, blocks, patterns: 0, happened: Happened::default() };
    for _ in 0..STREAMS {
        let known = run.new_stream();
        run.streams.push(known);
    }
    for (at, operation) in program.operations.iter().enumerate() {
        tell(at);
        run.operation(*operation);
        if let Some(mismatch) = device.mismatch() {
            panic!("seen during operation {at}: {mismatch}");
        }
    }
    let happened = run.end();
    device.end();
    happened
}

impl Run<'_> {
    fn new_stream(&self) -> Known {
        let stream = self.device.context.new_stream().expect("a stream");
        let registered = self.allocator.register_stream((&stream).into());
        Known { stream, registered }
    }

    fn new_pattern(&mut self) -> u64 {
        self.patterns += 1;
        self.patterns
    }

    /// The live block that a number stands for; none if nothing lives.
    fn index(&self, block: usize) -> Option<usize> {
        block.checked_rem(self.blocks.len())
    }

    fn operation(&mut self, operation: Operation) {
        self.happened.operations += 1;
        match operation {
            Operation::Allocate { bytes, stream } => self.allocate(bytes, stream),
            Operation::Free { block } => self.free(block),
            Operation::Check { block } => {
                let Some(index) = self.index(block) else { return };
                let home = Arc::clone(&self.blocks[index].home);
                self.blocks[index].read_on(self.device, &home);
            }
            Operation::Fill { block } => {
                let Some(index) = self.index(block) else { return };
                let (home, pattern) = (Arc::clone(&self.blocks[index].home), self.new_pattern());
                self.blocks[index].write_on(self.device, &home, pattern);
            }
            Operation::Foreign { block, stream, writes, end } => self.use_on(block, stream, writes, end),
            Operation::Wait { stream, on } => {
                if stream != on {
                    let (waiting, on) = (&self.streams[stream], &self.streams[on]);
                    come_after(&waiting.stream, &on.stream);
                    waiting.registered.note_wait(&on.registered);
                }
            }
            Operation::Synchronize { stream: Some(stream) } => {
                self.streams[stream].stream.synchronize().expect("a wait");
                self.streams[stream].registered.note_synchronized();
            }
            Operation::Synchronize { stream: None } => {
                self.device.context.synchronize().expect("a wait");
                self.allocator.note_device_synchronized();
            }
            Operation::Trim => self.happened.trimmed_bytes += self.allocator.trim().released_bytes,
            Operation::Retire { stream } => {
                self.streams[stream] = self.new_stream();
                self.happened.retired += 1;
            }
        }
    }

    fn allocate(&mut self, bytes: u64, stream: usize) {
        let Known { stream, registered } = &self.streams[stream];
        match self.allocator.allocate(Layout::new(bytes), registered) {
            Ok(allocation) => {
                let (home, pattern) = (Arc::clone(stream), self.new_pattern());
                let writer = Arc::clone(&home);
                let mut block =
                    Block { allocation, home: Arc::clone(&home), pattern, writer, readers: Vec::new() };
                block.write_on(self.device, &home, pattern);
                self.blocks.push(block);
            }
            Err(error) => {
                assert!(error.is_out_of_memory(), "{error}");
                self.happened.refused += 1;
                // So that the next one has a chance.
                (0..4).for_each(|nth| self.free(bytes as usize + nth));
            }
        }
    }

    fn free(&mut self, block: usize) {
        let Some(index) = self.index(block) else { return };
        let mut block = self.blocks.swap_remove(index);
        let home = Arc::clone(&block.home);
        block.read_on(self.device, &home);
    }

    fn use_on(&mut self, block: usize, stream: usize, writes: bool, end: End) {
        let Some(index) = self.index(block) else { return };
        let pattern = self.new_pattern();
        let Known { stream, registered } = &self.streams[stream];
        let block = &mut self.blocks[index];
        if writes {
            block.write_on(self.device, stream, pattern);
        } else {
            block.read_on(self.device, stream);
        }
        match end {
            End::Recorded => block.allocation.record_stream(registered).expect("a stream of this allocator"),
            End::Joined => come_after(&block.home, stream),
        }
        self.happened.foreign += 1;
    }

    /// Checks and frees all that lives, and gives everything back.
    fn end(mut self) -> Happened {
        while !self.blocks.is_empty() {
            self.free(0);
        }
        let stats = self.allocator.stats();
        let happened = Happened {
            stolen: stats.stolen_frames,
            revived: stats.revived_pages,
            device_waits: stats.fences.waits,
            ..self.happened
        };
        self.device.context.synchronize().expect("a wait");
        assert_eq!(self.allocator.audit(), Vec::<String>::new());
        self.streams.clear();
        self.allocator.close().expect("everything is given back");
        happened
    }
}

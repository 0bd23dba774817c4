//! Concertina as an allocator that traces can be replayed on.
//!
//! Main types: [`ConcertinaTarget`]. Neighbours: `targets` makes it; `concertina_trace` replays on it.

use concertina::{
    Address, Allocation, Allocator, Config, ConfigBuilder, Error, Layout, OnStream, Policy, RawAllocation,
    SegmentKind, Stream,
};
use concertina_heap::STEP_BYTES;
use concertina_trace::target::{ReplayTarget, TargetError};

use crate::bench_device::{BenchDevice, StreamOf};
use crate::catalogue::PolicyName;

/// An allocator as a program holds it: through its face, with handles that free themselves.
#[derive(Debug)]
pub struct ConcertinaTarget<'a, D: BenchDevice> {
    device: &'a D,
    allocator: Allocator<D::Driver>,
    /// By the trace's number.
    streams: Vec<TraceStream<D>>,
}

/// A stream of the trace, as the device and as the allocator know it.
#[derive(Debug)]
struct TraceStream<D: BenchDevice> {
    device: StreamOf<D>,
    registered: Stream<D::Driver>,
}

impl From<PolicyName> for Policy {
    fn from(name: PolicyName) -> Self {
        match name {
            PolicyName::Lean => Self::Lean,
            PolicyName::Balanced => Self::Balanced,
        }
    }
}

impl<'a, D: BenchDevice> ConcertinaTarget<'a, D> {
    /// An allocator of this policy on the device, otherwise with the default settings.
    ///
    /// # Errors
    /// What the allocator says.
    pub fn new(device: &'a D, policy: PolicyName) -> Result<Self, TargetError> {
        Self::with(device, Config::builder().policy(policy.into()))
    }

    /// The same on malloc segments.
    ///
    /// # Errors
    /// What the allocator says.
    pub fn on_malloc(device: &'a D, policy: PolicyName) -> Result<Self, TargetError> {
        Self::with(device, Config::builder().policy(policy.into()).segments(SegmentKind::Malloc))
    }

    fn with(device: &'a D, config: ConfigBuilder) -> Result<Self, TargetError> {
        let config = config.name("bench").build();
        let allocator = Allocator::new(device.driver().clone(), config).map_err(refused)?;
        Ok(Self { device, allocator, streams: Vec::new() })
    }

    /// The allocator behind it.
    pub fn allocator(&self) -> &Allocator<D::Driver> {
        &self.allocator
    }

    /// Registers streams up to this number, if the trace has not met them before.
    #[inline]
    fn meet(&mut self, stream: u32) -> Result<(), TargetError> {
        if (stream as usize) < self.streams.len() { Ok(()) } else { self.meet_anew(stream) }
    }

    #[cold]
    fn meet_anew(&mut self, stream: u32) -> Result<(), TargetError> {
        for number in self.streams.len() as u32..=stream {
            let device = self.device.new_stream(number)?;
            let registered = self.allocator.register_stream(device.clone());
            self.streams.push(TraceStream { device, registered });
        }
        Ok(())
    }

    /// The allocator on one of the trace's streams.
    pub(crate) fn on(&mut self, stream: u32) -> Result<OnStream<D::Driver>, TargetError> {
        self.meet(stream)?;
        self.allocator.on(&self.streams[stream as usize].registered).map_err(refused)
    }

    /// Says that a block without a handle is used on another stream.
    pub(crate) fn record_stream_raw(&mut self, block: RawAllocation, stream: u32) -> Result<(), TargetError> {
        self.meet(stream)?;
        let stream = &self.streams[stream as usize].registered;
        self.allocator.record_stream_raw(block, stream).map_err(refused)
    }

    fn stream(&mut self, stream: u32) -> Result<&TraceStream<D>, TargetError> {
        self.meet(stream)?;
        Ok(&self.streams[stream as usize])
    }
}

/// What a replay is told of an error.
pub(crate) fn refused(error: Error) -> TargetError {
    if error.is_out_of_memory() {
        TargetError::OutOfMemory(error.into())
    } else {
        TargetError::Failed(error.into())
    }
}

impl<D: BenchDevice> ReplayTarget for ConcertinaTarget<'_, D> {
    type Block = Allocation<D::Driver>;

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<Self::Block, TargetError> {
        self.meet(stream)?;
        let stream = &self.streams[stream as usize].registered;
        self.allocator.allocate(Layout::new(bytes), stream).map_err(refused)
    }

    fn address(&self, block: &Self::Block) -> Address {
        block.address()
    }

    fn block_bytes(&self, block: &Self::Block) -> Option<u64> {
        Some(block.bytes().next_multiple_of(STEP_BYTES))
    }

    fn free(&mut self, block: Self::Block) -> Result<(), TargetError> {
        drop(block);
        Ok(())
    }

    fn record_stream(&mut self, block: &mut Self::Block, stream: u32) -> Result<(), TargetError> {
        block.record_stream(&self.stream(stream)?.registered).map_err(refused)
    }

    fn stream_wait(&mut self, stream: u32, on: u32) -> Result<(), TargetError> {
        self.meet(stream.max(on))?;
        let on = &self.streams[on as usize].registered;
        self.streams[stream as usize].registered.note_wait(on);
        Ok(())
    }

    fn synchronize(&mut self, stream: Option<u32>) -> Result<(), TargetError> {
        match stream {
            Some(stream) => {
                self.meet(stream)?;
                let stream = &self.streams[stream as usize];
                self.device.synchronize_stream(&stream.device)?;
                stream.registered.note_synchronized();
            }
            None => {
                self.device.synchronize_device()?;
                self.allocator.note_device_synchronized();
            }
        }
        Ok(())
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        self.allocator.trim();
        Ok(())
    }

    fn address_peak_bytes(&self) -> u64 {
        self.allocator.stats().address_peak_bytes
    }
}

//! Runs a trace on an allocator over a device, as a rule the emulated one.
//!
//! Main types: [`Replay`], [`Progress`]. Neighbours: `loaded` has the trace, `target` the allocator, `checker` looks
//! at every block if asked to, `work` makes up what the program queues, `watch` notes what happens on the way, `report`
//! takes the figures.

use std::time::Instant;

use crate::checker::Checker;
use crate::device::ReplayDevice;
use crate::latency::Latencies;
use crate::loaded::{LoadedTrace, Step};
use crate::picture::PictureBlock;
use crate::report::{AtLivePeak, FailureCause, MarkReport, ReplayFailure, ReplayReport};
use crate::target::{ReplayTarget, TargetError};
use crate::watch::{Watch, Watcher};
use crate::work::{WorkModel, Workload};

/// Events between two calls of [`Progress::advanced`].
pub const PROGRESS_EVENTS: usize = 4096;

/// Why a slot holds a block.
const LIVE: &str = "a loaded trace names only live blocks";

/// Told how far a replay has come: for a progress bar.
pub trait Progress {
    /// So many further events were replayed; at most [`PROGRESS_EVENTS`].
    fn advanced(&mut self, events: usize);
}

/// Nobody looks.
impl Progress for () {
    fn advanced(&mut self, _events: usize) {}
}

/// A replay to be run: a trace, and the device that the allocator was made on.
///
/// Each event but a mark stands for one further operation that the program queued, which is what events of the
/// emulator count ([`EventCompletion::AfterOperations`](concertina_emulator::EventCompletion)).
#[derive(Debug)]
pub struct Replay<'a> {
    trace: &'a LoadedTrace,
    device: &'a dyn ReplayDevice,
    alignment_bytes: Option<u64>,
    workload: Option<Workload<'a>>,
    watch: Option<&'a Watch>,
}

impl<'a> Replay<'a> {
    /// A replay without the checker. The device should be new but for the allocator: the report has all of its
    /// counts.
    pub const fn new(trace: &'a LoadedTrace, device: &'a dyn ReplayDevice) -> Self {
        Self { trace, device, alignment_bytes: None, workload: None, watch: None }
    }

    /// The same with the checker on: every block is looked up in the device's page tables, and must begin at a
    /// multiple of `alignment_bytes`.
    #[must_use]
    pub const fn checked(mut self, alignment_bytes: u64) -> Self {
        self.alignment_bytes = Some(alignment_bytes);
        self
    }

    /// The same with kernels on the streams, and with the program's own waits. The emulator is the one behind the device,
    /// with events by the clock as a rule; if its race detector is on, it is told of all blocks.
    #[must_use]
    pub const fn with_work(mut self, workload: Workload<'a>) -> Self {
        self.workload = Some(workload);
        self
    }

    /// The same with a look at memory after every event: not for a replay whose time counts.
    #[must_use]
    pub const fn watched(mut self, watch: &'a Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Runs the trace to its end or to the first event that fails, takes the figures, and then frees what is live.
    pub fn run<T: ReplayTarget>(&self, target: &mut T) -> ReplayReport {
        self.run_with_progress(target, &mut ())
    }

    /// The same, telling how far it has come.
    pub fn run_with_progress<T: ReplayTarget>(
        &self,
        target: &mut T,
        progress: &mut impl Progress,
    ) -> ReplayReport {
        let mut run = Run {
            trace: self.trace,
            device: self.device,
            target,
            blocks: Vec::new(),
            sizes: vec![0; self.trace.slot_count() as usize],
            live_bytes: 0,
            live_peak_bytes: 0,
            block_bytes: Some(0),
            at_live_peak: None,
            latencies: Latencies::default(),
            marks: Vec::with_capacity(self.trace.marks().len()),
            checker: self.alignment_bytes.map(|alignment_bytes| {
                Checker::new(self.device, self.trace.slot_count() as usize, alignment_bytes)
            }),
            work: self.workload.map(|workload| WorkModel::new(workload, self.trace.slot_count() as usize)),
            watcher: self.watch.map(Watcher::new),
        };
        run.blocks.resize_with(self.trace.slot_count() as usize, || None);

        let start = Instant::now();
        let (events, failure) = run.all(progress);
        let elapsed = start.elapsed();

        let mut report = ReplayReport {
            events,
            live_peak_bytes: run.live_peak_bytes,
            live_bytes: run.live_bytes,
            address_peak_bytes: run.target.address_peak_bytes(),
            counts: self.device.counts(),
            at_live_peak: run.at_live_peak,
            latencies: std::mem::take(&mut run.latencies),
            marks: std::mem::take(&mut run.marks),
            device_ns: self.workload.map(|workload| workload.emulator.clock().device_ns),
            failure: failure.map(|cause| self.failure(events, cause)),
            cleanup_failure: None,
            host_ns: (run.checker.is_none() && self.watch.is_none())
                .then(|| u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)),
            observation: None,
        };
        if let Some(watcher) = run.watcher.take() {
            let (live_bytes, blocks) = (run.live_bytes, || run.live_blocks());
            report.observation = Some(watcher.finish(events, live_bytes, self.device, blocks));
        }
        report.cleanup_failure = run.free_all();
        report
    }

    fn failure(&self, event: usize, cause: FailureCause) -> ReplayFailure {
        ReplayFailure { event, line: self.trace.line_of(event), cause }
    }
}

/// A replay on its way.
struct Run<'a, T: ReplayTarget> {
    trace: &'a LoadedTrace,
    device: &'a dyn ReplayDevice,
    target: &'a mut T,
    /// By slot.
    blocks: Vec<Option<T::Block>>,
    /// By slot; of live blocks.
    sizes: Vec<u64>,
    live_bytes: u64,
    live_peak_bytes: u64,
    /// Of the live blocks, rounding included; none if the allocator does not tell.
    block_bytes: Option<u64>,
    at_live_peak: Option<AtLivePeak>,
    latencies: Latencies,
    marks: Vec<MarkReport>,
    checker: Option<Checker<'a>>,
    work: Option<WorkModel<'a>>,
    watcher: Option<Watcher<'a>>,
}

impl<T: ReplayTarget> Run<'_, T> {
    /// Number of events that went well, and what ended the run before its end.
    fn all(&mut self, progress: &mut impl Progress) -> (usize, Option<FailureCause>) {
        let mut event = 0;
        for steps in self.trace.steps().chunks(PROGRESS_EVENTS) {
            for step in steps {
                if let Err(cause) = self.step(event, *step) {
                    return (event, Some(cause));
                }
                self.watch(event);
                event += 1;
            }
            progress.advanced(steps.len());
        }
        // What is still live must still be what it was.
        let kept = self.checker.as_mut().map_or(Ok(()), |checker| checker.check_live(self.trace));
        (event, kept.err().map(FailureCause::from))
    }

    fn step(&mut self, event: usize, step: Step) -> Result<(), FailureCause> {
        if let Step::Mark { number } = step {
            self.mark(event, number);
            return Ok(());
        }
        self.device.advance(1);
        match step {
            Step::Allocate { slot, stream, bytes } => self.allocate(event, slot, stream, bytes)?,
            Step::Free { slot } => {
                if let Some(checker) = &mut self.checker {
                    checker.check_free(self.trace, event, slot)?;
                }
                if let Some(work) = &mut self.work {
                    work.free(slot)?;
                }
                let block = self.blocks[slot as usize].take().expect(LIVE);
                let bytes = self.target.block_bytes(&block);
                self.block_bytes = self.block_bytes.zip(bytes).map(|(all, bytes)| all.saturating_sub(bytes));
                self.target.free(block)?;
                self.live_bytes -= self.sizes[slot as usize];
            }
            Step::RecordStream { slot, stream } => {
                if let Some(work) = &mut self.work {
                    work.read(slot, stream)?;
                }
                let block = self.blocks[slot as usize].as_mut().expect(LIVE);
                self.target.record_stream(block, stream)?;
            }
            Step::StreamWait { stream, on } => {
                if let Some(work) = &self.work {
                    work.wait(stream, on);
                }
                self.target.stream_wait(stream, on)?;
            }
            Step::Synchronize { stream } => {
                if let Some(work) = &self.work {
                    work.synchronize(stream)?;
                }
                self.target.synchronize(stream)?;
            }
            Step::ReleaseCached => self.target.release_cached()?,
            Step::Mark { .. } => {}
        }
        Ok(())
    }

    fn allocate(&mut self, event: usize, slot: u32, stream: u32, bytes: u64) -> Result<(), FailureCause> {
        let start_ns = self.device.ns_in_calls();
        let block = self.target.allocate(bytes, stream)?;
        self.latencies.add(self.device.ns_in_calls().saturating_sub(start_ns));
        let address = self.target.address(&block);
        let set_aside = self.target.block_bytes(&block);
        self.block_bytes = self.block_bytes.zip(set_aside).map(|(all, bytes)| all + bytes);
        self.blocks[slot as usize] = Some(block);
        self.sizes[slot as usize] = bytes;
        self.live_bytes += bytes;
        self.live_peak_bytes = self.live_peak_bytes.max(self.live_bytes);
        if event == self.trace.live_peak().event {
            let mapped_bytes = self.device.counts().mapped_bytes;
            self.at_live_peak = Some(AtLivePeak { mapped_bytes, block_bytes: self.block_bytes });
        }
        if let Some(checker) = &mut self.checker {
            checker.check_allocate(self.trace, event, slot, address)?;
        }
        if let Some(work) = &mut self.work {
            work.allocate(self.trace.line_of(event), slot, stream, address, bytes)?;
        }
        Ok(())
    }

    fn mark(&mut self, event: usize, number: u32) {
        let label = self.trace.marks()[number as usize].label.clone();
        let counts = self.device.counts();
        self.marks.push(MarkReport { label, event, live_bytes: self.live_bytes, counts });
    }

    /// Notes how things stand after this event, if anybody asked.
    fn watch(&mut self, event: usize) {
        let Some(mut watcher) = self.watcher.take() else { return };
        let counts = self.device.counts();
        watcher.after(event, self.live_bytes, &counts);
        if watcher.wants_picture(event) {
            watcher.take_picture(event, &counts, self.device, self.live_blocks());
        }
        self.watcher = Some(watcher);
    }

    fn live_blocks(&self) -> Vec<PictureBlock> {
        let blocks = self.blocks.iter().zip(&self.sizes);
        let live = |(block, &bytes): (&Option<T::Block>, &u64)| {
            Some(PictureBlock { address: self.target.address(block.as_ref()?), bytes })
        };
        blocks.filter_map(live).collect()
    }

    /// Frees every block that is live; the first failure.
    fn free_all(&mut self) -> Option<TargetError> {
        let mut first = None;
        for slot in &mut self.blocks {
            if let Some(block) = slot.take()
                && let Err(error) = self.target.free(block)
            {
                first.get_or_insert(error);
            }
        }
        first
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) mod toy;

//! The same trace several times on one allocator: the first pass is cold, from the second on the allocator is warm.
//!
//! Main types: [`Passes`], [`Pass`]. Neighbours: `clocked_device` measures the driver; `concertina_trace` has the
//! replay with all its figures, whose own loop takes longer than many an event.

use std::time::{Duration, Instant};

use concertina_emulator::Emulator;
use concertina_trace::target::{ReplayTarget, TargetError};
use concertina_trace::{LoadedTrace, Step};

use crate::case::CaseError;
use crate::catalogue::PolicyName;
use crate::clocked_device::ClockedDevice;
use crate::concertina_target::ConcertinaTarget;
use crate::device::DeviceSpec;
use crate::raw_target::RawTarget;
use crate::unlimited::Unlimited;

/// Why a slot holds a block.
const LIVE: &str = "a loaded trace names only live blocks";

/// One time through the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Events of the trace.
    pub events: u64,
    /// Time of all events, the driver in it; not of the frees after the last one.
    pub total: Duration,
    /// Time in driver calls.
    pub in_driver: Duration,
    /// Driver calls of all kinds.
    pub driver_calls: u64,
}

impl Pass {
    /// Nanoseconds an event that were spent outside the driver.
    pub fn ns_an_event(&self) -> f64 {
        self.total.saturating_sub(self.in_driver).as_nanos() as f64 / self.events.max(1) as f64
    }

    /// Nanoseconds an event that were spent in the driver.
    pub fn driver_ns_an_event(&self) -> f64 {
        self.in_driver.as_nanos() as f64 / self.events.max(1) as f64
    }
}

/// A trace to be run several times.
#[derive(Clone, Copy, Debug)]
pub struct Passes<'a> {
    /// The trace.
    pub trace: &'a LoadedTrace,
    /// The device.
    pub device: &'a DeviceSpec,
}

impl Passes<'_> {
    /// Runs the trace so many times on a new allocator of this policy on a new emulated device.
    ///
    /// # Errors
    /// If device or allocator can't be made, or a request was refused.
    pub fn on_concertina(&self, policy: PolicyName, passes: usize) -> Result<Vec<Pass>, CaseError> {
        let device = self.clocked_device()?;
        let refused = |error| CaseError::SetUp { allocator: "concertina".to_owned(), error };
        let mut target = ConcertinaTarget::new(&device, policy).map_err(refused)?;
        (0..passes).map(|_| self.pass(&mut target, &device).map_err(refused)).collect()
    }

    /// The same without handles: blocks are freed by their stream.
    ///
    /// # Errors
    /// As [`Passes::on_concertina`].
    pub fn on_concertina_raw(&self, policy: PolicyName, passes: usize) -> Result<Vec<Pass>, CaseError> {
        let device = self.clocked_device()?;
        let refused = |error| CaseError::SetUp { allocator: "concertina".to_owned(), error };
        let mut target = RawTarget::new(&device, policy).map_err(refused)?;
        (0..passes).map(|_| self.pass(&mut target, &device).map_err(refused)).collect()
    }

    /// Runs the trace so many times with nobody to allocate: what the loop takes by itself.
    ///
    /// # Errors
    /// If no device can be made.
    pub fn on_nobody(&self, passes: usize) -> Result<Vec<Pass>, CaseError> {
        let device = self.clocked_device()?;
        let refused = |error| CaseError::SetUp { allocator: "nobody".to_owned(), error };
        (0..passes).map(|_| self.pass(&mut Unlimited::default(), &device).map_err(refused)).collect()
    }

    /// The device of a run, new.
    ///
    /// # Errors
    /// If it can't be made.
    pub fn clocked_device(&self) -> Result<ClockedDevice, CaseError> {
        let config = self.device.config(self.trace.live_peak().bytes)?;
        Ok(ClockedDevice::new(Emulator::new(config)?))
    }

    /// Runs the trace once on this target, and frees afterwards what is live then. The device is told of no operations:
    /// its events complete at once.
    ///
    /// # Errors
    /// What the target refused.
    ///
    /// # Panics
    /// Never with a loaded trace.
    pub fn pass<T: ReplayTarget>(&self, target: &mut T, device: &ClockedDevice) -> Result<Pass, TargetError> {
        let mut blocks: Vec<Option<T::Block>> = Vec::new();
        blocks.resize_with(self.trace.slot_count() as usize, || None);
        let (calls, in_driver) = (device.driver_calls(), device.in_driver());
        let begun = Instant::now();
        for step in self.trace.steps() {
            match *step {
                Step::Allocate { slot, stream, bytes } => {
                    blocks[slot as usize] = Some(target.allocate(bytes, stream)?);
                }
                Step::Free { slot } => target.free(blocks[slot as usize].take().expect(LIVE))?,
                Step::RecordStream { slot, stream } => {
                    target.record_stream(blocks[slot as usize].as_mut().expect(LIVE), stream)?;
                }
                Step::StreamWait { stream, on } => target.stream_wait(stream, on)?,
                Step::Synchronize { stream } => target.synchronize(stream)?,
                Step::ReleaseCached => target.release_cached()?,
                Step::Mark { .. } => {}
            }
        }
        let total = begun.elapsed();
        let pass = Pass {
            events: self.trace.steps().len() as u64,
            total,
            in_driver: device.in_driver() - in_driver,
            driver_calls: device.driver_calls() - calls,
        };
        blocks.into_iter().flatten().try_for_each(|block| target.free(block))?;
        Ok(pass)
    }
}

#[cfg(test)]
mod tests {
    use concertina_trace::LoadedTrace;

    use super::{Pass, Passes};
    use crate::allocator_name::AllocatorName;
    use crate::case::Case;
    use crate::catalogue::{PolicyName, TraceFile};
    use crate::concertina_target::ConcertinaTarget;
    use crate::device::DeviceSpec;

    fn trace(word: &str) -> LoadedTrace {
        LoadedTrace::open(TraceFile::find(word).expect("bundled").path()).expect("readable")
    }

    #[test]
    fn the_cold_pass_makes_the_driver_calls_of_the_replay_and_a_warm_one_fewer() {
        // t1 settles in its first iterations; s7 has three streams, uses on others, and waits.
        for word in ["t1", "s7"] {
            let (trace, device) = (trace(word), DeviceSpec::default());
            let policy = PolicyName::Balanced;
            let case = Case { trace: &trace, allocator: AllocatorName::Concertina, policy, device: &device };
            let outcome = case.run().expect("runs").outcome;
            let passes = Passes { trace: &trace, device: &device };
            // The making of the allocator is in the replay's counts, and in no pass.
            let unused = passes.clocked_device().expect("a device");
            ConcertinaTarget::new(&unused, policy).expect("an allocator");
            let raw = passes.on_concertina_raw(policy, 2).expect("runs");
            let passes = passes.on_concertina(policy, 2).expect("runs");
            let calls_of = |passes: &[Pass]| passes.iter().map(|pass| pass.driver_calls).collect::<Vec<_>>();
            assert_eq!(calls_of(&raw), calls_of(&passes), "{word}: a handle changes nothing");
            let calls = unused.driver_calls() + passes[0].driver_calls;
            assert_eq!(calls, outcome.driver_calls.values().sum::<u64>(), "{word}");
            assert_eq!((passes[0].events, passes[1].events), (outcome.events, outcome.events));
            assert!(passes[1].driver_calls < passes[0].driver_calls, "{word}: {passes:?}");
            assert!(passes.iter().all(|pass| pass.in_driver <= pass.total), "{word}: {passes:?}");
        }
    }
}

//! The smallest device on which a trace runs to its end.
//!
//! Main types: [`MinCapacity`], [`Fineness`]. Neighbours: `case` replays on each device that is tried; `parallel` searches for
//! several cases at once; `docs/metrics.md` defines the figure.

use std::collections::BTreeMap;

use crate::case::{Case, CaseError};
use crate::device::{DeviceKind, DeviceSpec};
use crate::outcome::{Failure, Outcome};
use crate::size::Capacity;

/// An ample device has this many times the live peak,
const AMPLE_TIMES_LIVE: u64 = 16;
/// and at least so many bytes: allocators take more than a trace that needs little asks for.
const AMPLE_BYTES: u64 = 80 << 30;
/// Where not even its ample mapped peak is enough for an allocator, the search begins here.
const ROOF_BYTES: u64 = 1 << 43;
/// How many larger devices are tried afterwards: fitting is not monotone in the capacity.
const ABOVE: u64 = 8;

/// How near the search comes to the smallest device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fineness {
    /// To a thousandth of the capacity, or one granularity if that is more.
    #[default]
    Thousandth,
    /// To one granularity.
    Granularity,
}

/// What a search found. Capacities are multiples of the granularity.
#[derive(Clone, Debug, PartialEq)]
pub enum MinCapacity {
    /// The smallest of the devices tried that was enough.
    Found(FoundCapacity),
    /// Not even this many bytes were enough.
    OutOfMemory {
        /// The largest device that was tried, in bytes.
        capacity_bytes: u64,
    },
    /// A run ended in a defect of the allocator.
    Defect(Box<Outcome>),
}

/// The smallest device that was enough, and what surrounds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundCapacity {
    /// Its memory in bytes.
    pub capacity_bytes: u64,
    /// The same over the live peak of the trace.
    pub over_live: f64,
    /// How many of eight larger devices, evenly spaced up to the upper bound of the search, were not enough.
    pub failures_above: u64,
    /// Replays that it took.
    pub replays: u64,
}

impl Case<'_> {
    /// Searches for the smallest device on which the trace runs to its end; the capacity of the case's own device does not
    /// matter.
    ///
    /// The bounds are the live peak and the mapped peak on an ample device, both rounded up to the granularity. The lower
    /// one is tried first; if it is too small, the range is halved, rounded down, until it is as narrow as asked. Then
    /// eight larger devices are tried. An allocator that needs more than its ample mapped peak, as one with a limit below
    /// the capacity, has 8 TiB as its upper bound; what is at least as large as the ample device counts as enough.
    ///
    /// # Errors
    /// [`CaseError::FixedCapacity`] on a GPU; if device or allocator can't be made.
    pub fn min_capacity(&self, fineness: Fineness) -> Result<MinCapacity, CaseError> {
        if self.device.kind == DeviceKind::Cuda {
            return Err(CaseError::FixedCapacity);
        }
        let mut trial = Trial::new(self);
        match trial.search(fineness) {
            Ok(found) => Ok(found),
            Err(Stop::Case(error)) => Err(error),
            Err(Stop::Defect(outcome)) => Ok(MinCapacity::Defect(outcome)),
        }
    }
}

/// Why a search ends before its end.
enum Stop {
    Case(CaseError),
    Defect(Box<Outcome>),
}

/// The devices tried so far, in granularities, and whether they were enough.
struct Trial<'a> {
    case: &'a Case<'a>,
    device: DeviceSpec,
    granularity: u64,
    /// So many granularities were enough, and more are taken to be.
    ample: u64,
    tried: BTreeMap<u64, bool>,
    replays: u64,
}

impl<'a> Trial<'a> {
    fn new(case: &'a Case<'a>) -> Self {
        let granularity = case.device.granularity.bytes();
        let live_peak = case.trace.live_peak().bytes;
        let ample = live_peak.saturating_mul(AMPLE_TIMES_LIVE).max(AMPLE_BYTES) / granularity;
        Self { case, device: case.device.clone(), granularity, ample, tried: BTreeMap::new(), replays: 0 }
    }

    fn search(&mut self, fineness: Fineness) -> Result<MinCapacity, Stop> {
        let live_peak = self.case.trace.live_peak().bytes;
        let ample_peak = match self.run(self.ample)? {
            Some(outcome) if outcome.completed => outcome.mapped_peak_bytes,
            _ => return Ok(MinCapacity::OutOfMemory { capacity_bytes: self.ample * self.granularity }),
        };
        let low = live_peak.div_ceil(self.granularity).max(1);
        let mut top = ample_peak.div_ceil(self.granularity).max(1);
        if !self.fits(top)? {
            top = self.ample.max(ROOF_BYTES / self.granularity);
        }
        let least = self.narrow(low, top, fineness)?;
        let mut failures_above = 0;
        if top > least + 1 {
            for step in 1..=ABOVE {
                let larger = least + (top - least) * step / (ABOVE + 1);
                failures_above += u64::from(!self.fits(larger)?);
            }
        }
        let capacity_bytes = least * self.granularity;
        Ok(MinCapacity::Found(FoundCapacity {
            capacity_bytes,
            over_live: capacity_bytes as f64 / live_peak.max(1) as f64,
            failures_above,
            replays: self.replays,
        }))
    }

    /// The smallest number of granularities between `low` and `high`, which is enough, as near as asked.
    fn narrow(&mut self, mut low: u64, mut high: u64, fineness: Fineness) -> Result<u64, Stop> {
        if low >= high {
            return Ok(high);
        }
        if self.fits(low)? {
            return Ok(low);
        }
        let near = |high: u64| match fineness {
            Fineness::Thousandth => (high / 1_000).max(1),
            Fineness::Granularity => 1,
        };
        while high - low > near(high) {
            let middle = low + (high - low) / 2;
            if self.fits(middle)? {
                high = middle;
            } else {
                low = middle;
            }
        }
        Ok(high)
    }

    /// Whether so many granularities are enough.
    fn fits(&mut self, granularities: u64) -> Result<bool, Stop> {
        if granularities >= self.ample {
            return Ok(true);
        }
        if let Some(&fits) = self.tried.get(&granularities) {
            return Ok(fits);
        }
        let fits = self.run(granularities)?.is_some_and(|outcome| outcome.completed);
        self.tried.insert(granularities, fits);
        Ok(fits)
    }

    /// Replays on a device of so many granularities; none if it is too small for the allocator to be set up.
    fn run(&mut self, granularities: u64) -> Result<Option<Outcome>, Stop> {
        self.device.capacity = Capacity::Bytes(granularities.saturating_mul(self.granularity));
        self.replays += 1;
        let case = Case { device: &self.device, ..*self.case };
        let outcome = match case.replay_once() {
            Ok(run) => run.outcome,
            Err(error) if error.is_out_of_memory() => return Ok(None),
            Err(error) => return Err(Stop::Case(error)),
        };
        match outcome.failure {
            Some(Failure::Failed | Failure::Violation) => Err(Stop::Defect(Box::new(outcome))),
            Some(Failure::OutOfMemory) | None => Ok(Some(outcome)),
        }
    }
}

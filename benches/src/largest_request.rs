//! The largest request that an allocator can serve when as much is live as ever.
//!
//! Main types: [`LargestRequest`]. Neighbours: `case` replays on the way there; `min_capacity` is the other search;
//! `docs/metrics.md` defines the figure.

use concertina_trace::LoadedTrace;

use crate::case::{Case, CaseError};
use crate::device::{DeviceKind, DeviceSpec};
use crate::outcome::Outcome;
use crate::size::Capacity;

/// What a search found.
#[derive(Clone, Debug, PartialEq)]
pub enum LargestRequest {
    /// So much can be had.
    Found(FoundRequest),
    /// On this device the trace does not come so far.
    NotReached,
    /// A run ended in a defect of the allocator.
    Defect(Box<Outcome>),
}

/// The largest request that was served, and what was free for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundRequest {
    /// Its bytes: a multiple of the granularity.
    pub bytes: u64,
    /// Bytes of the device less the live peak.
    pub free_bytes: u64,
}

impl FoundRequest {
    /// The one over the other; 1 where not one granularity was free.
    pub fn over_free(&self) -> f64 {
        if self.free_bytes == 0 { 1.0 } else { self.bytes as f64 / self.free_bytes as f64 }
    }
}

impl Case<'_> {
    /// Searches for the largest request that can be served right after the event at which live bytes reach their peak, on
    /// the stream of that event. Each try is a replay of its own, on a new device.
    ///
    /// First all that is free is tried, in whole granularities; if that is refused, the range down to 0 is halved until
    /// the largest that was served and the smallest that was refused differ by one granularity.
    ///
    /// # Errors
    /// [`CaseError::FixedCapacity`] on a GPU, where nobody knows what is free; if device or allocator can't be made.
    pub fn largest_request(&self) -> Result<LargestRequest, CaseError> {
        if self.device.kind == DeviceKind::Cuda {
            return Err(CaseError::FixedCapacity);
        }
        let live_peak = self.trace.live_peak();
        let capacity = self.device.config(live_peak.bytes)?.capacity_bytes;
        let granularity = self.device.granularity.bytes();
        // As the request is part of the trace that is replayed, the live peak is another.
        let device = DeviceSpec { capacity: Capacity::Bytes(capacity), ..self.device.clone() };
        let free_bytes = capacity.saturating_sub(live_peak.bytes);
        let mut tries = Tries { case: self, device, granularity };

        // One at least, to see whether the trace comes so far.
        let (mut served, mut refused) = (0, (free_bytes / granularity).max(1) + 1);
        let mut next = refused - 1;
        while next > served {
            match tries.request(next)? {
                Tried::Served => served = next,
                Tried::Refused => refused = next,
                Tried::NotReached => return Ok(LargestRequest::NotReached),
                Tried::Defect(outcome) => return Ok(LargestRequest::Defect(outcome)),
            }
            next = served + (refused - served) / 2;
        }
        Ok(LargestRequest::Found(FoundRequest { bytes: served * granularity, free_bytes }))
    }
}

/// What came of a request.
enum Tried {
    Served,
    Refused,
    NotReached,
    Defect(Box<Outcome>),
}

struct Tries<'a> {
    case: &'a Case<'a>,
    device: DeviceSpec,
    granularity: u64,
}

impl Tries<'_> {
    fn request(&mut self, granularities: u64) -> Result<Tried, CaseError> {
        let trace: LoadedTrace = self.case.trace.to_peak_and(granularities * self.granularity);
        let request = trace.steps().len() as u64 - 1;
        let case = Case { trace: &trace, device: &self.device, ..*self.case };
        let outcome = match case.replay_once() {
            Ok(run) => run.outcome,
            Err(error) if error.is_out_of_memory() => return Ok(Tried::NotReached),
            Err(error) => return Err(error),
        };
        Ok(match outcome.failed_at_event {
            _ if outcome.is_defect() => Tried::Defect(Box::new(outcome)),
            None => Tried::Served,
            Some(event) if event == request => Tried::Refused,
            Some(_) => Tried::NotReached,
        })
    }
}

//! One measurement as it goes on.
//!
//! Main types: [`Session`]. Neighbours: each part takes it; `holdings` keeps what is taken from the driver.

use std::time::{Duration, Instant};

use concertina_cuda::{Cuda, Stream};
use concertina_vmm::{Address, Driver as _, DriverError, DriverErrorKind, FrameProperties};

use super::Part;
use super::clock::Times;
use super::holdings::Holdings;
use super::plan::ProbePlan;
use super::report::{LeftOut, Load, ProbeReport, Timing};

/// The device, the plan, the time, and what came out so far.
pub(super) struct Session<'a> {
    pub(super) cuda: &'a Cuda,
    /// The first is for work; on the second runs a kernel that has nothing to do with it.
    pub(super) streams: [&'a Stream; 2],
    pub(super) plan: &'a ProbePlan,
    pub(super) report: ProbeReport,
    part: Part,
    deadline: Instant,
    cut_short: bool,
}

/// What a timing is about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject {
    pub(super) call: &'static str,
    pub(super) load: Load,
    pub(super) bytes: u64,
    pub(super) mappings: u64,
    pub(super) driver_calls: u64,
}

impl Subject {
    /// One call, about one thing of so many bytes.
    pub(super) const fn one(call: &'static str, load: Load, bytes: u64) -> Self {
        Self { call, load, bytes, mappings: 1, driver_calls: 1 }
    }
}

impl<'a> Session<'a> {
    pub(super) fn new(cuda: &'a Cuda, streams: [&'a Stream; 2], plan: &'a ProbePlan) -> Self {
        Self {
            cuda,
            streams,
            plan,
            report: ProbeReport::default(),
            part: Part::ALL[0],
            deadline: Instant::now() + plan.budget,
            cut_short: false,
        }
    }

    /// A part begins, which has time until then.
    pub(super) fn begin(&mut self, part: Part, deadline: Instant) {
        self.note_cut();
        (self.part, self.deadline, self.cut_short) = (part, deadline, false);
    }

    /// Whether the part's time is over; then the report says that it was cut short.
    pub(super) fn is_over(&mut self) -> bool {
        let over = Instant::now() >= self.deadline;
        self.cut_short |= over;
        over
    }

    fn note_cut(&mut self) {
        if self.cut_short {
            self.leave_out(format!("the rest of {}", self.part.name()), "its time was over");
        }
    }

    pub(super) fn finish(mut self, took: Duration) -> ProbeReport {
        self.note_cut();
        self.report.took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.report
    }

    pub(super) fn leave_out(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.report.left_out.push(LeftOut { what: what.into(), why: why.into() });
    }

    /// Goes over a thing that the device may have no memory or no function for: whether it was there.
    ///
    /// # Errors
    /// Any other failure.
    pub(super) fn unless_missing<T>(
        &mut self,
        what: impl Into<String>,
        result: Result<T, DriverError>,
    ) -> Result<Option<T>, DriverError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error)
                if matches!(error.kind, DriverErrorKind::OutOfMemory | DriverErrorKind::NotSupported) =>
            {
                self.leave_out(what, error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The times of a subject, without the first.
    pub(super) fn note(&mut self, subject: Subject, times: Times) {
        let Some(spread) = times.without_first().spread() else { return };
        let Subject { call, load, bytes, mappings, driver_calls } = subject;
        self.report.timings.push(Timing {
            call,
            load,
            bytes,
            mappings,
            driver_calls,
            repeats: spread.calls,
            median_ns: spread.median_ns,
            p10_ns: spread.p10_ns,
            p90_ns: spread.p90_ns,
            least_ns: spread.least_ns,
        });
    }

    /// Whether to time once more after `done` times, the first of which is not counted. Two are made in any case.
    pub(super) fn goes_on(&mut self, done: usize) -> bool {
        done < 2 || (done <= self.plan.repeat && !self.is_over())
    }

    pub(super) fn holdings(&self) -> Holdings<'a> {
        Holdings::new(self.cuda)
    }

    /// Bytes of a page.
    pub(super) fn page(&self) -> Result<u64, DriverError> {
        self.cuda.granularity(&FrameProperties { device: self.cuda.ordinal() })
    }

    /// The sizes in whole pages, in order, each once.
    pub(super) fn in_pages(&self, sizes: &[u64]) -> Result<Vec<u64>, DriverError> {
        let page = self.page()?;
        let mut sizes: Vec<u64> = sizes.iter().map(|bytes| bytes.next_multiple_of(page)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        Ok(sizes)
    }
}

/// A run of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) start: Address,
    pub(super) bytes: u64,
}

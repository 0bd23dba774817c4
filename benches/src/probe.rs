//! Measures a CUDA driver: what its calls cost, which rules it keeps, how fast the device reads memory of many frames.
//!
//! Main types: [`ProbePlan`], [`Part`], [`ProbeReport`]; and the function [`run`]. Neighbours: `cargo xtask probe` prints
//! the report and writes it; the emulator reads the cost table made of it; `concertina_cuda::RawCalls` has the calls that
//! allocators don't make. Each file below is one part or two of the work.
//!
//! Times are of the host, from call to return: what an allocator waits for. Each figure is made of several calls, after one
//! that is not counted.

mod bandwidth;
mod batches;
mod clock;
mod cost_table;
mod events;
mod frames;
mod holdings;
mod mallocs;
mod mapping_limit;
mod plan;
mod report;
mod rules;
mod session;
mod waits;

pub use cost_table::to_toml;
pub use plan::ProbePlan;
pub use report::{
    Bandwidth, Expected, Fit, Found, FreshMemory, LeftOut, Load, MappingLimit, Memory, Pattern, ProbeReport,
    RuleFinding, Timing, Wait,
};

use std::time::Instant;

use concertina_cuda::{Cuda, Stream};
use concertina_vmm::{DriverError, DriverErrorKind};

use session::Session;

/// One part of the work. Each has a share of the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Reserve, create, map, set access, unmap, release, unreserve, by size of frame, on an idle device.
    Frames,
    /// The same while a kernel runs.
    FramesUnderKernel,
    /// Set access and unmap over many mappings, by one call and by one each.
    Batches,
    /// Malloc and free, and the driver's pools, by size.
    Mallocs,
    /// Events, waits between streams, memory info, capture status.
    Events,
    /// Which calls wait for a kernel that has nothing to do with them.
    Waits,
    /// Which rules hold.
    Rules,
    /// How fast memory of frames is, beside memory of one malloc.
    Bandwidth,
    /// How many mappings there can be.
    MappingLimit,
}

impl Part {
    /// All of them, in the order in which they are done.
    pub const ALL: &[Self] = &[
        Self::Frames,
        Self::FramesUnderKernel,
        Self::Batches,
        Self::Mallocs,
        Self::Events,
        Self::Waits,
        Self::Rules,
        Self::Bandwidth,
        Self::MappingLimit,
    ];

    /// Its name in output and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Frames => "frames",
            Self::FramesUnderKernel => "frames under a kernel",
            Self::Batches => "batches",
            Self::Mallocs => "mallocs",
            Self::Events => "events",
            Self::Waits => "waits",
            Self::Rules => "rules",
            Self::Bandwidth => "bandwidth",
            Self::MappingLimit => "mapping limit",
        }
    }

    /// Hundredths of the whole time that it may take. What one leaves over is nobody's: the sum is what counts.
    const fn share(self) -> u32 {
        match self {
            Self::Frames | Self::FramesUnderKernel | Self::Batches | Self::Bandwidth => 15,
            Self::Mallocs => 12,
            Self::Waits => 8,
            Self::Rules => 5,
            Self::Events => 2,
            Self::MappingLimit => 13,
        }
    }

    fn measure(self, session: &mut Session<'_>) -> Result<(), DriverError> {
        match self {
            Self::Frames => frames::measure(session, Load::Idle),
            Self::FramesUnderKernel => frames::measure(session, Load::UnderKernel),
            Self::Batches => batches::measure(session),
            Self::Mallocs => mallocs::measure(session),
            Self::Events => events::measure(session),
            Self::Waits => waits::measure(session),
            Self::Rules => rules::measure(session),
            Self::Bandwidth => bandwidth::measure(session),
            Self::MappingLimit => mapping_limit::measure(session),
        }
    }
}

/// Measures the driver `cuda`. Work is queued on `streams`, which nobody else uses meanwhile. `progress` is told each part
/// before it begins.
///
/// A call that fails where it should not ends its part, and is noted in the report ([`ProbeReport::failed`]); the others are
/// done all the same, but for a device that is lost. Everything that was taken is given back in any case.
pub fn run(
    cuda: &Cuda,
    streams: [&Stream; 2],
    plan: &ProbePlan,
    mut progress: impl FnMut(Part),
) -> ProbeReport {
    let begin = Instant::now();
    let end = begin + plan.budget;
    let mut session = Session::new(cuda, streams, plan);
    for &part in Part::ALL {
        progress(part);
        let share = plan.budget * part.share() / 100;
        session.begin(part, (Instant::now() + share).min(end));
        let Err(error) = part.measure(&mut session) else { continue };
        let lost = error.kind == DriverErrorKind::Lost;
        session.report.failed.push(LeftOut { what: part.name().to_owned(), why: error.to_string() });
        if lost {
            break;
        }
    }
    session.finish(begin.elapsed())
}

#[cfg(test)]
mod tests {
    use super::Part;

    #[test]
    fn shares_are_the_whole() {
        assert_eq!(Part::ALL.iter().map(|part| part.share()).sum::<u32>(), 100);
    }
}

//! Makes the allocator of a case and replays on it.
//!
//! Neighbours: `case` asks for it; `concertina_target` and `concertina_baselines` have the allocators. A new allocator is
//! a name in `catalogue` and an arm here.

use concertina_baselines::Direct;
use concertina_emulator::Emulator;
use concertina_trace::target::ReplayTarget;
use concertina_trace::{Replay, ReplayReport};

use crate::case::{Case, CaseError};
use crate::catalogue::AllocatorName;
use crate::concertina_target::ConcertinaTarget;

/// Makes the case's allocator on the device, replays, and drops the allocator.
pub(crate) fn replay(
    case: &Case<'_>,
    emulator: &Emulator,
    replay: &Replay<'_>,
) -> Result<ReplayReport, CaseError> {
    let allocator = case.allocator;
    match allocator {
        AllocatorName::Direct => Ok(on(Direct::new(emulator.clone()), emulator, replay)),
        AllocatorName::Concertina => {
            let target = ConcertinaTarget::new(emulator, case.policy);
            let target = target.map_err(|error| CaseError::SetUp { allocator, error })?;
            Ok(on(target, emulator, replay))
        }
    }
}

fn on<T: ReplayTarget>(mut target: T, emulator: &Emulator, replay: &Replay<'_>) -> ReplayReport {
    let report = replay.run(&mut target);
    // A program that ends waits for its device; then everything can be given back.
    emulator.synchronize_device();
    report
}

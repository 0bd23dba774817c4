//! Makes the allocator of a case and replays on it.
//!
//! Neighbours: `case` asks for it; `concertina_target`, `baseline_target` and `concertina_baselines` have the
//! allocators. A new allocator is a name in `allocator_name` and an arm here.

use concertina_baselines::{Bfc, Direct, DriverPool, Fixed, Gmlake, Pytorch, RmmArena, RmmPool, Vpmm};
use concertina_trace::target::{ReplayTarget, TargetError};
use concertina_trace::{Replay, ReplayReport};

use crate::allocator_name::AllocatorName;
use crate::baseline_target::BaselineTarget;
use crate::bench_device::BenchDevice;
use crate::case::{Case, CaseError};
use crate::concertina_target::ConcertinaTarget;

/// Makes the case's allocator on the device, replays, and drops the allocator.
pub(crate) fn replay<D: BenchDevice>(
    case: &Case<'_>,
    device: &D,
    replay: &Replay<'_>,
) -> Result<ReplayReport, CaseError> {
    let failed = |error: TargetError| CaseError::SetUp { allocator: case.allocator.to_string(), error };
    let (report, waited) = match case.allocator {
        AllocatorName::Direct => on(Direct::new(device.driver().clone()), device, replay),
        AllocatorName::DriverPool(conf) => {
            let pool =
                DriverPool::new(device.driver().clone(), conf).map_err(|error| failed(error.into()))?;
            on(BaselineTarget::new(device, pool), device, replay)
        }
        AllocatorName::Pytorch(conf) => {
            let allocator =
                Pytorch::new(device.driver().clone(), conf).map_err(|error| failed(error.into()))?;
            on(BaselineTarget::new(device, allocator), device, replay)
        }
        AllocatorName::Bfc(conf) => {
            let allocator = Bfc::new(device.driver().clone(), conf).map_err(|error| failed(error.into()))?;
            on(BaselineTarget::new(device, allocator), device, replay)
        }
        AllocatorName::Fixed(conf) => {
            on(BaselineTarget::new(device, Fixed::new(device.driver().clone(), conf)), device, replay)
        }
        AllocatorName::RmmPool(conf) => {
            let allocator =
                RmmPool::new(device.driver().clone(), conf).map_err(|error| failed(error.into()))?;
            on(BaselineTarget::new(device, allocator), device, replay)
        }
        AllocatorName::RmmArena(conf) => {
            let allocator =
                RmmArena::new(device.driver().clone(), conf).map_err(|error| failed(error.into()))?;
            on(BaselineTarget::new(device, allocator), device, replay)
        }
        AllocatorName::Gmlake(conf) => {
            let allocator =
                Gmlake::new(device.driver().clone(), conf).map_err(|error| failed(error.into()))?;
            on(BaselineTarget::new(device, allocator), device, replay)
        }
        AllocatorName::Vpmm(conf) => {
            let pool = Vpmm::new(device.driver().clone(), conf).map_err(|error| failed(error.into()))?;
            on(BaselineTarget::new(device, pool), device, replay)
        }
        AllocatorName::Concertina => {
            on(ConcertinaTarget::new(device, case.policy).map_err(failed)?, device, replay)
        }
        AllocatorName::OnMalloc => {
            on(ConcertinaTarget::on_malloc(device, case.policy).map_err(failed)?, device, replay)
        }
    };
    waited.map_err(failed)?;
    Ok(report)
}

fn on<D: BenchDevice>(
    mut target: impl ReplayTarget,
    device: &D,
    replay: &Replay<'_>,
) -> (ReplayReport, Result<(), TargetError>) {
    let report = replay.run(&mut target);
    // A program that ends waits for its device; then everything can be given back.
    (report, device.synchronize_device())
}

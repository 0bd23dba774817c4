//! Which calls wait for a kernel that has nothing to do with them.
//!
//! Main types: [`Trial`]. Neighbours: an allocator may not count on a wait, and must count with one.

use std::time::Instant;

use concertina_cuda::Kernels;
use concertina_vmm::{Address, Call, Driver as _, DriverError};

use super::holdings::{FrameNumber, Holdings};
use super::report::Wait;
use super::session::Session;

/// What the calls are made on: a page's reservation and frame, mapped as far as the call needs it, a malloc, a block of the
/// pool.
struct Trial<'h, 'a> {
    session: &'h Session<'a>,
    held: &'h mut Holdings<'a>,
    page: u64,
    place: Address,
    frame: FrameNumber,
}

/// How far the page is before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Reserved,
    Mapped,
    Accessible,
}

type Step = fn(&mut Trial<'_, '_>) -> Result<(), DriverError>;

/// The calls, and how far the page must be.
const CALLS: &[(&str, Before, Step)] = &[
    (Call::Reserve.name(), Before::Reserved, |trial| trial.held.reserve(trial.page).map(drop)),
    (Call::Create.name(), Before::Reserved, |trial| trial.held.create(trial.page).map(drop)),
    (Call::Map.name(), Before::Reserved, |trial| trial.held.map(trial.place, trial.page, trial.frame)),
    (Call::SetAccess.name(), Before::Mapped, |trial| trial.held.set_access(trial.place, trial.page)),
    (Call::Unmap.name(), Before::Accessible, |trial| trial.held.unmap(trial.place, trial.page)),
    (Call::Release.name(), Before::Reserved, |trial| trial.held.release(trial.frame)),
    (Call::Unreserve.name(), Before::Reserved, |trial| trial.held.unreserve(trial.place, trial.page)),
    (Call::MemoryInfo.name(), Before::Reserved, |trial| trial.session.cuda.memory_info().map(drop)),
];

pub(super) fn measure(session: &mut Session<'_>) -> Result<(), DriverError> {
    let loaded = session.cuda.raw_calls().kernels();
    let Some(mut kernels) = session.unless_missing("which calls wait", loaded)? else { return Ok(()) };
    let page = session.page()?;
    for &(call, before, step) in CALLS {
        if session.is_over() {
            return Ok(());
        }
        let mut held = session.holdings();
        let (place, frame) = (held.reserve(page)?, held.create(page)?);
        if before != Before::Reserved {
            held.map(place, page, frame)?;
        }
        if before == Before::Accessible {
            held.set_access(place, page)?;
        }
        let mut trial = Trial { session, held: &mut held, page, place, frame };
        let wait = under_kernel(session, &mut kernels, call, || step(&mut trial))?;
        held.give_back()?;
        session.report.waits.push(wait);
    }
    mallocs(session, &mut kernels, page)
}

fn mallocs(session: &mut Session<'_>, kernels: &mut Kernels, page: u64) -> Result<(), DriverError> {
    let mut held = session.holdings();
    let mut address = None;
    let wait = under_kernel(session, kernels, Call::Malloc.name(), || {
        address = Some(held.malloc(page)?);
        Ok(())
    })?;
    session.report.waits.push(wait);
    if let Some(address) = address {
        let wait = under_kernel(session, kernels, Call::Free.name(), || held.free(address))?;
        session.report.waits.push(wait);
    }
    let stream = session.streams[0];
    // The first block, on an idle device, sets the pool up.
    let first = held.pool_malloc(page, stream);
    let Some(address) = session.unless_missing("which calls of the pool wait", first)? else { return Ok(()) };
    held.pool_free(address, stream)?;
    let mut address = None;
    let wait = under_kernel(session, kernels, "pool_malloc", || {
        address = Some(held.pool_malloc(page, stream)?);
        Ok(())
    })?;
    session.report.waits.push(wait);
    if let Some(address) = address {
        let wait = under_kernel(session, kernels, "pool_free", || held.pool_free(address, stream))?;
        session.report.waits.push(wait);
    }
    held.give_back()?;
    session.cuda.raw_calls().synchronize()
}

/// Makes the call while a kernel runs, and looks whether it still does.
fn under_kernel(
    session: &Session<'_>,
    kernels: &mut Kernels,
    call: &'static str,
    body: impl FnOnce() -> Result<(), DriverError>,
) -> Result<Wait, DriverError> {
    let kernel = session.plan.kernel;
    let spin = kernels.spin(session.streams[1], kernel)?;
    let start = Instant::now();
    let done = body();
    let took = start.elapsed();
    let waited = !spin.is_running()?;
    spin.stop()?;
    done?;
    let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Ok(Wait { call, took_ns: ns(took), kernel_ns: ns(kernel), waited })
}

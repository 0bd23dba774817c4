//! Reserve, create, map, set access, unmap, release and unreserve of one frame, by its size.
//!
//! Main types: none. Neighbours: `probe` calls it twice: on an idle device, and while a kernel runs.

use concertina_cuda::{Kernels, Purpose, Spin};
use concertina_vmm::{Call, DriverError};

use super::clock::Times;
use super::report::{FreshMemory, Load};
use super::session::{Session, Subject};

/// Longest run of a kernel under which calls are timed, in multiples of the one that calls may wait for.
const KERNELS: u32 = 10;

pub(super) fn measure(session: &mut Session<'_>, load: Load) -> Result<(), DriverError> {
    let mut kernels = match load {
        Load::Idle => None,
        Load::UnderKernel => {
            let loaded = session.cuda.raw_calls().kernels();
            let Some(kernels) = session.unless_missing("calls under a kernel", loaded)? else {
                return Ok(());
            };
            Some(kernels)
        }
    };
    for bytes in session.in_pages(&session.plan.frame_bytes)? {
        if session.is_over() || !size(session, load, bytes, kernels.as_mut())? {
            break;
        }
    }
    if load == Load::Idle { purposes(session) } else { Ok(()) }
}

/// Whether there was memory for frames of this size.
fn size(
    session: &mut Session<'_>,
    load: Load,
    bytes: u64,
    kernels: Option<&mut Kernels>,
) -> Result<bool, DriverError> {
    let spin =
        kernels.map(|kernels| kernels.spin(session.streams[1], session.plan.kernel * KERNELS)).transpose()?;
    let still_runs = || spin.as_ref().map_or(Ok(true), Spin::is_running);
    let [mut reserve, mut create, mut map, mut access, mut unmap, mut release, mut unreserve] = Times::none();
    // The holdings go before the kernel is told to end.
    let mut held = session.holdings();
    while session.goes_on(reserve.len()) {
        let created = create.time(|| held.create(bytes));
        let Some(frame) = session.unless_missing(format!("frames of {bytes} bytes"), created)? else {
            return Ok(false);
        };
        let address = reserve.time(|| held.reserve(bytes))?;
        map.time(|| held.map(address, bytes, frame))?;
        access.time(|| held.set_access(address, bytes))?;
        unmap.time(|| held.unmap(address, bytes))?;
        release.time(|| held.release(frame))?;
        unreserve.time(|| held.unreserve(address, bytes))?;
        if !still_runs()? {
            // Which of the calls was under the kernel is not known.
            for times in
                [&mut reserve, &mut create, &mut map, &mut access, &mut unmap, &mut release, &mut unreserve]
            {
                times.forget_last();
            }
            session.leave_out(format!("frames of {bytes} bytes under a kernel"), "the kernel ended before");
            break;
        }
    }
    held.give_back()?;
    spin.map(Spin::stop).transpose()?;
    let all = [
        (Call::Reserve, reserve),
        (Call::Create, create),
        (Call::Map, map),
        (Call::SetAccess, access),
        (Call::Unmap, unmap),
        (Call::Release, release),
        (Call::Unreserve, unreserve),
    ];
    for (call, times) in all {
        session.note(Subject::one(call.name(), load, bytes), times);
    }
    Ok(true)
}

/// What it costs to create memory that may be exported, or registered with a network card.
fn purposes(session: &mut Session<'_>) -> Result<(), DriverError> {
    let raw = session.cuda.raw_calls();
    let purposes = [
        (Purpose::Plain, "plain", "create"),
        (Purpose::ExportAsFile, "export as a file", "create_for_export"),
        (Purpose::GpuDirectRdma, "GPUDirect RDMA", "create_for_rdma"),
    ];
    for (purpose, name, call) in purposes {
        let asked = session.unless_missing(format!("memory for {name}"), raw.granularity_for(purpose))?;
        let Some(granularity_bytes) = asked else { continue };
        session.report.fresh_memory.push(FreshMemory { purpose: name, granularity_bytes });
        if purpose == Purpose::Plain {
            // Measured above.
            continue;
        }
        let mut held = session.holdings();
        let mut create = Times::default();
        while session.goes_on(create.len()) {
            let created = create.time(|| raw.create_for(granularity_bytes, purpose));
            let Some(handle) = session.unless_missing(format!("memory for {name}"), created)? else { break };
            let frame = held.keep(handle);
            held.release(frame)?;
        }
        held.give_back()?;
        session.note(Subject::one(call, Load::Idle, granularity_bytes), create);
    }
    Ok(())
}

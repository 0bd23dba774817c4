//! How many mappings there can be at once.
//!
//! Main types: none. Neighbours: `Capabilities::max_mappings` is the budget that an allocator keeps to where it is known.
//!
//! One frame of a page is mapped again and again, so that memory is no limit. Access is set over many mappings at a time, as
//! single ones would take most of a minute.

use concertina_vmm::{Address, Driver as _, DriverError, DriverErrorKind};

use super::holdings::{FrameNumber, Holdings};
use super::report::MappingLimit;
use super::session::Session;

/// Mappings made accessible by one call.
const BATCH: u64 = 1_000;

pub(super) fn measure(session: &mut Session<'_>) -> Result<(), DriverError> {
    let most = session.plan.most_mappings;
    if most == 0 {
        session.leave_out("the mapping limit", "the plan has none");
        return Ok(());
    }
    let bytes = session.page()?;
    let mut held = session.holdings();
    let frame = held.create(bytes)?;
    let reserved = held.reserve(bytes * most);
    let Some(start) = session.unless_missing(format!("{most} mappings"), reserved)? else { return Ok(()) };
    // Many at a time, and where not all of them have room, one by one.
    let (mut accessible, mut step, mut refusal) = (0, BATCH, None);
    while accessible < most && refusal.is_none() {
        // They have to be unmapped, too, in what is left of the time of others.
        if session.is_over() {
            break;
        }
        let added = step.min(most - accessible);
        match add(&mut held, frame, start.add(accessible * bytes), bytes, added) {
            Ok(()) => accessible += added,
            Err(error) if step == 1 || error.kind == DriverErrorKind::Lost => refusal = Some(error),
            Err(_) => step = 1,
        }
    }
    // A lost device is no limit.
    let refusal = match refusal {
        Some(error) if error.kind == DriverErrorKind::Lost => return Err(error),
        refusal => refusal.map(|error| error.to_string()),
    };
    if session.cuda.capabilities().unmap_spans_mappings {
        let mut from = 0;
        while from < accessible {
            let to = (from + BATCH).min(accessible);
            held.unmap(start.add(from * bytes), (to - from) * bytes)?;
            from = to;
        }
    }
    held.give_back()?;
    session.report.mapping_limit = Some(MappingLimit { bytes, mappings: accessible, refusal });
    Ok(())
}

/// Maps the frame at so many neighbouring places and makes them accessible; all, or none.
fn add(
    held: &mut Holdings<'_>,
    frame: FrameNumber,
    start: Address,
    bytes: u64,
    count: u64,
) -> Result<(), DriverError> {
    let mut mapped = 0;
    let done = (0..count).try_for_each(|place| {
        held.map(start.add(place * bytes), bytes, frame)?;
        mapped += 1;
        Ok(())
    });
    let done = done.and_then(|()| held.set_access(start, count * bytes));
    if done.is_err() {
        for place in 0..mapped {
            held.unmap(start.add(place * bytes), bytes)?;
        }
    }
    done
}

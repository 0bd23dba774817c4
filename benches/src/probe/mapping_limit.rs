//! How many mappings there can be at once.
//!
//! Main types: none. Neighbours: `Capabilities::max_mappings` is the budget that an allocator keeps to where it is known.
//!
//! One frame of a page is mapped again and again, so that memory is no limit. Access is set over many mappings at a time, as
//! single ones would take most of a minute.

use concertina_vmm::{Driver as _, DriverError, DriverErrorKind};

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
    let (mut mapped, mut accessible, mut refusal) = (0, 0, None);
    while accessible < most && refusal.is_none() {
        // They have to be unmapped, too: half of the time for either.
        if session.is_over() {
            break;
        }
        let end = (accessible + BATCH).min(most);
        while mapped < end && refusal.is_none() {
            match held.map(start.add(mapped * bytes), bytes, frame) {
                Ok(()) => mapped += 1,
                Err(error) => refusal = Some(error),
            }
        }
        // One by one where there is not room for all: the last that fits is what is asked.
        let step = |from: u64, to: u64| held.set_access(start.add(from * bytes), (to - from) * bytes);
        if mapped > accessible && step(accessible, mapped).is_ok() {
            accessible = mapped;
            continue;
        }
        while accessible < mapped {
            match step(accessible, accessible + 1) {
                Ok(()) => accessible += 1,
                Err(error) => {
                    refusal = refusal.or(Some(error));
                    break;
                }
            }
        }
    }
    // A lost device is no limit.
    let refusal = match refusal {
        Some(error) if error.kind == DriverErrorKind::Lost => return Err(error),
        refusal => refusal.map(|error| error.to_string()),
    };
    if session.cuda.capabilities().unmap_spans_mappings {
        let mut from = 0;
        while from < mapped {
            let to = (from + BATCH).min(mapped);
            held.unmap(start.add(from * bytes), (to - from) * bytes)?;
            from = to;
        }
    }
    held.give_back()?;
    session.report.mapping_limit = Some(MappingLimit { bytes, mappings: accessible, refusal });
    Ok(())
}

//! Malloc and free, and the driver's pools, by size.
//!
//! Main types: none. Neighbours: `waits` shows that a free waits for the device, which is why none is timed under a kernel.

use concertina_vmm::{Call, DriverError};

use super::clock::Times;
use super::report::Load;
use super::session::{Session, Subject};

pub(super) fn measure(session: &mut Session<'_>) -> Result<(), DriverError> {
    for bytes in session.plan.malloc_bytes.clone() {
        if session.is_over() || !mallocs(session, bytes)? {
            break;
        }
    }
    for bytes in session.plan.malloc_bytes.clone() {
        if session.is_over() || !pool(session, bytes)? {
            break;
        }
    }
    Ok(())
}

/// Whether there was memory for it.
fn mallocs(session: &mut Session<'_>, bytes: u64) -> Result<bool, DriverError> {
    let mut held = session.holdings();
    let [mut malloc, mut free] = Times::none();
    while session.goes_on(malloc.len()) {
        let done = malloc.time(|| held.malloc(bytes));
        let Some(address) = session.unless_missing(format!("a malloc of {bytes} bytes"), done)? else {
            return Ok(false);
        };
        free.time(|| held.free(address))?;
    }
    session.note(Subject::one(Call::Malloc.name(), Load::Idle, bytes), malloc);
    session.note(Subject::one(Call::Free.name(), Load::Idle, bytes), free);
    Ok(true)
}

/// Blocks that the pool has, since one of the size was just freed on the stream; and ones that it must get from the driver.
fn pool(session: &mut Session<'_>, bytes: u64) -> Result<bool, DriverError> {
    let (raw, stream) = (session.cuda.raw_calls(), session.streams[0]);
    let mut held = session.holdings();
    let [mut hit, mut free, mut fresh] = Times::none();
    while session.goes_on(hit.len()) {
        let done = hit.time(|| held.pool_malloc(bytes, stream));
        let what = format!("a block of {bytes} bytes from the pool");
        let Some(address) = session.unless_missing(what, done)? else { return Ok(false) };
        free.time(|| held.pool_free(address, stream))?;
    }
    while session.goes_on(fresh.len()) {
        raw.synchronize()?;
        let what = "blocks that the pool does not have";
        if session.unless_missing(what, raw.trim_pool())?.is_none() {
            break;
        }
        let address = fresh.time(|| held.pool_malloc(bytes, stream))?;
        held.pool_free(address, stream)?;
    }
    raw.synchronize()?;
    session.note(Subject::one("pool_malloc", Load::Idle, bytes), hit);
    session.note(Subject::one("pool_free", Load::Idle, bytes), free);
    session.note(Subject::one("pool_malloc_fresh", Load::Idle, bytes), fresh);
    Ok(true)
}

//! Events of our own: without timing, and without cudarc's error slot.
//!
//! Main type: [`Event`]. Neighbours: `driver` creates, records and queries it.

use std::sync::Arc;

use concertina_vmm::{Call, DriverError};
use cudarc::driver::sys;

use crate::context::Context;
use crate::functions;

/// A `CUevent` without timing. Dropping it destroys it, unless the device is lost or the process is exiting.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: `raw` is a name that the driver takes from any thread: the manual makes event calls safe for threads, and each
// call binds the event's context to the calling thread first.
unsafe impl Send for Event {}
// SAFETY: as above; the value itself never changes.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn create(context: &Arc<Context>) -> Result<Self, DriverError> {
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        context.call(Call::EventCreate, format_args!("an event without timing"), || {
            // SAFETY: `raw` is ours and outlives the call; the context is current.
            unsafe { functions::cuEventCreate(&raw mut raw, flags) }
        })?;
        Ok(Self { raw, context: Arc::clone(context) })
    }

    /// The driver's name for it. It is destroyed with this value.
    pub fn raw(&self) -> sys::CUevent {
        self.raw
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.is_closed() {
            return;
        }
        // There is no `Call` for the destruction: it is the other half of the creation.
        let destroyed = self.context.call(Call::EventCreate, format_args!("destruction of an event"), || {
            // SAFETY: `raw` came from a create, is destroyed here only, and nobody has it after. The driver keeps what
            // waits that are queued need of it.
            unsafe { functions::cuEventDestroy_v2(self.raw) }
        });
        if let Err(error) = destroyed {
            tracing::warn!(%error, "an event could not be destroyed");
        }
    }
}

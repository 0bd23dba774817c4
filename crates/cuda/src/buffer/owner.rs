//! The memory behind a buffer, shared by the buffer, its views and its guards.
//!
//! Main types: [`Owner`], [`Bytes`]. Neighbours: `uses` says what a use waits for; `buffer`, `view` and `guard` are windows on it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use concertina_vmm::{DriverErrorKind, StreamClock};
use cudarc::driver::{CudaStream, SyncOnDrop};

use super::error::BufferError;
use super::home::Home;
use super::uses::{Access, Claim, Uses};
use crate::status::nearest_code;

/// What a buffer's bytes are in.
pub(crate) enum Bytes<H: Home> {
    /// There are none, and nothing needs an order.
    None,
    Block(H::Block),
    Growable(H::Growable),
}

/// Bytes, and who uses them.
pub(crate) struct Owner<H: Home> {
    home: Arc<H>,
    bytes: Bytes<H>,
    uses: Mutex<Uses<H::Stream>>,
}

impl<H: Home> Owner<H> {
    pub(crate) fn new(home: Arc<H>, bytes: Bytes<H>) -> Self {
        Self { home, bytes, uses: Mutex::new(Uses::new()) }
    }

    /// The first address; 0 if there are no bytes.
    pub(crate) fn address(&self) -> u64 {
        match &self.bytes {
            Bytes::None => 0,
            Bytes::Block(block) => H::address(block).get(),
            Bytes::Growable(growable) => H::growable_address(growable).get(),
        }
    }

    /// Makes a growable longer. Whoever uses it next on another stream comes after this point of the home stream.
    pub(crate) fn grow_to(&mut self, bytes: u64) -> Result<(), H::Error> {
        if let Bytes::Growable(growable) = &mut self.bytes {
            H::grow_to(growable, bytes)?;
            // As the allocation is the first write of a block: it may carry waits for uses of the frames elsewhere.
            self.uses.get_mut().unwrap_or_else(PoisonError::into_inner).note_written_at_home();
        }
        Ok(())
    }

    /// Makes a growable shorter. What is cut off is not used again before all uses of it are over.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        if let Bytes::Growable(growable) = &mut self.bytes {
            let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
            let left = uses.outstanding(self.home.fences(), self.home.registered().clock());
            H::shrink_to(growable, bytes, &left);
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self.bytes, Bytes::None)
    }

    pub(crate) fn home(&self) -> &Arc<H> {
        &self.home
    }

    fn clock(&self) -> &Arc<StreamClock> {
        self.home.registered().clock()
    }

    fn uses(&self) -> MutexGuard<'_, Uses<H::Stream>> {
        // Nothing that can panic happens between two changes under the lock.
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what is queued on a stream from now on after all that it conflicts with.
    pub(crate) fn begin(
        &self,
        stream: &Arc<StreamClock>,
        access: Access,
        claim: Claim,
    ) -> Result<(), BufferError> {
        if self.is_empty() {
            return Ok(());
        }
        Ok(self.uses().begin(self.home.fences(), self.clock(), stream, access, claim)?)
    }

    /// A use that began has been queued: marks its end with an event, so that others wait for no more than that.
    pub(crate) fn end(&self, stream: &Arc<StreamClock>, access: Access) {
        if self.is_empty() {
            return;
        }
        let end = self.uses().end(self.clock(), stream, access);
        if end.stream == self.clock().stream() {
            return;
        }
        let fences = self.home.fences();
        if let Err(error) = fences.cover(end).and_then(|()| fences.poll(end.stream)) {
            // Whoever has to wait for it tries again, and then reports it.
            tracing::warn!(%error, stream = end.stream.get(), "the end of a use of a buffer has no event");
        }
    }

    /// The argument of a kernel on the home stream, which doesn't say when its use ends. Whether it may be launched.
    ///
    /// cudarc's traits for arguments report no error, and a kernel with a null pointer would cost the program its
    /// context. So where the use can't be put in order, an error is left where cudarc's launch looks before it
    /// launches.
    pub(crate) fn begin_at_home(&self, access: Access, claim: Claim) -> bool {
        let Err(error) = self.begin(self.clock(), access, claim) else { return true };
        tracing::error!(%error, "a kernel's use of a buffer could not be put in order; its launch is refused");
        let kind = match &error {
            BufferError::Order(error) => error.kind,
            _ => DriverErrorKind::Invalid,
        };
        let context = self.home.registered().cuda_stream().context();
        context.record_err(Err::<(), _>(cudarc::driver::DriverError(nearest_code(kind))));
        false
    }

    /// A use on any stream of the driver, as cudarc's copies make it; what they have to drop after it is queued. `None`
    /// if it may not go on: then they get a null pointer, which the driver refuses of a copy or a fill.
    pub(crate) fn begin_on<'a>(
        &self,
        stream: &'a CudaStream,
        access: Access,
        claim: Claim,
    ) -> Option<SyncOnDrop<'a>> {
        if self.is_empty() {
            return Some(SyncOnDrop::Sync(None));
        }
        let home = self.home.registered();
        if home.stream().is_same(stream) {
            // The bytes keep it registered.
            return begun(self.begin(home.clock(), access, claim)).then_some(SyncOnDrop::Sync(None));
        }
        match self.home.find(stream) {
            Some(registration) => {
                let clock = Arc::clone(registration.as_ref().clock());
                begun(self.begin(&clock, access, claim)).then(|| {
                    self.uses().keep(&clock, registration);
                    SyncOnDrop::Sync(None)
                })
            }
            None => {
                // Nobody tells when the copy has been queued, and nobody keeps the stream for an event of ours: so the
                // host waits, before and behind.
                let raw = stream.cu_stream();
                tracing::debug!(?raw, "the host waits: the stream is not registered (`Memory::stream`)");
                begun(self.host_waits(access, claim)).then(|| SyncOnDrop::sync_stream(stream))
            }
        }
    }

    fn host_waits(&self, access: Access, claim: Claim) -> Result<(), BufferError> {
        let mut uses = self.uses();
        let fences = self.home.fences();
        for use_ in uses.conflicts(fences, self.clock(), None, access, claim) {
            fences.host_wait(use_.stream)?;
        }
        if access == Access::Write && claim == Claim::Whole {
            uses.forget_all();
        }
        Ok(())
    }
}

fn begun(result: Result<(), BufferError>) -> bool {
    if let Err(error) = &result {
        tracing::error!(%error, "a copy or fill of a buffer could not be put in order; it gets a null pointer");
    }
    result.is_ok()
}

impl<H: Home> Drop for Owner<H> {
    fn drop(&mut self) {
        let uses = self.uses.get_mut().unwrap_or_else(PoisonError::into_inner);
        let left = uses.outstanding(self.home.fences(), self.home.registered().clock());
        match &mut self.bytes {
            Bytes::None => {}
            Bytes::Block(block) => uses.clocks(&left).for_each(|clock| H::record_use(block, clock)),
            Bytes::Growable(growable) => H::shrink_to(growable, 0, &left),
        }
    }
}

//! A stream as the owner of buffers.
//!
//! Main type: [`Home`]. Neighbours: `stream` makes it; `concertina-cuda` asks it for blocks and fences.

use core::fmt;
use std::sync::Arc;

use concertina_cuda::{Cuda, Registered};
use concertina_vmm::{Address, Fences, StreamClock, Use};
use cudarc::driver::CudaStream;

use crate::allocation::Allocation;
use crate::growable::Growable;
use crate::layout::Layout;
use crate::stream::StreamCore;

use super::error::Error;
use super::memory::Shared;
use super::stream::Stream;

/// What buffers keep of the stream that they were made on: the allocator, and the stream itself. It doesn't keep the
/// registration: see [`Stream`].
pub struct Home {
    pub(super) memory: Arc<Shared>,
    pub(super) core: Arc<StreamCore<Cuda>>,
    pub(super) registered: Registered,
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Home").field(&self.registered.clock().stream()).finish()
    }
}

/// A block is an allocation, whose addresses are its own from the allocation to the drop.
impl concertina_cuda::Sealed for Home {}

impl concertina_cuda::Home for Home {
    type Block = Allocation<Cuda>;
    type Growable = Growable<Cuda>;
    type Stream = Stream;
    type Error = Error;

    fn of(stream: &Stream) -> &Arc<Self> {
        stream.home()
    }

    fn allocate(&self, bytes: u64, alignment: u64) -> Result<Allocation<Cuda>, Error> {
        let layout = Layout::new(bytes);
        let layout = if alignment > layout.alignment() { layout.aligned_to(alignment) } else { layout };
        Ok(self.core.allocate(layout)?)
    }

    fn address(block: &Allocation<Cuda>) -> Address {
        block.address()
    }

    fn record_use(block: &Allocation<Cuda>, clock: &StreamClock) {
        block.record_clock(clock);
    }

    fn reserve(&self, max_bytes: u64) -> Result<Growable<Cuda>, Error> {
        Ok(Growable::new(&self.core.heaps, max_bytes)?)
    }

    fn growable_address(growable: &Growable<Cuda>) -> Address {
        growable.address()
    }

    fn grow_to(growable: &mut Growable<Cuda>, bytes: u64) -> Result<(), Error> {
        Ok(growable.grow_to(bytes)?)
    }

    fn shrink_to(growable: &mut Growable<Cuda>, bytes: u64, uses: &[Use]) {
        growable.shrink_after(bytes, uses);
    }

    fn registered(&self) -> &Registered {
        &self.registered
    }

    fn driver(&self) -> &Cuda {
        self.memory.allocator.driver()
    }

    fn fences(&self) -> &Fences<Cuda> {
        self.core.shared.heaps.fences()
    }

    fn knows(&self, stream: &Stream) -> bool {
        Arc::ptr_eq(&self.memory, &stream.home().memory)
    }

    fn find(&self, stream: &CudaStream) -> Option<Stream> {
        self.memory.find(stream)
    }
}

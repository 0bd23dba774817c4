//! The policy of the allocator: which bytes go where, and whose frames serve them.
//!
//! A heap is the blocks of one pool, one stream and one kind. It places by best fit over addresses, which are
//! plentiful, and backs with frames, which are not: any free frame serves any page. This crate knows bytes, pages and
//! owned values of `concertina-vmm`; it never sees a driver's handle.
//!
//! [`Heaps`] is the whole of it; the walk of one allocation is in `docs/architecture.md`.

#![forbid(unsafe_code)]

mod audit;
pub mod bins;
pub mod block;
mod block_id;
mod budget;
pub mod cell;
mod empty;
pub mod error;
mod gather;
pub mod graph;
pub mod growable;
pub mod heap;
mod heap_lock;
pub mod heaps;
mod hole_class;
pub mod hole_index;
mod idle;
mod ladder;
mod live;
mod malloc_ladder;
pub mod out_of_memory;
mod plan;
pub mod policy;
mod references;
mod retired;
pub mod step;
mod stream_heaps;
pub mod trim;

pub use block_id::BlockId;
pub use cell::{Freeing, HeapCell};
pub use error::{AllocateError, CaptureError, FreeError, GrowError, RequestError};
pub use graph::{GraphPool, Growth};
pub use growable::Growable;
pub use heap::{DEFAULT_POOL, Granted, Heap, HeapKey};
pub use heap_lock::HeapGuard;
pub use heaps::{Heaps, Stats};
pub use out_of_memory::{OutOfMemory, Verdict};
pub use policy::{DEFERRED_FROM_BLOCKS, HostWait, Policy, Settings, StaleRule};
pub use references::Take;
pub use step::{Kind, LARGEST_BYTES, Request, SMALL_BYTES, STEP_BYTES};
pub use stream_heaps::{StreamHeaps, Unkept};
pub use trim::Trimmed;

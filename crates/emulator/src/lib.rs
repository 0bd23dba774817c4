//! A CUDA device's memory on the host: no GPU, only the bookkeeping, done exactly.
//!
//! [`Emulator`] implements [`Driver`](concertina_vmm::Driver). It has a finite capacity and a settable granularity, refuses
//! every call that breaks a rule of the driver and names the [`Rule`], charges each call to a virtual clock from a
//! [`CostTable`], counts calls, and fails on command ([`Fault`]). Its streams run asynchronously ([`EventCompletion`]): what
//! a program queues there ([`Emulator::queue`]) is looked at for races ([`Race`]) and hangs ([`Hang`]). It is deterministic: the same calls give the same
//! addresses, counts and times. What is modelled, what is a guess and where the numbers come from is told in
//! `docs/emulator.md`.
//!
//! ```
//! use concertina_emulator::{Emulator, EmulatorConfig};
//! use concertina_vmm::{Accessor, Driver, FrameProperties};
//!
//! let emulator = Emulator::new(EmulatorConfig::default())?;
//! let properties = FrameProperties::default();
//! let page = emulator.granularity(&properties)?;
//!
//! let address = emulator.reserve(8 * page, 0)?;
//! let handle = emulator.create(page, &properties)?;
//! emulator.map(address, page, &handle)?;
//! assert!(!emulator.resolve(address).unwrap().accessible);
//! emulator.set_access(address, page, &[Accessor::Device(0)])?;
//! assert!(emulator.resolve(address).unwrap().accessible);
//!
//! // A second map at the same place breaks a rule of the driver, and changes nothing.
//! let refused = emulator.map(address, page, &handle).unwrap_err();
//! assert!(refused.detail.starts_with("map-over-mapped"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod address_gaps;
mod address_space;
mod backing;
mod blocks;
mod clock;
mod config;
mod cost;
mod cost_file;
mod cost_search;
mod counts;
mod detector;
mod device;
mod driver;
mod emulator;
mod fault;
mod hang;
mod history;
mod malloc_area;
mod page_table;
mod physical;
mod program;
mod race;
mod rule;
mod slab;
mod timeline;
mod work;

pub use backing::{Backing, BackingId, Piece};
pub use config::{AddressLayout, ConfigError, Detection, EmulatorConfig, EventCompletion};
pub use cost::{CallCost, CostTable};
pub use cost_file::CostFileError;
pub use counts::{Counts, Held};
pub use emulator::{EmulatedEvent, EmulatedHandle, EmulatedStream, Emulator};
pub use fault::{CallFilter, Fault};
pub use hang::{Hang, HangLink, WaitOrigin};
pub use program::ClockTimes;
pub use race::{Race, TracedAccess};
pub use rule::{BrokenRule, Rule};
pub use work::{Access, AccessKind, BlockId, Queued, Signal, Work};

//! An emulated libcuda: unmodified CUDA programs run on it without a GPU.
//!
//! The crate is two things. The cdylib (`libconcertina_libcuda.so`, with the soname `libcuda.so`) exports the driver's
//! functions over [`concertina_emulator`], with pages of the host behind device addresses. The rlib, which is what Rust
//! programs see, finds and opens that file ([`load`]) and controls it ([`Library`]): what device to be, what to fail, what
//! was counted, which kernels there are.
//!
//! ```no_run
//! use concertina_libcuda::{DeviceConfig, load};
//!
//! let library = load()?;
//! let device = library.fresh(&DeviceConfig::default().with_capacity(1 << 30))?;
//! // ... run the program on cudarc, unmodified ...
//! device.check_nothing_held()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is emulated and what is not is told in `docs/libcuda.md`.

#![cfg(target_os = "linux")]
// The functions of the C interface, and the host's pages.
#![allow(unsafe_code)]

mod abi;
mod attribute;
mod budget;
mod capture;
mod code;
mod control;
mod device;
mod entry;
mod exports;
mod failure;
mod file_space;
mod host_pages;
mod kernel;
mod layout;
mod machine;
mod memory;
mod memory_file;
mod module;
mod pinned;
mod pool;
mod reach;
mod record;
mod restriction;
mod stream;
mod table;
mod window;
mod work;

pub use code::Code;
pub use concertina_emulator::{Access, AccessKind, Detection};
pub use concertina_vmm::Address;
pub use control::{
    Backing, ConfigError, ControlError, Counts, DeviceConfig, Execution, FreshDevice, Held, Launch, Library,
    LoadError, Parameter, Raced, StillHeld, load, load_from,
};

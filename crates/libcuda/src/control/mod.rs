//! The Rust side of the library's control functions: find the cdylib, choose the device, register kernels, read figures.
//!
//! Main types: [`Library`], [`DeviceConfig`], [`Launch`], [`Counts`], [`Held`]. Neighbours: `exports::control` is the other
//! side; `abi` has the structs that cross.

mod config;
mod figures;
mod functions;
mod launch;
mod library;
mod load;
mod measuring;

pub use config::{Backing, ConfigError, DeviceConfig, Execution};
pub use figures::{Counts, Held};
pub use launch::{Launch, Parameter};
pub use library::{ControlError, FreshDevice, Library, Raced, StillHeld};
pub use load::{LoadError, load, load_from};

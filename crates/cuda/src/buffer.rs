//! Buffers: typed device memory, that cudarc takes for its own, in the right order on any number of streams.
//!
//! Main types: [`Buffer`], [`GrowableBuffer`], [`View`], [`ViewMut`], [`On`], [`OnMut`], [`Home`], [`BufferError`]. Neighbours: the crate
//! `concertina` implements [`Home`] and has the names that programs use.

mod argument;
mod content;
mod error;
mod fill;
mod growable;
mod guard;
mod home;
mod owner;
mod transfer;
mod typed;
mod uses;
mod view;

pub use error::{BufferError, Transfer};
pub use fill::FillValue;
pub use growable::GrowableBuffer;
pub use guard::{On, OnMut};
pub use home::{Home, Registered, Sealed};
pub use typed::Buffer;
pub use view::{View, ViewMut};

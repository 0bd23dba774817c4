//! Uses of a buffer on a stream of one's choice, in the right order.
//!
//! Main types: [`On`], [`OnMut`]. Neighbours: `buffer` and `view` make them; `uses` has the order.

use core::fmt;
use core::marker::PhantomData;

use concertina_vmm::Address;

use super::error::BufferError;
use super::home::{Home, Registered};
use super::owner::Owner;
use super::uses::{Access, Claim};
use super::view::Unique;

/// A buffer, or a part, as work on one stream reads it: an argument of kernels, and of cudarc's copies.
///
/// Work that is queued on the stream while it lives comes after all writes before. Drop it behind the launch: what is
/// queued by then is what later writes wait for. (A temporary in a chain of calls that ends with `launch` is right.)
#[must_use = "work that is queued after the guard was dropped is not covered by it"]
pub struct On<'a, T, H: Home> {
    pub(super) owner: &'a Owner<H>,
    pub(super) pointer: u64,
    pub(super) len: usize,
    pub(super) stream: &'a H::Stream,
    pub(super) claim: Claim,
    marker: PhantomData<fn() -> T>,
}

/// A buffer, or a part, as work on one stream writes it: as [`On`], and it comes after all reads before, too.
#[must_use = "work that is queued after the guard was dropped is not covered by it"]
pub struct OnMut<'a, T, H: Home> {
    pub(super) owner: &'a Owner<H>,
    pub(super) pointer: u64,
    pub(super) len: usize,
    pub(super) stream: &'a H::Stream,
    pub(super) claim: Claim,
    marker: PhantomData<Unique<'a, T>>,
}

fn begin<H: Home>(
    owner: &Owner<H>,
    stream: &H::Stream,
    access: Access,
    claim: Claim,
) -> Result<(), BufferError> {
    if !owner.home().knows(stream) {
        return Err(BufferError::ForeignStream);
    }
    owner.begin(stream.as_ref().clock(), access, claim)
}

macro_rules! guard {
    ($guard:ident, $access:expr) => {
        impl<'a, T, H: Home> $guard<'a, T, H> {
            pub(super) fn new(
                owner: &'a Owner<H>,
                pointer: u64,
                len: usize,
                stream: &'a H::Stream,
                claim: Claim,
            ) -> Result<Self, BufferError> {
                begin(owner, stream, $access, claim)?;
                Ok(Self { owner, pointer, len, stream, claim, marker: PhantomData })
            }

            /// How many elements it has.
            pub fn len(&self) -> usize {
                self.len
            }

            /// Whether it has none.
            pub fn is_empty(&self) -> bool {
                self.len == 0
            }

            /// The address of the first element.
            pub fn address(&self) -> Address {
                Address::new(self.pointer)
            }

            /// The stream that it is used on.
            pub fn registered(&self) -> &Registered {
                self.stream.as_ref()
            }
        }

        impl<T, H: Home> Drop for $guard<'_, T, H> {
            fn drop(&mut self) {
                self.owner.end(self.stream.as_ref().clock(), $access);
            }
        }

        impl<T, H: Home> fmt::Debug for $guard<'_, T, H> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let stream = self.registered().clock().stream();
                let name = stringify!($guard);
                write!(f, "{name}({} elements at {:#x}, {stream:?})", self.len, self.pointer)
            }
        }
    };
}

guard!(On, Access::Read);
guard!(OnMut, Access::Write);

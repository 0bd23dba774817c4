//! What a driver says when a call fails, and how an owner comes back from a failed step.
//!
//! Main types: [`DriverError`], [`DriverErrorKind`], [`Call`], [`Returned`]. Neighbours: `driver` returns them,
//! every layer above passes them on.

use core::fmt;
use std::borrow::Cow;

macro_rules! calls {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// One kind of driver call. The names are the driver's nouns.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Call {
            $($(#[$doc])* $variant,)*
        }

        impl Call {
            /// Every kind, in the order of their discriminants.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name used in output and files, in snake case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

calls! {
    /// `cuMemAddressReserve`: take a range of addresses.
    Reserve = "reserve",
    /// `cuMemAddressFree`: give the range back.
    Unreserve = "unreserve",
    /// `cuMemCreate`: take physical memory.
    Create = "create",
    /// `cuMemRelease`: give the handle back.
    Release = "release",
    /// `cuMemMap`: put physical memory under addresses.
    Map = "map",
    /// `cuMemUnmap`: take it away again.
    Unmap = "unmap",
    /// `cuMemSetAccess`: let devices read and write a mapped range.
    SetAccess = "set_access",
    /// `cuMemGetInfo`: free and total physical memory.
    MemoryInfo = "memory_info",
    /// `cuEventCreate`.
    EventCreate = "event_create",
    /// `cuEventRecord`.
    EventRecord = "event_record",
    /// `cuEventQuery`.
    EventQuery = "event_query",
    /// `cuEventSynchronize`: a wait of the host.
    EventSynchronize = "event_synchronize",
    /// `cuStreamWaitEvent`: a wait on the device.
    StreamWait = "stream_wait",
    /// `cuStreamIsCapturing`.
    CaptureStatus = "capture_status",
    /// `cuMemAlloc` (`cudaMalloc`).
    Malloc = "malloc",
    /// `cuMemFree` (`cudaFree`): waits for the device.
    Free = "free",
}

impl Call {
    /// Number of kinds.
    pub const COUNT: usize = Self::ALL.len();

    /// Whether the call changes reservations, frames or mappings: what "no driver call in the steady state" counts.
    pub const fn is_memory_call(self) -> bool {
        matches!(
            self,
            Self::Reserve
                | Self::Unreserve
                | Self::Create
                | Self::Release
                | Self::Map
                | Self::Unmap
                | Self::SetAccess
                | Self::Malloc
                | Self::Free
        )
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What kind of failure it is, by what the caller can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DriverErrorKind {
    /// The device (or a table of the driver) is full: give something back and try again.
    OutOfMemory,
    /// Not now: synchronise and try once more.
    NotReady,
    /// This device or driver can't do it: use another way.
    NotSupported,
    /// The call broke a rule of the driver: a mistake of the caller's, state unchanged.
    Invalid,
    /// The device is gone for this process (a sticky error): make no more calls.
    Lost,
}

impl fmt::Display for DriverErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutOfMemory => "out of memory",
            Self::NotReady => "not ready",
            Self::NotSupported => "not supported",
            Self::Invalid => "invalid",
            Self::Lost => "device lost",
        })
    }
}

/// A failed driver call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} failed: {kind}{}{detail}", if .detail.is_empty() { "" } else { ": " })]
pub struct DriverError {
    /// What the caller can do about it.
    pub kind: DriverErrorKind,
    /// The call that failed.
    pub call: Call,
    /// The driver's own words: a code, a rule, a value. May be empty.
    pub detail: Cow<'static, str>,
}

impl DriverError {
    /// An error of this kind from this call, with the driver's words.
    pub fn new(kind: DriverErrorKind, call: Call, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, call, detail: detail.into() }
    }

    /// Whether giving memory back may help.
    pub fn is_out_of_memory(&self) -> bool {
        self.kind == DriverErrorKind::OutOfMemory
    }
}

/// An owner that comes back because a step with it failed; nothing was lost.
#[derive(thiserror::Error)]
#[error("{error}")]
#[must_use = "the owner in it would be dropped"]
pub struct Returned<T> {
    /// What was handed in.
    pub owner: T,
    /// Why it comes back.
    #[source]
    pub error: DriverError,
}

impl<T> fmt::Debug for Returned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Returned").field("error", &self.error).finish_non_exhaustive()
    }
}

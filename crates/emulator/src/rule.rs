//! The rules of the driver, each with its name and its source.
//!
//! Main types: [`Rule`], [`BrokenRule`]. Neighbours: `device` checks them; `Emulator::broken_rules` lists what was
//! broken.
//!
//! The sources: the comments in `cuda.h` (12.9) and the virtual memory chapter of the CUDA Programming Guide, and
//! where these are silent, public reports of what drivers do.

use core::fmt;

use concertina_vmm::Call;

use crate::hang::Hang;

macro_rules! rules {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// A rule of the driver. A call that breaks one is refused and changes nothing.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Rule {
            $($(#[$doc])* $variant,)*
        }

        impl Rule {
            /// Every rule.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name that errors and documents use, in kebab case.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

rules! {
    /// No size is 0. (`cuda.h`: `CUDA_ERROR_INVALID_VALUE` of each call with a size.)
    SizeZero = "size-zero",
    /// Sizes of reservations, frames and ranges are multiples of the granularity that was asked for with the frames'
    /// properties. (`cuda.h`: `cuMemAddressReserve`, `cuMemCreate`, `cuMemMap`.)
    SizeNotGranular = "size-not-granular",
    /// Mapped addresses are multiples of the granularity. (`cuda.h`: `cuMemMap`, `cuMemSetAccess`.)
    AddressNotGranular = "address-not-granular",
    /// The alignment of a reservation is a power of two, or 0. (`cuda.h`: `cuMemAddressReserve`.)
    AlignmentNotPowerOfTwo = "alignment-not-power-of-two",
    /// A range lies inside one reservation. (`cuda.h`: `cuMemMap`. Whether a driver would let an unmap or a set access
    /// cross from one reservation into the next isn't written down; here it may not.)
    OutsideReservation = "outside-reservation",
    /// An unreserve gives back exactly what one reserve took. (`cuda.h`: `cuMemAddressFree`; cuda-python issue 2887.)
    UnreserveNotExact = "unreserve-not-exact",
    /// Nothing is mapped in a range that is unreserved. (CUDA Programming Guide: unmap comes first.)
    UnreserveMapped = "unreserve-mapped",
    /// Frames lie on, and access is given to, a device that exists. (`cuda.h`: `CUmemLocation`.)
    UnknownDevice = "unknown-device",
    /// A map takes the whole frame from offset 0: the one handle is mapped in one piece. (`cuda.h`: `cuMemMap`, the
    /// offset "must be zero". Drivers let a leading part be mapped; this seam has no use for it and refuses it.)
    MapNotWhole = "map-not-whole",
    /// The target of a map has nothing mapped in it. (`cuda.h`: `cuMemMap`.)
    MapOverMapped = "map-over-mapped",
    /// A handle is used only with the device that made it. (`cuda.h`: `CUDA_ERROR_INVALID_VALUE`.)
    HandleOfAnotherDevice = "handle-of-another-device",
    /// A handle is released exactly once and not used after. (`cuda.h`: `cuMemRelease`; nccl issue 1795, vllm issue
    /// 36651.)
    HandleReleased = "handle-released",
    /// An unmap covers mapped pages only. (`cuda.h`: `cuMemUnmap`.)
    UnmapUnmapped = "unmap-unmapped",
    /// An unmap covers whole mappings: it may not end inside one. (cuda-python issue 2907.)
    UnmapPart = "unmap-part",
    /// One unmap takes one mapping, where the device says so (`Capabilities::unmap_spans_mappings` is false: HIP.
    /// On CUDA several adjacent ones go by practice: llama.cpp, vAttention, GMLake.)
    UnmapSpansMappings = "unmap-spans-mappings",
    /// Access is given to a range that is fully mapped. (`cuda.h`: `cuMemSetAccess`.)
    AccessUnmapped = "access-unmapped",
    /// Access is given to whole mappings. (`cuda.h`: `cuMemSetAccess`.)
    AccessPart = "access-part",
    /// Access is given to at least one device. (`cuda.h`: `cuMemSetAccess`, the count of descriptors.)
    AccessForNone = "access-for-none",
    /// A free takes the address of one malloc that is still live. (`cuda.h`: `cuMemFree`.)
    FreeNotOneMalloc = "free-not-one-malloc",
    /// An event is used only with the device that made it. (`cuda.h`: `cuEventRecord`. A device may wait for another's
    /// events on real hardware; this one stands alone.)
    EventOfAnotherDevice = "event-of-another-device",
    /// A stream is used only with the device that made it. (`cuda.h`: `cuEventRecord`.)
    StreamOfAnotherDevice = "stream-of-another-device",
    /// The host can't ask for, or wait for, an event that was recorded in a capture. (`cuda.h`:
    /// `CUDA_ERROR_CAPTURED_EVENT`.)
    EventCaptured = "event-captured",
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A call that broke a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenRule {
    /// Which rule.
    pub rule: Rule,
    /// The call, which was refused.
    pub call: Call,
    /// The values that broke it.
    pub detail: String,
}

impl fmt::Display for BrokenRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} broke {}: {}", self.call, self.rule, self.detail)
    }
}

/// Why a call is refused, before anything was changed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It breaks a rule, with these values.
    Broken(Rule, String),
    /// The device, its addresses or its mapping budget are full.
    Full(String),
    /// The host would wait without end.
    Hang(Hang),
}

impl From<Hang> for Refusal {
    fn from(hang: Hang) -> Self {
        Self::Hang(hang)
    }
}

impl Rule {
    pub(crate) fn broken<T>(self, detail: impl FnOnce() -> String) -> Result<T, Refusal> {
        Err(Refusal::Broken(self, detail()))
    }
}

//! The report of a request that could not be served: is it really too little, or is it fragmented?
//!
//! Main types: [`OutOfMemory`], [`Verdict`]. Neighbours: `ladder` makes one when every step has failed.

use core::fmt;

use crate::gather::Shortage;

/// What stands between the request and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The device has too few bytes left, wherever they are.
    NotEnoughMemory,
    /// The device has the bytes, the allocator's limit does not allow them.
    OverLimit,
    /// Blocks that were freed, and that other streams still use, would make up for it.
    HeldByPendingStreams,
    /// Frames that other streams used last would make up for it, and the cross-stream rule keeps them apart.
    HeldByOtherStreams,
    /// Free bytes in partly used pages would make up for it: live blocks sit on pages that are mostly free.
    StrandedInPartlyUsedPages,
    /// The driver has no room for more addresses or mappings.
    AddressSpace,
    /// Free pages would make up for it, but they lie in several malloc segments, or beside live blocks: without virtual
    /// memory they can't be put together.
    FragmentedWithoutVirtualMemory,
}

impl Verdict {
    /// What it means, in a few words.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::NotEnoughMemory => "not enough memory",
            Self::OverLimit => "over the limit",
            Self::HeldByPendingStreams => "held by pending streams",
            Self::HeldByOtherStreams => "held by other streams",
            Self::StrandedInPartlyUsedPages => "stranded in partly used pages",
            Self::AddressSpace => "no addresses or mappings left",
            Self::FragmentedWithoutVirtualMemory => "fragmented, and without virtual memory",
        }
    }

    /// What the caller can do about it.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::NotEnoughMemory => {
                "free live blocks, use a smaller batch, or end other programs on the device"
            }
            Self::OverLimit => "raise the allocator's limit, or free live blocks",
            Self::HeldByPendingStreams => "let the other streams get on, then ask again",
            Self::HeldByOtherStreams => "allow frames to cross streams, or synchronise the streams and trim",
            Self::StrandedInPartlyUsedPages => {
                "free the small blocks that live long, or allocate them before the large ones"
            }
            Self::AddressSpace => "trim, or use fewer streams",
            Self::FragmentedWithoutVirtualMemory => {
                "free the blocks that live long, allocate them first, or use a device with virtual memory"
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.meaning())
    }
}

/// Why a request could not be served. All sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What was asked for.
    pub asked_bytes: u64,
    /// Its alignment.
    pub alignment: u64,
    /// Live bytes of the allocator, as asked.
    pub live_bytes: u64,
    /// Bytes of blocks that were freed and that other streams still use.
    pub pending_bytes: u64,
    /// Bytes of all frames that the allocator has.
    pub mapped_bytes: u64,
    /// Of those, frames that are free, whichever stream used them last; of malloc segments, pages without live bytes.
    pub free_frames: u64,
    /// Their bytes.
    pub free_bytes: u64,
    /// Of those, bytes that this request's stream may not take yet.
    pub withheld_bytes: u64,
    /// Free bytes in partly used pages.
    pub stranded_bytes: u64,
    /// Bytes of pinned frames.
    pub pinned_bytes: u64,
    /// The largest request on the same stream that would succeed now. It is served when it comes next; one that is less
    /// than a page larger may fit, too, where it happens to end beside live bytes. Less than what was asked, unless other
    /// threads took and freed memory meanwhile, or the driver refused what it says is free: then asking again may help.
    pub largest_bytes: u64,
    /// The allocator's limit on mapped bytes.
    pub limit_bytes: Option<u64>,
    /// Bytes that the driver says are free on the device; `None` if it would not say.
    pub device_free_bytes: Option<u64>,
    /// What stands between the request and its memory.
    pub verdict: Verdict,
}

impl OutOfMemory {
    /// What stands between the request and its memory, when so many bytes are to be had.
    pub(crate) fn verdict(&self, shortage: Shortage, to_be_had: u64) -> Verdict {
        if shortage == Shortage::Tables {
            return Verdict::AddressSpace;
        }
        let missing = self.asked_bytes.saturating_sub(to_be_had);
        if self.withheld_bytes >= missing && self.withheld_bytes > 0 {
            return Verdict::HeldByOtherStreams;
        }
        if self.pending_bytes >= missing && self.pending_bytes > 0 {
            return Verdict::HeldByPendingStreams;
        }
        let over_limit = shortage == Shortage::Limit;
        let enough_on_device =
            self.device_free_bytes.is_none_or(|free| self.free_bytes + free >= self.asked_bytes);
        if over_limit && enough_on_device {
            return Verdict::OverLimit;
        }
        if self.stranded_bytes >= missing {
            return Verdict::StrandedInPartlyUsedPages;
        }
        if over_limit { Verdict::OverLimit } else { Verdict::NotEnoughMemory }
    }
}

/// A number of bytes as people read it.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.iter().find(|(unit, _)| self.0 >= *unit) {
            Some((unit, name)) => write!(f, "{:.2} {name}", self.0 as f64 / *unit as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: asked for {} ({} bytes), {}; live {}, pending {}, mapped {}, free {} in {} frames \
             ({} withheld), stranded {}, pinned {}, largest request that would succeed {}, limit ",
            Size(self.asked_bytes),
            self.asked_bytes,
            self.verdict,
            Size(self.live_bytes),
            Size(self.pending_bytes),
            Size(self.mapped_bytes),
            Size(self.free_bytes),
            self.free_frames,
            Size(self.withheld_bytes),
            Size(self.stranded_bytes),
            Size(self.pinned_bytes),
            Size(self.largest_bytes),
        )?;
        match self.limit_bytes {
            Some(bytes) => write!(f, "{}", Size(bytes))?,
            None => f.write_str("none")?,
        }
        match self.device_free_bytes {
            Some(bytes) => write!(f, ", device free {}", Size(bytes))?,
            None => f.write_str(", device free unknown")?,
        }
        write!(f, ": {}", self.verdict.advice())
    }
}

impl std::error::Error for OutOfMemory {}

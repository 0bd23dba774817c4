//! How an allocator is set up.
//!
//! Main types: [`Config`], [`ConfigBuilder`], [`ConfigError`]. Neighbours: `allocator` checks what depends on the device.

use concertina_heap::{HostWait, Policy, Settings, StaleRule};
use concertina_vmm::{CrossStream, FrameProperties, SegmentKind};

/// The settings of an allocator. [`Config::default`] is right for most programs: the policy `balanced`, frames that
/// cross streams by device-side waits, no limit but the device's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub(crate) name: String,
    pub(crate) properties: FrameProperties,
    pub(crate) segments: Option<SegmentKind>,
    pub(crate) settings: Settings,
}

/// A setting that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The limit is under one page, so that nothing could ever be allocated.
    #[error("a limit of {limit_bytes} bytes: it must hold one page of {granularity_bytes} bytes at least")]
    Limit {
        /// The limit in bytes.
        limit_bytes: u64,
        /// Bytes of a page.
        granularity_bytes: u64,
    },
    /// Reservations of no bytes, or of more than a segment can count.
    #[error(
        "reservations of {reservation_bytes} bytes: from 1 byte to {} bytes",
        concertina_heap::LARGEST_BYTES
    )]
    Reservation {
        /// The size in bytes.
        reservation_bytes: u64,
    },
    /// The device's pages are not a size that blocks can be cut from.
    #[error("pages of {granularity_bytes} bytes: blocks need pages of 4 KiB to 1 GiB")]
    Granularity {
        /// Bytes of a page.
        granularity_bytes: u64,
    },
}

impl Config {
    /// Starts from the defaults.
    ///
    /// ```
    /// use concertina::{Config, CrossStream, Policy};
    ///
    /// let config = Config::builder()
    ///     .name("training")
    ///     .policy(Policy::Lean)
    ///     .limit_bytes(20 << 30)
    ///     .cross_stream(CrossStream::Completed)
    ///     .build();
    /// assert_eq!(config.name(), "training");
    /// ```
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder::default()
    }

    /// The allocator's name in logs.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What the heaps go by.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn check(&self, granularity_bytes: u64) -> Result<(), ConfigError> {
        if !(4 << 10..=1 << 30).contains(&granularity_bytes) {
            return Err(ConfigError::Granularity { granularity_bytes });
        }
        if let Some(limit_bytes) = self.settings.limit_bytes
            && limit_bytes < granularity_bytes
        {
            return Err(ConfigError::Limit { limit_bytes, granularity_bytes });
        }
        match self.settings.reservation_bytes {
            Some(reservation_bytes)
                if reservation_bytes == 0 || reservation_bytes > concertina_heap::LARGEST_BYTES =>
            {
                Err(ConfigError::Reservation { reservation_bytes })
            }
            _ => Ok(()),
        }
    }
}

/// Builds a [`Config`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ConfigBuilder {
    config: Config,
}

impl ConfigBuilder {
    /// The allocator's name in logs.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.config.name = name.into();
        self
    }

    /// Ordinal of the device that memory is created on; 0 if not set.
    pub fn device(mut self, ordinal: u32) -> Self {
        self.config.properties.device = ordinal;
        self
    }

    /// Where segments get their memory. If it is not set: reserved ones where the device has virtual memory, else malloc
    /// segments, of which the log warns. Malloc segments fragment; ask for them on a device with virtual memory only to
    /// compare, or for a library that takes none but memory of `cudaMalloc`.
    pub fn segments(mut self, kind: SegmentKind) -> Self {
        self.config.segments = Some(kind);
        self
    }

    /// When a frame is created in preference to a steal.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.config.settings.policy = policy;
        self
    }

    /// Most mapped bytes of the allocator.
    pub fn limit_bytes(mut self, bytes: u64) -> Self {
        self.config.settings.limit_bytes = Some(bytes);
        self
    }

    /// Whether frames that another stream used last may be taken: the rule of streams that are registered without one.
    pub fn cross_stream(mut self, rule: CrossStream) -> Self {
        self.config.settings.cross_stream = rule;
        self
    }

    /// Whether a request that would be out of memory may make the host wait for work on the device.
    pub fn host_wait(mut self, rule: HostWait) -> Self {
        self.config.settings.host_wait = rule;
        self
    }

    /// What becomes of a page whose frame was stolen.
    pub fn stale(mut self, rule: StaleRule) -> Self {
        self.config.settings.stale = rule;
        self
    }

    /// Bytes of each reservation of addresses. If it is not set, the first of a heap is a small part of the device and
    /// each further one twice the last. A request larger than this gets a reservation of its own size. Without effect on
    /// malloc segments.
    pub fn reservation_bytes(mut self, bytes: u64) -> Self {
        self.config.settings.reservation_bytes = Some(bytes);
        self
    }

    /// Live blocks of a heap, of one stream and one kind, from which on a free is done while the next ones come, which hides what it waits
    /// for the host's memory. If it is not set: [`DEFERRED_FROM_BLOCKS`](crate::DEFERRED_FROM_BLOCKS). 0 defers always, and
    /// `u64::MAX` never. Up to two blocks are then not found by a request that finds another place; no driver call is made while they
    /// would do.
    pub fn deferred_from_blocks(mut self, blocks: u64) -> Self {
        self.config.settings.deferred_from_blocks = Some(blocks);
        self
    }

    /// The finished settings; [`crate::Allocator::new`] checks them against the device.
    pub fn build(self) -> Config {
        self.config
    }
}

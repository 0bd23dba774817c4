//! What device the emulator is.
//!
//! Main types: [`EmulatorConfig`], [`AddressLayout`], [`EventCompletion`], [`Detection`], [`ConfigError`]. Neighbours: `emulator`
//! takes it, `cost` is the clock's part of it.

use crate::cost::CostTable;

/// Smallest granularity in bytes: a page of the host. (Real devices: 64 KiB with a changed driver, 2 MiB today.)
const MIN_GRANULARITY: u64 = 4096;
/// Largest capacity in bytes: memory of `malloc` lies in an address range of its own of this order.
const MAX_CAPACITY: u64 = 1 << 46;
/// Largest address space in bytes. (CUDA's is 47 to 49 bits wide.)
const MAX_ADDRESS_SPACE: u64 = 1 << 48;

/// Where the addresses that the emulator hands out lie: those of mallocs, and above them those of reservations. The
/// default has room for the largest capacity, and ends beyond what a host's process can address; whoever puts memory of
/// the host behind the addresses chooses others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressLayout {
    /// Where addresses of mallocs begin, in bytes: a multiple of the granularity.
    pub mallocs: u64,
    /// Where they end, and where those of reservations begin, in bytes: a multiple of the granularity.
    pub reservations: u64,
}

impl Default for AddressLayout {
    fn default() -> Self {
        Self { mallocs: 1 << 44, reservations: 1 << 47 }
    }
}

/// When queued kernels and recorded events complete. An operation is one further piece of work that the program queued,
/// as told by `Emulator::advance`; driver calls are none.
///
/// Whatever is chosen, a stream is in order, comes after what it waits for, and stands still at a kernel that awaits a
/// signal until that is sent. A host that waits makes complete what it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventCompletion {
    /// The device is infinitely fast.
    #[default]
    AtOnce,
    /// When this many operations were queued after the kernel or the record, and never before the events that the stream
    /// waits for. 0 is the same as `AtOnce`.
    AfterOperations(u64),
    /// When the test says so (`Emulator::complete_stream`), or when the host waits.
    ByHand,
    /// In a random order, drawn from ChaCha8 with this seed: with each item that is queued, each query and each advance, up
    /// to two streams get one item further.
    BySeed(u64),
    /// By the virtual clock, in nanoseconds. Each driver call moves the host's clock on by what it costs. A kernel begins
    /// when it was queued and its stream is ready for it, and lasts as long as it says. A wait of the host moves its clock
    /// on to the end of what it waits for. `Emulator::clock` tells both.
    ByClock,
}

/// Whether the race detector looks at what is queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detection {
    /// It looks at all kernels, blocks and unmaps: `Emulator::races`.
    #[default]
    On,
    /// It does not: for measurements of host time.
    Off,
}

/// What device the emulator is. The default: an H100 of 80 GiB with 2 MiB granularity whose events complete at once.
#[derive(Clone, Debug, PartialEq)]
pub struct EmulatorConfig {
    /// Physical memory in bytes: a multiple of the granularity, at most 64 TiB.
    pub capacity_bytes: u64,
    /// Smallest mappable size in bytes: a power of two of at least 4 KiB.
    pub granularity_bytes: u64,
    /// Addresses that reservations can take together, in bytes: a multiple of the granularity, at most 256 TiB.
    pub address_space_bytes: u64,
    /// Where the addresses lie.
    pub address_layout: AddressLayout,
    /// Most mappings at once before a set access runs out of memory; none without a value. (A public witness saw it
    /// near 520,000 pages on one H100 with driver 580.82: forkedkv's notes.)
    pub max_mappings: Option<u64>,
    /// When queued kernels and recorded events complete.
    pub event_completion: EventCompletion,
    /// Whether races are looked for.
    pub detection: Detection,
    /// What each call costs on the virtual clock.
    pub cost_table: CostTable,
    /// Whether there is virtual memory. Without it, its calls and the question for a granularity are not supported.
    pub virtual_memory: bool,
    /// Whether one unmap may cover several adjacent whole mappings. True on CUDA by practice, not on HIP.
    pub unmap_spans_mappings: bool,
    /// Ordinal of the device.
    pub device: u32,
}

impl Default for EmulatorConfig {
    fn default() -> Self {
        Self {
            capacity_bytes: 80 << 30,
            granularity_bytes: 2 << 20,
            address_space_bytes: 128 << 40,
            address_layout: AddressLayout::default(),
            max_mappings: None,
            event_completion: EventCompletion::AtOnce,
            detection: Detection::On,
            cost_table: CostTable::h100(),
            virtual_memory: true,
            unmap_spans_mappings: true,
            device: 0,
        }
    }
}

impl EmulatorConfig {
    /// The same device with the whole granules that fit in `bytes` as its memory. Set the granularity first.
    ///
    /// # Errors
    /// If not one granule fits, or the granularity is none.
    pub fn with_capacity(mut self, bytes: u64) -> Result<Self, ConfigError> {
        check_granularity(self.granularity_bytes)?;
        self.capacity_bytes = bytes - bytes % self.granularity_bytes;
        if self.capacity_bytes == 0 {
            return Err(ConfigError::CapacityUnderGranule {
                bytes,
                granularity_bytes: self.granularity_bytes,
            });
        }
        check_capacity(self.capacity_bytes, self.granularity_bytes)?;
        Ok(self)
    }

    /// The same device with another granularity, in bytes.
    #[must_use]
    pub fn with_granularity(mut self, bytes: u64) -> Self {
        self.granularity_bytes = bytes;
        self
    }

    /// The same device with events that complete otherwise.
    #[must_use]
    pub fn with_event_completion(mut self, completion: EventCompletion) -> Self {
        self.event_completion = completion;
        self
    }

    /// The same device with the race detector on or off.
    #[must_use]
    pub fn with_detection(mut self, detection: Detection) -> Self {
        self.detection = detection;
        self
    }

    /// The same device with another cost table.
    #[must_use]
    pub fn with_cost_table(mut self, table: CostTable) -> Self {
        self.cost_table = table;
        self
    }

    /// Whether a device can be made of it.
    ///
    /// # Errors
    /// The first value that no device can have.
    pub fn check(&self) -> Result<(), ConfigError> {
        let granularity_bytes = self.granularity_bytes;
        check_granularity(granularity_bytes)?;
        check_capacity(self.capacity_bytes, granularity_bytes)?;
        let bytes = self.address_space_bytes;
        if bytes == 0 || bytes > MAX_ADDRESS_SPACE || !bytes.is_multiple_of(granularity_bytes) {
            return Err(ConfigError::AddressSpace { bytes, granularity_bytes });
        }
        let AddressLayout { mallocs, reservations } = self.address_layout;
        let in_order = 0 < mallocs && mallocs < reservations && reservations.checked_add(bytes).is_some();
        if !in_order || !(mallocs | reservations).is_multiple_of(granularity_bytes) {
            return Err(ConfigError::AddressLayout { mallocs, reservations, granularity_bytes });
        }
        if self.max_mappings == Some(0) {
            return Err(ConfigError::NoMappings);
        }
        Ok(())
    }
}

fn check_granularity(bytes: u64) -> Result<(), ConfigError> {
    if !(MIN_GRANULARITY..=MAX_CAPACITY).contains(&bytes) || !bytes.is_power_of_two() {
        return Err(ConfigError::Granularity { bytes });
    }
    Ok(())
}

fn check_capacity(bytes: u64, granularity_bytes: u64) -> Result<(), ConfigError> {
    if bytes == 0 || bytes > MAX_CAPACITY || !bytes.is_multiple_of(granularity_bytes) {
        return Err(ConfigError::Capacity { bytes, granularity_bytes });
    }
    Ok(())
}

/// A value that no device can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The capacity is 0, too large, or not a multiple of the granularity.
    #[error(
        "capacity of {bytes} bytes: must be a multiple of the granularity of {granularity_bytes} bytes, above 0 and \
         at most {MAX_CAPACITY}"
    )]
    Capacity {
        /// The capacity given.
        bytes: u64,
        /// The granularity given.
        granularity_bytes: u64,
    },
    /// Rounded down to whole granules, nothing is left.
    #[error("capacity of {bytes} bytes: less than one granule of {granularity_bytes} bytes; give more")]
    CapacityUnderGranule {
        /// The capacity given.
        bytes: u64,
        /// The granularity given.
        granularity_bytes: u64,
    },
    /// The granularity is no power of two, or too small or large.
    #[error("granularity of {bytes} bytes: must be a power of two from {MIN_GRANULARITY} to {MAX_CAPACITY}")]
    Granularity {
        /// The granularity given.
        bytes: u64,
    },
    /// The address space is 0, too large, or not a multiple of the granularity.
    #[error(
        "address space of {bytes} bytes: must be a multiple of the granularity of {granularity_bytes} bytes, above 0 \
         and at most {MAX_ADDRESS_SPACE}"
    )]
    AddressSpace {
        /// The size given.
        bytes: u64,
        /// The granularity given.
        granularity_bytes: u64,
    },
    /// The addresses of mallocs and reservations are not in order, not multiples of the granularity, or leave 64 bits.
    #[error(
        "mallocs from address {mallocs:#x} and reservations from {reservations:#x}: must be multiples of the \
         granularity of {granularity_bytes} bytes, above 0, in this order, and leave room for the address space"
    )]
    AddressLayout {
        /// Where mallocs begin.
        mallocs: u64,
        /// Where reservations begin.
        reservations: u64,
        /// The granularity given.
        granularity_bytes: u64,
    },
    /// The mapping budget is 0.
    #[error("a mapping budget of 0: give at least 1, or none for no limit")]
    NoMappings,
}

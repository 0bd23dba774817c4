//! One malloc for everything, cut up by hand.
//!
//! Main types: [`Fixed`], [`FixedConf`]. Neighbours: `carving` has the blocks, `main_stream` says what becomes of other
//! streams than the first.
//!
//! What is modelled is a habit and no one program: a process takes all the memory that it will ever use with its first
//! request, and cuts blocks out of it: the smallest free block that is large enough, of equal ones the lowest, split to
//! the last 256 bytes (the alignment that the CUDA Programming Guide promises for `cudaMalloc`), joined with free
//! neighbours when it is freed. That is the placement with the least waste among those that people write by hand: buddies
//! and segregated lists (TLSF) are faster and round up further. It knows one stream; what its users do about others is
//! what those of TensorFlow do (`main_stream`). What it holds is as large as it was told to be, whatever is live, so
//! that of its figures the smallest device that it fits on tells most.

use std::fmt;
use std::str::FromStr;

use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Driver};

use crate::baseline::Baseline;
use crate::carving::Carving;
use crate::main_stream::{MainStream, PoolBlock};
use crate::options::{OptionsError, mebibytes, pairs, value};
use crate::pool_error::PoolError;

/// Sizes are rounded up to this many bytes.
const STEP_BYTES: u64 = 256;

/// How much is taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FixedConf {
    /// `memory_fraction`: a part of what the device says is free, over 0 and at most 1.
    Fraction(f64),
    /// `memory_mb`: so many bytes.
    Bytes(u64),
}

impl FixedConf {
    /// All that is free.
    pub const fn all() -> Self {
        Self::Fraction(1.0)
    }
}

impl Default for FixedConf {
    fn default() -> Self {
        Self::all()
    }
}

impl FromStr for FixedConf {
    type Err = OptionsError;

    /// Reads options between commas: `memory_fraction:0.9` or `memory_mb:4096`; the last one counts.
    fn from_str(list: &str) -> Result<Self, OptionsError> {
        let mut conf = Self::all();
        for pair in pairs(list) {
            let pair = pair?;
            conf = match pair.0 {
                "memory_fraction" => Self::Fraction(value(pair, "over 0 and at most 1", |part: &f64| {
                    *part > 0.0 && *part <= 1.0
                })?),
                "memory_mb" => Self::Bytes(mebibytes(pair, "1 MiB or more", 1)?),
                other => {
                    let known = "memory_fraction, memory_mb";
                    return Err(OptionsError::Unknown { option: other.to_owned(), known });
                }
            };
        }
        Ok(conf)
    }
}

impl fmt::Display for FixedConf {
    /// The option, if it is not the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fraction(1.0) => Ok(()),
            Self::Fraction(part) => write!(f, "memory_fraction:{part}"),
            Self::Bytes(bytes) => write!(f, "memory_mb:{}", bytes >> 20),
        }
    }
}

/// The allocator of one device.
///
/// ```
/// use concertina_baselines::{Baseline, Fixed, FixedConf};
/// use concertina_emulator::{Emulator, EmulatorConfig};
///
/// let device = Emulator::new(EmulatorConfig::default())?;
/// let mut allocator = Fixed::new(device.clone(), "memory_mb:64".parse::<FixedConf>()?);
/// allocator.add_stream(device.stream());
/// let block = allocator.allocate(3 << 20, 0)?;
/// assert_eq!(device.counts().mapped_bytes, 64 << 20);
/// allocator.free(block)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Fixed<D: Driver> {
    driver: D,
    conf: FixedConf,
    streams: MainStream<D>,
    carving: Carving,
    held_bytes: u64,
    used_bytes: u64,
}

impl<D: Driver> Fixed<D> {
    /// An allocator that has taken nothing yet: it does with the first request.
    pub fn new(driver: D, conf: FixedConf) -> Self {
        let (streams, carving) = (MainStream::new(), Carving::default());
        Self { driver, conf, streams, carving, held_bytes: 0, used_bytes: 0 }
    }

    fn request(&mut self, requested_bytes: u64, stream: u32) -> Result<PoolBlock, PoolError> {
        self.streams.check(stream)?;
        if requested_bytes == 0 {
            return Err(PoolError::ZeroBytes);
        }
        self.take_all()?;
        self.streams.look(&self.driver)?;
        self.give_back_ready();
        let out_of_memory = PoolError::OutOfMemory {
            requested_bytes,
            held_bytes: self.held_bytes,
            used_bytes: self.used_bytes,
        };
        let Some(bytes) = requested_bytes.checked_next_multiple_of(STEP_BYTES) else {
            return Err(out_of_memory);
        };
        let mut found = self.carving.best_fit(bytes);
        if found.is_none() && self.streams.wait(&self.driver)? {
            self.give_back_ready();
            found = self.carving.best_fit(bytes);
        }
        let (address, _) = found.ok_or(out_of_memory)?;
        self.streams.enter(&self.driver, stream)?;
        self.carving.take(address, bytes);
        self.used_bytes += bytes;
        Ok(PoolBlock::new(address, stream))
    }

    fn take_all(&mut self) -> Result<(), PoolError> {
        if self.held_bytes > 0 {
            return Ok(());
        }
        let bytes = match self.conf {
            FixedConf::Bytes(bytes) => bytes,
            FixedConf::Fraction(part) => (part * self.driver.memory_info()?.free_bytes as f64) as u64,
        };
        let bytes = (bytes - bytes % STEP_BYTES).max(STEP_BYTES);
        self.carving.add(self.driver.malloc(bytes)?.get(), bytes);
        self.held_bytes = bytes;
        Ok(())
    }

    fn give_back_ready(&mut self) {
        for address in self.streams.take_ready() {
            self.used_bytes -= self.carving.bytes(address);
            self.carving.give_back(address);
        }
    }
}

impl<D: Driver> Baseline for Fixed<D> {
    type Stream = D::Stream;
    type Block = PoolBlock;

    fn add_stream(&mut self, stream: D::Stream) {
        self.streams.add(stream);
    }

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<PoolBlock, TargetError> {
        Ok(self.request(bytes, stream)?)
    }

    fn address(&self, block: &PoolBlock) -> Address {
        block.address()
    }

    fn free(&mut self, block: PoolBlock) -> Result<(), TargetError> {
        let freed = self.streams.free(&self.driver, block);
        self.give_back_ready();
        Ok(freed?)
    }

    fn record_stream(&mut self, block: &mut PoolBlock, stream: u32) -> Result<(), TargetError> {
        self.streams.check(stream)?;
        block.used_on(stream);
        Ok(())
    }

    /// Nothing is given back before the end.
    fn release_cached(&mut self) -> Result<(), TargetError> {
        Ok(())
    }

    fn address_peak_bytes(&self) -> u64 {
        self.held_bytes
    }
}

/// Gives the malloc back, which waits for the whole device. What the driver refuses then is lost: nobody is left to be told.
impl<D: Driver> Drop for Fixed<D> {
    fn drop(&mut self) {
        for address in self.carving.mallocs() {
            let _ = self.driver.free(Address::new(address));
        }
    }
}

//! Devices behind the crate `cuda`: the emulated libcuda, and a GPU.
//!
//! Main types: [`EmulatedCuda`], [`RealCuda`], [`CudaError`]. Neighbours: `bench_device` says what they must be; `counted`
//! counts on a GPU what an emulator counts itself.

use concertina_cuda::cudarc::driver::DriverError as CudarcError;
use concertina_cuda::{Cuda, OpenError, Stream};
use concertina_emulator::{Counts, Piece};
use concertina_libcuda::{
    Backing, ControlError, DeviceConfig, Execution, FreshDevice, Held, Library, LoadError,
};
use concertina_trace::ReplayDevice;
use concertina_trace::target::TargetError;
use concertina_vmm::{Address, Driver, MemoryInfo};

use crate::bench_device::{BenchDevice, broken_rule, not_given_back};
use crate::counted::Counted;

/// The ordinal of the one device that is used.
const DEVICE: u32 = 0;

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// The emulated libcuda is not there.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// It can't be such a device.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// There is no CUDA device, or none with virtual memory.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The driver answers no question about the device.
    #[error("the device does not tell its memory: {0}")]
    Silent(#[from] concertina_vmm::DriverError),
}

fn refused(error: CudarcError) -> TargetError {
    TargetError::Failed(error.into())
}

fn new_stream(cuda: &Cuda) -> Result<Stream, TargetError> {
    cuda.context().new_stream().map(Stream::new).map_err(refused)
}

fn synchronize_stream(stream: &Stream) -> Result<(), TargetError> {
    // All of them are made above.
    stream.cuda_stream().map_or(Ok(()), |stream| stream.synchronize()).map_err(refused)
}

fn synchronize_device(cuda: &Cuda) -> Result<(), TargetError> {
    cuda.context().synchronize().map_err(refused)
}

/// The crate `cuda` over the emulated libcuda: bookkeeping only, work is done at the call, and events complete as on the
/// emulator that is behind it (but see [`EmulatedCuda::to_be_measured`]). There is one in a process at a time; others wait to
/// be made.
#[derive(Debug)]
pub struct EmulatedCuda {
    cuda: Cuda,
    /// What the program has before there is an allocator: its context.
    held: Held,
    // The last to go: the driver gives its context back before.
    libcuda: FreshDevice,
}

impl EmulatedCuda {
    /// A new device. Backing and execution of `config` are set here.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn new(config: DeviceConfig) -> Result<Self, CudaError> {
        Self::open(&config.with_backing(Backing::Software).with_execution(Execution::AtCall))
    }

    /// A new device to be measured as a GPU would be: with pages of the host behind addresses, streams that run by
    /// themselves, and the kernels of measurements. Backing and execution of `config` are set here.
    ///
    /// # Errors
    /// [`CudaError`].
    pub fn to_be_measured(config: DeviceConfig) -> Result<Self, CudaError> {
        let config = config.with_backing(Backing::HostPages).with_execution(Execution::Workers);
        let device = Self::open(&config)?;
        device.libcuda.register_measuring_kernels()?;
        Ok(device)
    }

    fn open(config: &DeviceConfig) -> Result<Self, CudaError> {
        let libcuda = concertina_libcuda::load()?.fresh(config)?;
        let cuda = Cuda::open(DEVICE as usize)?;
        let held = libcuda.held(DEVICE)?;
        // The trial at the opening made calls, too.
        libcuda.restart_counts(DEVICE)?;
        Ok(Self { cuda, held, libcuda })
    }

    /// The emulated driver, to be told what fails and asked what was called.
    pub fn libcuda(&self) -> &Library {
        &self.libcuda
    }

    /// What the program holds beyond what it had at first.
    pub fn not_given_back(&self) -> Option<String> {
        match self.libcuda.held(DEVICE) {
            Ok(held) => (held != self.held).then(|| not_given_back(&held)),
            Err(error) => Some(error.to_string()),
        }
    }
}

impl ReplayDevice for EmulatedCuda {
    fn advance(&self, operations: u64) {
        self.libcuda.advance(operations);
    }

    fn counts(&self) -> Counts {
        // There is a device 0 as long as this lives.
        self.libcuda.counts(DEVICE).map(|counts| counts.to_emulator()).unwrap_or_default()
    }

    fn ns_in_calls(&self) -> u64 {
        self.libcuda.ns_in_calls(DEVICE)
    }

    fn resolve_range_into(&self, address: Address, bytes: u64, pieces: &mut Vec<Piece>) {
        self.libcuda.resolve_range_into(DEVICE, address, bytes, pieces);
    }
}

impl BenchDevice for EmulatedCuda {
    type Driver = Cuda;

    fn driver(&self) -> &Cuda {
        &self.cuda
    }

    fn new_stream(&self, _number: u32) -> Result<Stream, TargetError> {
        new_stream(&self.cuda)
    }

    fn synchronize_stream(&self, stream: &Stream) -> Result<(), TargetError> {
        synchronize_stream(stream)
    }

    fn synchronize_device(&self) -> Result<(), TargetError> {
        synchronize_device(&self.cuda)
    }

    fn defect_at_end(&self) -> Option<String> {
        if let Some(rule) = self.libcuda.broken_rules(DEVICE).first() {
            return Some(broken_rule(rule));
        }
        self.not_given_back()
    }
}

/// A GPU. Nothing looks through its page tables, so that nothing can be checked on it.
#[derive(Debug)]
pub struct RealCuda {
    driver: Counted<Cuda>,
    memory: MemoryInfo,
    granularity_bytes: u64,
}

impl RealCuda {
    /// Device 0 of this machine.
    ///
    /// # Errors
    /// [`CudaError`]: among others, there is no driver, or no device.
    pub fn open() -> Result<Self, CudaError> {
        let cuda = Cuda::open(DEVICE as usize)?;
        let memory = cuda.memory_info()?;
        let granularity_bytes = cuda.probe().granularity.map_or(0, |sizes| sizes.minimum_bytes);
        Ok(Self { driver: Counted::new(cuda), memory, granularity_bytes })
    }

    /// Its memory in bytes.
    pub const fn capacity_bytes(&self) -> u64 {
        self.memory.total_bytes
    }

    /// Its smallest mappable size in bytes.
    pub const fn granularity_bytes(&self) -> u64 {
        self.granularity_bytes
    }
}

impl ReplayDevice for RealCuda {
    fn advance(&self, _operations: u64) {}

    fn counts(&self) -> Counts {
        self.driver.counts()
    }

    fn resolve_range_into(&self, _address: Address, _bytes: u64, pieces: &mut Vec<Piece>) {
        pieces.clear();
    }
}

impl BenchDevice for RealCuda {
    type Driver = Counted<Cuda>;

    fn driver(&self) -> &Counted<Cuda> {
        &self.driver
    }

    fn new_stream(&self, _number: u32) -> Result<Stream, TargetError> {
        new_stream(self.driver.inner())
    }

    fn synchronize_stream(&self, stream: &Stream) -> Result<(), TargetError> {
        synchronize_stream(stream)
    }

    fn synchronize_device(&self) -> Result<(), TargetError> {
        synchronize_device(self.driver.inner())
    }

    fn defect_at_end(&self) -> Option<String> {
        let counts = self.driver.counts();
        let (mapped, reserved) = (counts.mapped_bytes, counts.reserved_bytes);
        (mapped + reserved > 0)
            .then(|| not_given_back(&format!("{mapped} bytes mapped, {reserved} bytes of addresses")))
    }
}

//! The driver of one CUDA device, and how it is made.
//!
//! Main types: [`Cuda`], [`CudaOptions`], [`VirtualMemory`]. Neighbours: `driver` has its calls; `probe` what it knows.

use core::ffi::c_int;
use core::fmt;
use std::sync::Arc;

use concertina_vmm::{Call, Capabilities, Driver, DriverError, DriverErrorKind, FrameProperties};
use cudarc::driver::{CudaContext, sys};

use crate::attribute::Attribute;
use crate::context::Context;
use crate::error::OpenError;
use crate::functions::Answer;
use crate::probe::{DriverVersion, Granularity, Missing, Probe, Support};
use crate::status::driver_error;
use crate::{allocation, exit, functions, library, touch, trial};

/// Whether a driver without virtual memory is of any use to the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VirtualMemory {
    /// Without it, a driver is made whose [`Capabilities`] say so; malloc, free, streams and events work, and an allocator on
    /// it uses malloc segments. [`Probe::virtual_memory`] has the reason.
    #[default]
    Optional,
    /// Without it, no driver is made: [`OpenError::NoVirtualMemory`].
    Required,
}

/// What may be said when a driver is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Most mappings that the driver holds at once. Real drivers don't tell; an emulated one does, and is believed where
    /// this is `None`.
    pub max_mappings: Option<u64>,
    /// What to do about a device without virtual memory.
    pub virtual_memory: VirtualMemory,
}

impl CudaOptions {
    /// The same with this budget of mappings.
    #[must_use]
    pub fn with_max_mappings(mut self, most: u64) -> Self {
        self.max_mappings = Some(most);
        self
    }

    /// The same with virtual memory required or not.
    #[must_use]
    pub fn with_virtual_memory(mut self, virtual_memory: VirtualMemory) -> Self {
        self.virtual_memory = virtual_memory;
        self
    }
}

/// The driver of one CUDA device, in a context of the program's. A clone is the same driver.
///
/// Calls may come from any thread. Each makes the context current first, and puts back another one that was; a thread
/// that had none keeps this one, as after any call of cudarc's. The thread's capture mode is relaxed during calls that
/// would break a graph capture elsewhere in the process.
///
/// Errors are returned, or logged by `tracing` where a drop has them, and not put into cudarc's error slot, which is the
/// program's.
///
/// As a [`Driver`] it takes addresses as numbers. Who unmaps or frees what is another's takes it from its owner: programs
/// leave that to the allocator.
#[derive(Clone)]
pub struct Cuda {
    pub(crate) context: Arc<Context>,
    known: Arc<Known>,
}

struct Known {
    capabilities: Capabilities,
    probe: Probe,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Cuda {
    /// Makes the driver of the context's device, and finds out once what the device can do. Takes one page of device
    /// memory for a moment, and gives it back.
    ///
    /// # Errors
    /// [`OpenError`]: among others, the driver is too old.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, OpenError> {
        Self::with_options(context, &CudaOptions::default())
    }

    /// The same on the primary context of the device with this ordinal. Where there is no driver on the machine, this is
    /// an error, not cudarc's panic.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(ordinal: usize) -> Result<Self, OpenError> {
        library::load()?;
        // Asked here first: a code of the driver's that cudarc's bindings lack must not get to them.
        initialize(ordinal).map_err(|reason| OpenError::NoContext { ordinal, reason })?;
        let context = CudaContext::new(ordinal)
            .map_err(|error| OpenError::NoContext { ordinal, reason: error.to_string() })?;
        Self::new(&context)
    }

    /// As [`Cuda::new`], with options.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn with_options(context: &Arc<CudaContext>, options: &CudaOptions) -> Result<Self, OpenError> {
        library::load()?;
        exit::watch();
        let ordinal = u32::try_from(context.ordinal()).map_err(|_| OpenError::NoContext {
            ordinal: context.ordinal(),
            reason: "the ordinal is out of range".to_owned(),
        })?;
        let context = Arc::new(Context::new(context, ordinal));
        let max_mappings = options.max_mappings.or_else(library::emulated_max_mappings);
        let cuda =
            Self::probed(context, max_mappings).map_err(|error| OpenError::Probe { ordinal, error })?;
        match &cuda.probe().virtual_memory {
            Support::Missing(missing) if options.virtual_memory == VirtualMemory::Required => {
                Err(OpenError::NoVirtualMemory { ordinal, missing: missing.clone() })
            }
            _ => Ok(cuda),
        }
    }

    /// What was found out about the device.
    pub fn probe(&self) -> &Probe {
        &self.known.probe
    }

    /// The program's context.
    pub fn context(&self) -> &Arc<CudaContext> {
        self.context.cuda()
    }

    pub(crate) fn known_capabilities(&self) -> &Capabilities {
        &self.known.capabilities
    }

    fn probed(context: Arc<Context>, max_mappings: Option<u64>) -> Result<Self, DriverError> {
        let probe = Probe {
            ordinal: context.ordinal(),
            device_name: device_name(&context)?,
            driver_version: driver_version(&context),
            virtual_memory: Attribute::VirtualMemory.ask(&context)?,
            granularity: None,
            unmap_spans_mappings: Support::Missing(Missing::Untried("there is no virtual memory")),
            max_mappings,
            pools: Attribute::Pools.ask(&context)?,
            gpu_direct_rdma: Attribute::GpuDirectRdma.ask(&context)?,
            posix_fd_export: Attribute::PosixFdExport.ask(&context)?,
        };
        if !probe.virtual_memory.is_available() {
            return Ok(Self::knowing(context, probe));
        }
        let minimum_bytes = granularity(&context, Least::Minimum)?;
        let recommended_bytes = granularity(&context, Least::Recommended)?;
        let mut probe =
            Probe { granularity: Some(Granularity { minimum_bytes, recommended_bytes }), ..probe };
        // The trial makes the same calls as the allocator will, so it needs a driver: one that knows what is claimed.
        let claimed = Self::knowing(Arc::clone(&context), probe.clone());
        let tried = trial::run(&claimed, probe.ordinal, minimum_bytes, |first, second| {
            touch::write_and_read(&context, first, second, minimum_bytes)
        });
        match tried {
            Ok(spans) => probe.unmap_spans_mappings = spans,
            // Nothing is known then: a full device may well have virtual memory.
            Err(Missing::Trial { error, .. })
                if matches!(error.kind, DriverErrorKind::OutOfMemory | DriverErrorKind::Lost) =>
            {
                return Err(error);
            }
            Err(missing) => probe.virtual_memory = Support::Missing(missing),
        }
        Ok(Self::knowing(context, probe))
    }

    fn knowing(context: Arc<Context>, probe: Probe) -> Self {
        let capabilities = Capabilities {
            virtual_memory: probe.virtual_memory.is_available(),
            unmap_spans_mappings: probe.unmap_spans_mappings.is_available(),
            max_mappings: probe.max_mappings,
        };
        Self { context, known: Arc::new(Known { capabilities, probe }) }
    }

    /// Whether the device, by what is known so far, has virtual memory; else the error of `call`.
    pub(crate) fn needs_virtual_memory(&self, call: Call) -> Result<(), DriverError> {
        match &self.known.probe.virtual_memory {
            Support::Available => Ok(()),
            Support::Missing(why) => Err(DriverError::new(
                DriverErrorKind::NotSupported,
                call,
                format!("device {} has no virtual memory: {why}", self.context.ordinal()),
            )),
        }
    }

    /// Ordinal of the context's device.
    pub fn ordinal(&self) -> u32 {
        self.context.ordinal()
    }

    /// Refuses frames on another device than the context's: kernels of the context could not use them.
    pub(crate) fn check_device(&self, call: Call, properties: &FrameProperties) -> Result<(), DriverError> {
        let (theirs, ours) = (properties.device, self.context.ordinal());
        if theirs == ours {
            return Ok(());
        }
        let why = format!("frames on device {theirs}; the driver's context is on device {ours}");
        Err(DriverError::new(DriverErrorKind::Invalid, call, why))
    }

    /// Bytes of a page.
    pub(crate) fn page_bytes(&self) -> Result<u64, DriverError> {
        granularity(&self.context, Least::Minimum)
    }
}

/// Which of the two granularities.
#[derive(Clone, Copy)]
enum Least {
    Minimum,
    Recommended,
}

/// Whether the driver starts, and has a device with this ordinal; else its words.
fn initialize(ordinal: usize) -> Result<(), String> {
    let number = c_int::try_from(ordinal).map_err(|_| "no driver counts so far".to_owned())?;
    let check = |answer, what| match answer {
        Answer::SUCCESS => Ok(()),
        failed => Err(driver_error(Call::Create, failed, what).detail.to_string()),
    };
    // SAFETY: takes nothing of ours; may be called any number of times.
    check(unsafe { functions::cuInit(0) }, format_args!("to start the driver"))?;
    let mut device = 0;
    // SAFETY: `device` is ours and outlives the call.
    let answer = unsafe { functions::cuDeviceGet(&raw mut device, number) };
    check(answer, format_args!("to find the device"))
}

fn granularity(context: &Context, least: Least) -> Result<u64, DriverError> {
    let device = context.ordinal();
    let properties = allocation::properties(Call::Create, device)?;
    let which = match least {
        Least::Minimum => sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM,
        Least::Recommended => sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
    };
    let mut bytes = 0;
    context.call(Call::Create, format_args!("the granularity of memory on device {device}"), || {
        // SAFETY: both pointers are to values of ours that outlive the call.
        unsafe { functions::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, which) }
    })?;
    Ok(bytes as u64)
}

fn device_name(context: &Context) -> Result<String, DriverError> {
    let mut name = [0_u8; 256];
    let device = context.cuda().cu_device();
    context.call(Call::Create, format_args!("the name of device {}", context.ordinal()), || {
        // SAFETY: the buffer is ours, outlives the call, and is as long as said, less one byte that stays 0.
        unsafe { functions::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32 - 1, device) }
    })?;
    let text = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn driver_version(context: &Context) -> Option<DriverVersion> {
    let mut number = 0;
    let asked = context.call(Call::Create, format_args!("the driver's version"), || {
        // SAFETY: `number` is ours and outlives the call.
        unsafe { functions::cuDriverGetVersion(&raw mut number) }
    });
    asked.ok()?;
    u32::try_from(number).ok().map(DriverVersion::from_number)
}

/// A driver is shared between threads as it is.
const _: fn() = || {
    fn is_driver<D: Driver + Clone + Send + Sync>() {}
    is_driver::<Cuda>();
};

//! Why a driver could not be made.
//!
//! Main type: [`OpenError`]. Neighbours: `cuda` returns it; calls on a driver that was made fail with
//! `concertina_vmm::DriverError`.

use concertina_vmm::DriverError;

use crate::library::LoadError;
use crate::probe::Missing;

/// Why [`Cuda::new`](crate::Cuda::new) or [`Cuda::open`](crate::Cuda::open) gave no driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No library of the driver, or one that is too old.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// cudarc could not make a context.
    #[error("no context on device {ordinal}: {reason}; `nvidia-smi -L` lists the devices")]
    NoContext {
        /// The device asked for.
        ordinal: usize,
        /// The driver's code and words.
        reason: String,
    },
    /// The device works, but without the virtual memory that the options require.
    #[error("device {ordinal} has no virtual memory management: {missing}")]
    NoVirtualMemory {
        /// The device.
        ordinal: u32,
        /// What is missing.
        missing: Missing,
    },
    /// A question about the device failed.
    #[error("device {ordinal} could not be asked what it can do: {error}")]
    Probe {
        /// The device.
        ordinal: u32,
        /// The failed call.
        #[source]
        error: DriverError,
    },
}

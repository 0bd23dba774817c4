//! Yes-or-no attributes of a device.
//!
//! Main type: [`Attribute`]. Neighbours: `probe` asks them once.

use core::fmt;

use concertina_vmm::{Call, DriverError};
use cudarc::driver::sys::CUdevice_attribute;

use crate::context::Context;
use crate::functions;
use crate::probe::{Missing, Support};

/// One attribute that says whether a device can do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attribute {
    VirtualMemory,
    PosixFdExport,
    GpuDirectRdma,
    Pools,
}

impl Attribute {
    const fn raw(self) -> CUdevice_attribute {
        match self {
            Self::VirtualMemory => {
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
            }
            Self::PosixFdExport => {
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
            }
            Self::GpuDirectRdma => {
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
            }
            Self::Pools => CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::VirtualMemory => "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
            Self::PosixFdExport => "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
            Self::GpuDirectRdma => "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
            Self::Pools => "MEMORY_POOLS_SUPPORTED",
        }
    }

    /// Asks the device of `context`.
    pub(crate) fn ask(self, context: &Context) -> Result<Support, DriverError> {
        let mut value = 0;
        let device = context.cuda().cu_device();
        // No kind of call stands for a question; the nearest is the one whose answer it decides.
        context.call(Call::Create, format_args!("attribute {self}"), || {
            // SAFETY: `value` is ours and outlives the call.
            unsafe { functions::cuDeviceGetAttribute(&raw mut value, self.raw(), device) }
        })?;
        let missing = Missing::Attribute { name: self.name(), number: self.raw() as u32 };
        Ok(if value != 0 { Support::Available } else { Support::Missing(missing) })
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.raw() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_numbers_of_the_header() {
        for (attribute, number) in [
            (Attribute::VirtualMemory, 102),
            (Attribute::PosixFdExport, 103),
            (Attribute::GpuDirectRdma, 110),
            (Attribute::Pools, 115),
        ] {
            assert_eq!(attribute.raw() as u32, number, "{attribute}");
        }
    }
}

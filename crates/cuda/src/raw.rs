//! Calls of the driver that an allocator does not make: for who measures a driver, or tries what it refuses.
//!
//! Main types: [`RawCalls`], [`Access`], [`Purpose`]; in the files below [`Area`], [`Kernels`] and [`Spin`]. Neighbours:
//! `driver` has the calls that the allocator makes; `concertina_bench::probe` measures with both.
//!
//! None of these functions is asked for at [`load`](crate::load). Each is looked for at its first call, and an error
//! ([`DriverErrorKind::NotSupported`]) names one that the driver lacks.

mod area;
mod kernel;

use concertina_vmm::{Address, Call, Driver as _, DriverError, DriverErrorKind};
use cudarc::driver::sys;

pub use area::Area;
pub use kernel::{Kernels, Spin};

use crate::allocation;
use crate::cuda::Cuda;
use crate::driver::size;
use crate::functions;
use crate::handle::Handle;
use crate::stream::Stream;

/// What a device may do at an address (`CUmemAccess_flags`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Nothing: a touch is a fault.
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
}

/// What else memory is created for, beside use by its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Nothing: as the allocator creates it.
    Plain,
    /// Export as a file descriptor (`CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`).
    ExportAsFile,
    /// Network cards (`gpuDirectRDMACapable`).
    GpuDirectRdma,
}

/// The calls, on one driver's device and in its context.
#[derive(Clone, Copy, Debug)]
pub struct RawCalls<'a> {
    cuda: &'a Cuda,
}

impl Cuda {
    /// The calls that only measurements make.
    pub const fn raw_calls(&self) -> RawCalls<'_> {
        RawCalls { cuda: self }
    }
}

impl<'a> RawCalls<'a> {
    /// `cuMemAllocAsync`: `bytes` of the device's current pool, usable on `stream` from here on.
    ///
    /// # Errors
    /// What the driver says; not supported where it has no pools.
    pub fn pool_malloc(&self, bytes: u64, stream: &Stream) -> Result<Address, DriverError> {
        let call = Call::Malloc;
        self.cuda.check_stream(call, stream)?;
        let size = size(call, bytes)?;
        let mut address = 0;
        self.cuda.context.call(call, format_args!("{bytes} bytes of the pool"), || {
            // SAFETY: `address` is ours and outlives the call; the stream is alive, since we borrow its owner.
            unsafe { functions::cuMemAllocAsync(&raw mut address, size, stream.raw()) }
        })?;
        Ok(Address::new(address))
    }

    /// `cuMemFreeAsync`: gives back the address of one [`pool_malloc`](Self::pool_malloc), behind the stream's work.
    ///
    /// # Errors
    /// What the driver says: among others, that the address is none of a pool's.
    pub fn pool_free(&self, address: Address, stream: &Stream) -> Result<(), DriverError> {
        let call = Call::Free;
        self.cuda.check_stream(call, stream)?;
        self.cuda.context.call(call, format_args!("{address} to the pool"), || {
            // SAFETY: takes no memory of ours; the driver refuses what no pool gave. The stream is alive.
            unsafe { functions::cuMemFreeAsync(address.get(), stream.raw()) }
        })
    }

    /// `cuMemPoolTrimTo` of the device's default pool: gives back all that nobody has.
    ///
    /// # Errors
    /// What the driver says.
    pub fn trim_pool(&self) -> Result<(), DriverError> {
        let call = Call::Free;
        let mut pool = core::ptr::null_mut();
        let device = self.cuda.context.cuda().cu_device();
        self.cuda.context.call(call, format_args!("the default pool of device {device}"), || {
            // SAFETY: `pool` is ours and outlives the call.
            unsafe { functions::cuDeviceGetDefaultMemPool(&raw mut pool, device) }
        })?;
        self.cuda.context.call(call, format_args!("to trim the default pool of device {device}"), || {
            // SAFETY: the default pool lives as long as its device.
            unsafe { functions::cuMemPoolTrimTo(pool, 0) }
        })
    }

    /// `cuMemMap` of `bytes` of a handle from `offset` on, both in bytes: what [`Driver::map`](concertina_vmm::Driver::map)
    /// does not let through, to see whether the driver does.
    ///
    /// # Errors
    /// What the driver says.
    pub fn map_part(
        &self,
        address: Address,
        bytes: u64,
        offset: u64,
        handle: &Handle,
    ) -> Result<(), DriverError> {
        let call = Call::Map;
        self.cuda.needs_virtual_memory(call)?;
        let (size, offset) = (size(call, bytes)?, size(call, offset)?);
        self.cuda.context.call(
            call,
            format_args!("{bytes} bytes of a handle from {offset} on at {address}"),
            || {
                // SAFETY: the handle is alive, since we borrow its owner. The driver refuses addresses that are not
                // reserved or already mapped, and what lies outside the handle.
                unsafe { functions::cuMemMap(address.get(), size, offset, handle.raw(), 0) }
            },
        )
    }

    /// `cuMemGetAccess`: what the driver's device may do at a mapped address.
    ///
    /// # Errors
    /// What the driver says; invalid for an answer that no manual knows.
    pub fn access(&self, address: Address) -> Result<Access, DriverError> {
        let call = Call::SetAccess;
        let location = allocation::location(call, self.cuda.ordinal())?;
        let mut flags = 0;
        self.cuda.context.call(call, format_args!("the access to {address}"), || {
            // SAFETY: both pointers are to values of ours that outlive the call.
            unsafe { functions::cuMemGetAccess(&raw mut flags, &raw const location, address.get()) }
        })?;
        match flags {
            0 => Ok(Access::None),
            1 => Ok(Access::Read),
            3 => Ok(Access::ReadWrite),
            other => {
                let why = format!("the access to {address} is {other}: neither 0 nor 1 nor 3");
                Err(DriverError::new(DriverErrorKind::Invalid, call, why))
            }
        }
    }

    /// Smallest mappable size in bytes of memory for this purpose.
    ///
    /// # Errors
    /// What the driver says.
    pub fn granularity_for(&self, purpose: Purpose) -> Result<u64, DriverError> {
        let call = Call::Create;
        self.cuda.needs_virtual_memory(call)?;
        let properties = properties_for(purpose, self.cuda.ordinal())?;
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut bytes = 0;
        self.cuda.context.call(call, format_args!("the granularity of memory for {purpose:?}"), || {
            // SAFETY: both pointers are to values of ours that outlive the call.
            unsafe { functions::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, least) }
        })?;
        Ok(bytes as u64)
    }

    /// `cuMemCreate` of `bytes` for this purpose.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create_for(&self, bytes: u64, purpose: Purpose) -> Result<Handle, DriverError> {
        let call = Call::Create;
        self.cuda.needs_virtual_memory(call)?;
        let size = size(call, bytes)?;
        let properties = properties_for(purpose, self.cuda.ordinal())?;
        let mut raw = 0;
        self.cuda.context.call(call, format_args!("{bytes} bytes for {purpose:?}"), || {
            // SAFETY: both pointers are to values of ours that outlive the call.
            unsafe { functions::cuMemCreate(&raw mut raw, size, &raw const properties, 0) }
        })?;
        Ok(Handle::new(raw, bytes))
    }

    /// The host waits for all work of the context.
    ///
    /// # Errors
    /// What the driver says: also what queued work failed with.
    pub fn synchronize(&self) -> Result<(), DriverError> {
        self.cuda.synchronize_context(Call::EventSynchronize)
    }

    /// Memory of one malloc.
    ///
    /// # Errors
    /// What the driver says.
    pub fn malloc_area(&self, bytes: u64) -> Result<Area, DriverError> {
        Ok(Area::of_malloc(self.cuda, self.cuda.malloc(bytes)?, bytes))
    }

    /// Memory at one range of addresses, made of frames of `frame_bytes` each: the n-th place has the frame that was created
    /// as the `order[n]`-th.
    ///
    /// # Errors
    /// What the driver says; invalid if `order` names a frame that is not there.
    pub fn mapped_area(&self, frame_bytes: u64, order: &[usize]) -> Result<Area, DriverError> {
        Area::of_frames(self.cuda, frame_bytes, order)
    }

    /// Loads the kernels that measurements run.
    ///
    /// # Errors
    /// What the driver says; not supported where it lacks a function for that.
    pub fn kernels(&self) -> Result<Kernels, DriverError> {
        Kernels::load(self.cuda)
    }
}

fn properties_for(purpose: Purpose, device: u32) -> Result<sys::CUmemAllocationProp, DriverError> {
    let mut properties = allocation::properties(Call::Create, device)?;
    match purpose {
        Purpose::Plain => {}
        Purpose::ExportAsFile => {
            properties.requestedHandleTypes =
                sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        }
        Purpose::GpuDirectRdma => properties.allocFlags.gpuDirectRDMACapable = 1,
    }
    Ok(properties)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By `cuda.h`: type, handle types, location (type, id), a pointer, then compression, RDMA, usage.
    #[test]
    fn purposes_are_laid_out_as_in_the_header() {
        let words = |purpose| {
            let properties = properties_for(purpose, 7).unwrap();
            // SAFETY: as long as the array, and without padding where it is read.
            unsafe { core::mem::transmute_copy::<_, [u32; 8]>(&properties) }
        };
        assert_eq!(words(Purpose::Plain), [1, 0, 1, 7, 0, 0, 0, 0]);
        assert_eq!(words(Purpose::ExportAsFile), [1, 1, 1, 7, 0, 0, 0, 0]);
        assert_eq!(words(Purpose::GpuDirectRdma), [1, 0, 1, 7, 0, 0, 0x100, 0]);
    }
}

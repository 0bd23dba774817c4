//! The driver's functions as this crate calls them: by name from the library, with a number for an answer.
//!
//! Main types: [`Answer`]; and one function for each of the driver's. Neighbours: `library` opens the library and finds
//! them; `context` makes the calls.
//!
//! cudarc has the same functions, but returns their answers as `CUresult`, a closed enumeration as new as the bindings:
//! a code of a newer driver that the enumeration lacks would be undefined behaviour. Here an answer is a number. And
//! where cudarc panics over a function that the library lacks, the answer is that it lacks it. Types of arguments are
//! cudarc's; what the driver writes for us is never an enumeration.

use core::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUmemAccessDesc,
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemoryPool, CUmodule, CUstream,
};

use crate::library;

/// What a function of the driver answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A code in the numbering of `CUresult`; 0 is success.
    Code(u32),
    /// The library has no function of this name.
    NoFunction(&'static str),
}

impl Answer {
    pub(crate) const SUCCESS: Self = Self::Code(0);
    /// `CUDA_ERROR_NOT_READY`.
    pub(crate) const NOT_READY: Self = Self::Code(600);
}

/// Declares functions of the driver, as `cuda.h` does. Calling one is as unsafe as calling the driver's. With a name, also
/// a list of their names.
macro_rules! functions {
    ($(#[$doc:meta])* $names:ident: $(fn $name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {
        $(#[$doc])*
        pub(crate) const $names: &[&str] = &[$(stringify!($name)),*];

        functions! { $(fn $name($($arg: $type),*);)* }
    };
    ($(fn $name:ident($($arg:ident: $type:ty),* $(,)?);)*) => {
        $(
            #[allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's own names and arguments")]
            pub(crate) unsafe fn $name($($arg: $type),*) -> Answer {
                type Function = unsafe extern "C" fn($($type),*) -> u32;
                static FOUND: OnceLock<Function> = OnceLock::new();
                let name = stringify!($name);
                let found = FOUND.get().copied().or_else(|| {
                    // SAFETY: the driver's function of this name has this type in `cuda.h`, and a `CUresult` of C is 32
                    // bits.
                    let found = unsafe { library::function::<Function>(name) }?;
                    Some(*FOUND.get_or_init(|| found))
                });
                match found {
                    // SAFETY: the caller promises what the manual asks for.
                    Some(function) => Answer::Code(unsafe { function($($arg),*) }),
                    None => Answer::NoFunction(name),
                }
            }
        )*
    };
}

functions! {
    /// The names of the functions that the allocator and its buffers call.
    NAMES:
    fn cuInit(flags: c_uint);
    fn cuGetErrorName(code: u32, name: *mut *const c_char);
    fn cuGetErrorString(code: u32, text: *mut *const c_char);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDeviceGetName(name: *mut c_char, length: c_int, device: CUdevice);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxSynchronize();
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventQuery(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemGetAllocationGranularity(
        bytes: *mut usize, properties: *const CUmemAllocationProp, which: CUmemAllocationGranularity_flags,
    );
    fn cuMemAddressReserve(
        address: *mut CUdeviceptr, bytes: usize, alignment: usize, hint: CUdeviceptr, flags: u64,
    );
    fn cuMemAddressFree(address: CUdeviceptr, bytes: usize);
    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: u64,
    );
    fn cuMemRelease(handle: CUmemGenericAllocationHandle);
    fn cuMemMap(
        address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64,
    );
    fn cuMemUnmap(address: CUdeviceptr, bytes: usize);
    fn cuMemSetAccess(
        address: CUdeviceptr, bytes: usize, descriptors: *const CUmemAccessDesc, count: usize,
    );
    fn cuMemsetD8Async(address: CUdeviceptr, value: u8, count: usize, stream: CUstream);
    fn cuMemsetD16Async(address: CUdeviceptr, value: u16, count: usize, stream: CUstream);
    fn cuMemsetD32Async(address: CUdeviceptr, value: c_uint, count: usize, stream: CUstream);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
}

// What only measurements call: a driver may lack them.
functions! {
    fn cuMemAllocAsync(address: *mut CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, bytes: usize);
    fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, address: CUdeviceptr);
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuModuleUnload(module: CUmodule);
    fn cuMemHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, memory: *mut c_void, flags: c_uint);
    fn cuMemFreeHost(memory: *mut c_void);
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_bytes: c_uint, stream: CUstream,
        parameters: *mut *mut c_void, extra: *mut *mut c_void,
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No test of this program opens the library.
    #[test]
    fn a_function_that_is_not_there_is_named() {
        // SAFETY: takes nothing of ours.
        assert_eq!(unsafe { cuInit(0) }, Answer::NoFunction("cuInit"));
    }
}

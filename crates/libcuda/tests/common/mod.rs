//! What the tests of the emulated driver share: fresh devices, and the raw calls of cudarc by short names.
//!
//! Main types: [`Context`]. Neighbours: the tests beside it.

#![allow(dead_code, reason = "each test program uses its own part")]

use std::mem::MaybeUninit;
use std::sync::Arc;

use concertina_libcuda::{DeviceConfig, FreshDevice, load};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{self, CUresult};

pub(crate) const PAGE: u64 = 2 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Fresh devices for this test alone.
pub(crate) fn fresh(config: &DeviceConfig) -> FreshDevice {
    load().unwrap().fresh(config).unwrap()
}

/// Checks that everything was given back and nothing raced.
#[track_caller]
pub(crate) fn assert_nothing_held(device: &FreshDevice) {
    if let Err(held) = device.check_nothing_held() {
        panic!("{held}");
    }
    if let Err(raced) = device.check_no_races() {
        panic!("{raced}");
    }
}

fn done(code: CUresult) -> Result<(), CUresult> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(code) }
}

/// The primary context, with the calls that cudarc doesn't wrap.
pub(crate) struct Context {
    pub(crate) context: Arc<CudaContext>,
}

/// Properties of memory on device 0, for any version of the bindings: in some the location's id is in a union.
fn properties() -> sys::CUmemAllocationProp {
    // SAFETY: all zeros are a value of this C struct.
    let mut properties: sys::CUmemAllocationProp = unsafe { MaybeUninit::zeroed().assume_init() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location();
    properties
}

fn location() -> sys::CUmemLocation {
    // SAFETY: all zeros are a value of this C struct, and device 0 in it.
    let mut location: sys::CUmemLocation = unsafe { MaybeUninit::zeroed().assume_init() };
    location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    location
}

/// Wraps a call whose last argument is the place of its result.
macro_rules! call {
    ($function:ident($($arg:expr),*)) => {
        // SAFETY: the pointers are of live values of the right type.
        done(unsafe { sys::$function($($arg),*) })
    };
}

impl Context {
    pub(crate) fn new() -> Self {
        Self { context: CudaContext::new(0).unwrap() }
    }

    pub(crate) fn reserve(&self, bytes: u64) -> Result<u64, CUresult> {
        let mut address = 0;
        call!(cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0)).map(|()| address)
    }

    pub(crate) fn unreserve(&self, address: u64, bytes: u64) -> Result<(), CUresult> {
        call!(cuMemAddressFree(address, bytes as usize))
    }

    pub(crate) fn create(&self, bytes: u64) -> Result<u64, CUresult> {
        let mut handle = 0;
        call!(cuMemCreate(&mut handle, bytes as usize, &properties(), 0)).map(|()| handle)
    }

    pub(crate) fn release(&self, handle: u64) -> Result<(), CUresult> {
        call!(cuMemRelease(handle))
    }

    pub(crate) fn retain(&self, address: u64) -> Result<u64, CUresult> {
        let mut handle = 0;
        call!(cuMemRetainAllocationHandle(&mut handle, address as *mut _)).map(|()| handle)
    }

    pub(crate) fn map(&self, address: u64, bytes: u64, handle: u64) -> Result<(), CUresult> {
        call!(cuMemMap(address, bytes as usize, 0, handle, 0))
    }

    pub(crate) fn unmap(&self, address: u64, bytes: u64) -> Result<(), CUresult> {
        call!(cuMemUnmap(address, bytes as usize))
    }

    pub(crate) fn set_access(&self, address: u64, bytes: u64) -> Result<(), CUresult> {
        self.set_access_to(address, bytes, 3)
    }

    pub(crate) fn set_access_to(&self, address: u64, bytes: u64, flags: u32) -> Result<(), CUresult> {
        let flags = match flags {
            0 => sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            1 => sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            _ => sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let access = sys::CUmemAccessDesc { location: location(), flags };
        call!(cuMemSetAccess(address, bytes as usize, &access, 1))
    }

    pub(crate) fn access(&self, address: u64) -> Result<u64, CUresult> {
        let mut flags = 0;
        call!(cuMemGetAccess(&mut flags, &location(), address)).map(|()| flags)
    }

    pub(crate) fn granularity(&self) -> Result<usize, CUresult> {
        let mut bytes = 0;
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        call!(cuMemGetAllocationGranularity(&mut bytes, &properties(), least)).map(|()| bytes)
    }

    pub(crate) fn malloc(&self, bytes: usize) -> Result<u64, CUresult> {
        let mut address = 0;
        call!(cuMemAlloc_v2(&mut address, bytes)).map(|()| address)
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), CUresult> {
        call!(cuMemFree_v2(address))
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        let (mut free, mut total) = (0, 0);
        call!(cuMemGetInfo_v2(&mut free, &mut total)).unwrap();
        free as u64
    }

    pub(crate) fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<(), CUresult> {
        call!(cuMemsetD8_v2(address, value, bytes as usize))?;
        call!(cuCtxSynchronize())
    }

    pub(crate) fn to_host<T: Copy>(&self, to: &mut [T], from: u64) -> Result<(), CUresult> {
        call!(cuMemcpyDtoH_v2(to.as_mut_ptr().cast(), from, size_of_val(to)))
    }

    pub(crate) fn to_device<T: Copy>(&self, to: u64, from: &[T]) -> Result<(), CUresult> {
        call!(cuMemcpyHtoD_v2(to, from.as_ptr().cast(), size_of_val(from)))
    }
}

//! The driver's structures about memory, filled in so that they compile with every version of the bindings.
//!
//! Main types: none; two functions. Neighbours: `driver` and `probe` create memory and ask about it with them.
//!
//! From CUDA 13.2 on, the ordinal in `CUmemLocation` is part of an unnamed union; before, it is a field. In both it is the
//! second of two 32-bit words, and that is how it is written here.

use core::mem::{self, MaybeUninit};

use concertina_vmm::{Call, DriverError, DriverErrorKind};
use cudarc::driver::sys;

/// What `cuMemCreate` takes for memory on the device with this ordinal, and what its granularity is asked with: pinned,
/// not to be exported, not compressed.
pub(crate) fn properties(call: Call, device: u32) -> Result<sys::CUmemAllocationProp, DriverError> {
    let location = location(call, device)?;
    // SAFETY: all zero is a value of every field: the enumerations have a value of 0, the pointer may be null.
    let mut properties = unsafe { MaybeUninit::<sys::CUmemAllocationProp>::zeroed().assume_init() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location;
    Ok(properties)
}

/// What `cuMemSetAccess` takes to let this device read and write.
pub(crate) fn read_write(device: u32) -> Result<sys::CUmemAccessDesc, DriverError> {
    Ok(sys::CUmemAccessDesc {
        location: location(Call::SetAccess, device)?,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    })
}

pub(crate) fn location(call: Call, device: u32) -> Result<sys::CUmemLocation, DriverError> {
    let ordinal = i32::try_from(device).map_err(|_| {
        DriverError::new(DriverErrorKind::Invalid, call, format!("{device} is no ordinal of a device"))
    })?;
    let kind = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as u32;
    // SAFETY: the structure is two words (the compiler checks the size), first the kind, here one that exists, then the
    // ordinal, for which any number will do.
    Ok(unsafe { mem::transmute::<[u32; 2], sys::CUmemLocation>([kind, ordinal.cast_unsigned()]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a structure.
    fn words<T, const N: usize>(value: T) -> [u32; N] {
        assert_eq!(size_of::<T>(), size_of::<[u32; N]>());
        // SAFETY: as long as the array, and these structures have no padding where they are read.
        unsafe { mem::transmute_copy(&value) }
    }

    /// By `cuda.h`: type, handle types, location (type, id), a pointer, four more fields in two words.
    #[test]
    fn properties_are_laid_out_as_in_the_header() {
        let words: [u32; 8] = words(properties(Call::Create, 7).unwrap());
        assert_eq!(words, [1, 0, 1, 7, 0, 0, 0, 0]);
    }

    /// By `cuda.h`: location (type, id), flags: read 1 and write 2.
    #[test]
    fn access_is_laid_out_as_in_the_header() {
        let words: [u32; 3] = words(read_write(3).unwrap());
        assert_eq!(words, [1, 3, 3]);
    }

    #[test]
    fn an_ordinal_too_large_is_refused() {
        let error = properties(Call::Create, u32::MAX).err().unwrap();
        assert_eq!(error.kind, DriverErrorKind::Invalid);
        assert!(error.detail.contains("4294967295"), "{error}");
    }
}

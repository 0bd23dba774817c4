//! The driver's result codes as kinds of errors.
//!
//! Main types: none; [`kind_of`] is the table. Neighbours: `context` turns every failed call into a `DriverError` here.
//!
//! The table works on numbers, so that it knows codes that the bindings lack, and takes a code that it doesn't know as
//! [`DriverErrorKind::Invalid`]: the call is refused, and nothing more is concluded.

use core::ffi::CStr;
use core::fmt;
use core::ptr;

use concertina_vmm::{Call, DriverError, DriverErrorKind};
use cudarc::driver::sys::CUresult;

use crate::functions::{self, Answer};

/// The kind of error that a result code (of `CUresult`, in the CUDA driver API's numbering) stands for.
///
/// [`DriverErrorKind::Lost`] are the codes of which the manual says that the process, the context or the device is
/// unusable from there on, whatever call reported them.
///
/// `0` is no error; asked for it, the answer is that of an unknown code.
pub const fn kind_of(code: u32) -> DriverErrorKind {
    match code {
        // OUT_OF_MEMORY
        2 => DriverErrorKind::OutOfMemory,
        // NOT_READY; the system or a server is not up yet: SYSTEM_NOT_READY, MPS_SERVER_NOT_READY, FABRIC_NOT_READY
        600 | 802 | 807 | 919 => DriverErrorKind::NotReady,
        // STUB_LIBRARY, CALL_REQUIRES_NEWER_DRIVER, NO_DEVICE, DEVICE_NOT_LICENSED, PEER_ACCESS_UNSUPPORTED,
        // INSUFFICIENT_LOADER_VERSION, NOT_PERMITTED, NOT_SUPPORTED, SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED_ON_DEVICE
        34 | 36 | 100 | 102 | 217 | 227 | 800 | 801 | 803 | 804 => DriverErrorKind::NotSupported,
        // DEINITIALIZED; ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED
        4 | 214 | 220 | 226 => DriverErrorKind::Lost,
        // ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, CONTEXT_IS_DESTROYED, ASSERT
        700 | 702 | 709 | 710 => DriverErrorKind::Lost,
        // HARDWARE_STACK_ERROR, ILLEGAL_INSTRUCTION, MISALIGNED_ADDRESS, INVALID_ADDRESS_SPACE, INVALID_PC,
        // LAUNCH_FAILED; TENSOR_MEMORY_LEAK
        714..=719 | 721 => DriverErrorKind::Lost,
        // MPS_CLIENT_TERMINATED, EXTERNAL_DEVICE
        810 | 911 => DriverErrorKind::Lost,
        _ => DriverErrorKind::Invalid,
    }
}

/// A code that all bindings know, to tell cudarc's callers of an error of this kind.
pub(crate) const fn nearest_code(kind: DriverErrorKind) -> CUresult {
    match kind {
        DriverErrorKind::OutOfMemory => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        DriverErrorKind::NotReady => CUresult::CUDA_ERROR_NOT_READY,
        DriverErrorKind::NotSupported => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        DriverErrorKind::Invalid => CUresult::CUDA_ERROR_INVALID_VALUE,
        DriverErrorKind::Lost => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

/// What `call`, asked for `what`, failed with: the kind, and the driver's name and words for the code.
pub(crate) fn driver_error(call: Call, answer: Answer, what: fmt::Arguments<'_>) -> DriverError {
    let code = match answer {
        Answer::Code(code) => code,
        Answer::NoFunction(name) => {
            let detail = format!("the CUDA driver has no function {name}: {what}");
            return DriverError::new(DriverErrorKind::NotSupported, call, detail);
        }
    };
    let mut name = ptr::null();
    // SAFETY: `name` is ours and outlives the call; the driver writes a pointer to a static string, or null.
    let _ = unsafe { functions::cuGetErrorName(code, &raw mut name) };
    let mut text = ptr::null();
    // SAFETY: as above.
    let _ = unsafe { functions::cuGetErrorString(code, &raw mut text) };
    // SAFETY: null, or a string of the driver's that ends with 0 and lives as long as the library, which is never
    // unloaded (cudarc and `library` both keep it open).
    let name = unsafe { static_text(name) };
    // SAFETY: as above.
    let text = unsafe { static_text(text) };
    DriverError::new(kind_of(code), call, detail(code, name, text, what))
}

/// # Safety
/// `text` is null, or points to a string that ends with 0 and is never freed or changed.
unsafe fn static_text(text: *const core::ffi::c_char) -> Option<&'static CStr> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, so by the caller's promise a string that lives for ever.
    Some(unsafe { CStr::from_ptr(text) })
}

fn detail(code: u32, name: Option<&CStr>, text: Option<&CStr>, what: fmt::Arguments<'_>) -> String {
    let name = name.map_or_else(|| "a code without a name".into(), CStr::to_string_lossy);
    match text {
        Some(text) => format!("{name} ({code}), {}: {what}", text.to_string_lossy()),
        None => format!("{name} ({code}): {what}"),
    }
}

#[cfg(test)]
mod tests {
    use DriverErrorKind::{Invalid, Lost, NotReady, NotSupported, OutOfMemory};

    use super::*;

    /// The bindings' names, and what the manual says of each.
    #[test]
    fn codes_have_the_kind_that_the_manual_gives_them() {
        use CUresult::*;
        let table = [
            (CUDA_ERROR_OUT_OF_MEMORY, OutOfMemory),
            (CUDA_ERROR_NOT_READY, NotReady),
            (CUDA_ERROR_SYSTEM_NOT_READY, NotReady),
            (CUDA_ERROR_MPS_SERVER_NOT_READY, NotReady),
            (CUDA_ERROR_NOT_SUPPORTED, NotSupported),
            (CUDA_ERROR_NOT_PERMITTED, NotSupported),
            (CUDA_ERROR_STUB_LIBRARY, NotSupported),
            (CUDA_ERROR_NO_DEVICE, NotSupported),
            (CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, NotSupported),
            (CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, NotSupported),
            (CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, NotSupported),
            (CUDA_ERROR_DEINITIALIZED, Lost),
            (CUDA_ERROR_ECC_UNCORRECTABLE, Lost),
            (CUDA_ERROR_NVLINK_UNCORRECTABLE, Lost),
            (CUDA_ERROR_ILLEGAL_ADDRESS, Lost),
            (CUDA_ERROR_LAUNCH_TIMEOUT, Lost),
            (CUDA_ERROR_CONTEXT_IS_DESTROYED, Lost),
            (CUDA_ERROR_ASSERT, Lost),
            (CUDA_ERROR_HARDWARE_STACK_ERROR, Lost),
            (CUDA_ERROR_ILLEGAL_INSTRUCTION, Lost),
            (CUDA_ERROR_MISALIGNED_ADDRESS, Lost),
            (CUDA_ERROR_INVALID_ADDRESS_SPACE, Lost),
            (CUDA_ERROR_INVALID_PC, Lost),
            (CUDA_ERROR_LAUNCH_FAILED, Lost),
            (CUDA_ERROR_EXTERNAL_DEVICE, Lost),
            (CUDA_ERROR_INVALID_VALUE, Invalid),
            (CUDA_ERROR_NOT_INITIALIZED, Invalid),
            (CUDA_ERROR_INVALID_DEVICE, Invalid),
            (CUDA_ERROR_INVALID_CONTEXT, Invalid),
            (CUDA_ERROR_ALREADY_MAPPED, Invalid),
            (CUDA_ERROR_INVALID_HANDLE, Invalid),
            (CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, Invalid),
            (CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, Invalid),
            (CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, Invalid),
            (CUDA_ERROR_CAPTURED_EVENT, Invalid),
            (CUDA_ERROR_UNKNOWN, Invalid),
        ];
        for (code, kind) in table {
            assert_eq!(kind_of(code as u32), kind, "{code:?}");
        }
    }

    /// Codes that older bindings have no name for, by number.
    #[test]
    fn codes_newer_than_the_bindings_are_known_by_number() {
        for (code, kind) in [(226, Lost), (721, Lost), (810, Lost), (919, NotReady), (36, NotSupported)] {
            assert_eq!(kind_of(code), kind, "{code}");
        }
    }

    #[test]
    fn an_unknown_code_is_refused_and_no_more() {
        for code in [0, 1_000, 4_711, u32::MAX] {
            assert_eq!(kind_of(code), Invalid, "{code}");
        }
    }

    #[test]
    fn a_function_that_is_not_there_is_not_supported() {
        let answer = Answer::NoFunction("cuMemMap");
        let error = driver_error(Call::Map, answer, format_args!("{} bytes", 7));
        assert_eq!((error.kind, error.call), (NotSupported, Call::Map));
        assert_eq!(error.detail, "the CUDA driver has no function cuMemMap: 7 bytes");
    }

    #[test]
    fn a_detail_names_code_words_and_values() {
        let full =
            detail(2, Some(c"CUDA_ERROR_OUT_OF_MEMORY"), Some(c"out of memory"), format_args!("{} bytes", 7));
        assert_eq!(full, "CUDA_ERROR_OUT_OF_MEMORY (2), out of memory: 7 bytes");
        assert_eq!(
            detail(4_711, None, None, format_args!("7 bytes")),
            "a code without a name (4711): 7 bytes"
        );
    }
}

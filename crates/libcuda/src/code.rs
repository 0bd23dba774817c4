//! The result codes of the driver.
//!
//! Main types: [`Code`], [`Outcome`]. Neighbours: every entry point returns one; `control` takes them for failures on
//! command.
//!
//! Only codes that the oldest bindings know (CUDA 11.4) are here: Rust bindings hold them in a closed enum, where a code
//! from outside the list is undefined behaviour.

use core::ffi::CStr;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::LazyLock;

use concertina_emulator::Hang;
use concertina_vmm::{DriverError, DriverErrorKind};

/// What an entry point gives: a value for the caller, or why not.
pub(crate) type Outcome<T = ()> = Result<T, Code>;

macro_rules! codes {
    ($($short:ident = $value:literal $name:ident;)*) => {
        impl Code {
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub const $short: Self = Self($value);
            )*

            /// Every code with its C name, by value.
            const NAMES: &[(Self, &str)] = &[$((Self::$short, stringify!($name)),)*];
        }
    };
}

/// A result code of the driver (`CUresult`). Every value is one that all bindings know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(u32);

codes! {
    SUCCESS = 0 CUDA_SUCCESS;
    INVALID_VALUE = 1 CUDA_ERROR_INVALID_VALUE;
    OUT_OF_MEMORY = 2 CUDA_ERROR_OUT_OF_MEMORY;
    NOT_INITIALIZED = 3 CUDA_ERROR_NOT_INITIALIZED;
    DEINITIALIZED = 4 CUDA_ERROR_DEINITIALIZED;
    PROFILER_DISABLED = 5 CUDA_ERROR_PROFILER_DISABLED;
    PROFILER_NOT_INITIALIZED = 6 CUDA_ERROR_PROFILER_NOT_INITIALIZED;
    PROFILER_ALREADY_STARTED = 7 CUDA_ERROR_PROFILER_ALREADY_STARTED;
    PROFILER_ALREADY_STOPPED = 8 CUDA_ERROR_PROFILER_ALREADY_STOPPED;
    STUB_LIBRARY = 34 CUDA_ERROR_STUB_LIBRARY;
    NO_DEVICE = 100 CUDA_ERROR_NO_DEVICE;
    INVALID_DEVICE = 101 CUDA_ERROR_INVALID_DEVICE;
    DEVICE_NOT_LICENSED = 102 CUDA_ERROR_DEVICE_NOT_LICENSED;
    INVALID_IMAGE = 200 CUDA_ERROR_INVALID_IMAGE;
    INVALID_CONTEXT = 201 CUDA_ERROR_INVALID_CONTEXT;
    CONTEXT_ALREADY_CURRENT = 202 CUDA_ERROR_CONTEXT_ALREADY_CURRENT;
    MAP_FAILED = 205 CUDA_ERROR_MAP_FAILED;
    UNMAP_FAILED = 206 CUDA_ERROR_UNMAP_FAILED;
    ARRAY_IS_MAPPED = 207 CUDA_ERROR_ARRAY_IS_MAPPED;
    ALREADY_MAPPED = 208 CUDA_ERROR_ALREADY_MAPPED;
    NO_BINARY_FOR_GPU = 209 CUDA_ERROR_NO_BINARY_FOR_GPU;
    ALREADY_ACQUIRED = 210 CUDA_ERROR_ALREADY_ACQUIRED;
    NOT_MAPPED = 211 CUDA_ERROR_NOT_MAPPED;
    NOT_MAPPED_AS_ARRAY = 212 CUDA_ERROR_NOT_MAPPED_AS_ARRAY;
    NOT_MAPPED_AS_POINTER = 213 CUDA_ERROR_NOT_MAPPED_AS_POINTER;
    ECC_UNCORRECTABLE = 214 CUDA_ERROR_ECC_UNCORRECTABLE;
    UNSUPPORTED_LIMIT = 215 CUDA_ERROR_UNSUPPORTED_LIMIT;
    CONTEXT_ALREADY_IN_USE = 216 CUDA_ERROR_CONTEXT_ALREADY_IN_USE;
    PEER_ACCESS_UNSUPPORTED = 217 CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    INVALID_PTX = 218 CUDA_ERROR_INVALID_PTX;
    INVALID_GRAPHICS_CONTEXT = 219 CUDA_ERROR_INVALID_GRAPHICS_CONTEXT;
    NVLINK_UNCORRECTABLE = 220 CUDA_ERROR_NVLINK_UNCORRECTABLE;
    JIT_COMPILER_NOT_FOUND = 221 CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    UNSUPPORTED_PTX_VERSION = 222 CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    JIT_COMPILATION_DISABLED = 223 CUDA_ERROR_JIT_COMPILATION_DISABLED;
    UNSUPPORTED_EXEC_AFFINITY = 224 CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    INVALID_SOURCE = 300 CUDA_ERROR_INVALID_SOURCE;
    FILE_NOT_FOUND = 301 CUDA_ERROR_FILE_NOT_FOUND;
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302 CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND;
    SHARED_OBJECT_INIT_FAILED = 303 CUDA_ERROR_SHARED_OBJECT_INIT_FAILED;
    OPERATING_SYSTEM = 304 CUDA_ERROR_OPERATING_SYSTEM;
    INVALID_HANDLE = 400 CUDA_ERROR_INVALID_HANDLE;
    ILLEGAL_STATE = 401 CUDA_ERROR_ILLEGAL_STATE;
    NOT_FOUND = 500 CUDA_ERROR_NOT_FOUND;
    NOT_READY = 600 CUDA_ERROR_NOT_READY;
    ILLEGAL_ADDRESS = 700 CUDA_ERROR_ILLEGAL_ADDRESS;
    LAUNCH_OUT_OF_RESOURCES = 701 CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    LAUNCH_TIMEOUT = 702 CUDA_ERROR_LAUNCH_TIMEOUT;
    LAUNCH_INCOMPATIBLE_TEXTURING = 703 CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING;
    PEER_ACCESS_ALREADY_ENABLED = 704 CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    PEER_ACCESS_NOT_ENABLED = 705 CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    PRIMARY_CONTEXT_ACTIVE = 708 CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE;
    CONTEXT_IS_DESTROYED = 709 CUDA_ERROR_CONTEXT_IS_DESTROYED;
    ASSERT = 710 CUDA_ERROR_ASSERT;
    TOO_MANY_PEERS = 711 CUDA_ERROR_TOO_MANY_PEERS;
    HOST_MEMORY_ALREADY_REGISTERED = 712 CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    HOST_MEMORY_NOT_REGISTERED = 713 CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    HARDWARE_STACK_ERROR = 714 CUDA_ERROR_HARDWARE_STACK_ERROR;
    ILLEGAL_INSTRUCTION = 715 CUDA_ERROR_ILLEGAL_INSTRUCTION;
    MISALIGNED_ADDRESS = 716 CUDA_ERROR_MISALIGNED_ADDRESS;
    INVALID_ADDRESS_SPACE = 717 CUDA_ERROR_INVALID_ADDRESS_SPACE;
    INVALID_PC = 718 CUDA_ERROR_INVALID_PC;
    LAUNCH_FAILED = 719 CUDA_ERROR_LAUNCH_FAILED;
    COOPERATIVE_LAUNCH_TOO_LARGE = 720 CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    NOT_PERMITTED = 800 CUDA_ERROR_NOT_PERMITTED;
    NOT_SUPPORTED = 801 CUDA_ERROR_NOT_SUPPORTED;
    SYSTEM_NOT_READY = 802 CUDA_ERROR_SYSTEM_NOT_READY;
    SYSTEM_DRIVER_MISMATCH = 803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804 CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE;
    MPS_CONNECTION_FAILED = 805 CUDA_ERROR_MPS_CONNECTION_FAILED;
    MPS_RPC_FAILURE = 806 CUDA_ERROR_MPS_RPC_FAILURE;
    MPS_SERVER_NOT_READY = 807 CUDA_ERROR_MPS_SERVER_NOT_READY;
    MPS_MAX_CLIENTS_REACHED = 808 CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
    MPS_MAX_CONNECTIONS_REACHED = 809 CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED;
    STREAM_CAPTURE_UNSUPPORTED = 900 CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    STREAM_CAPTURE_INVALIDATED = 901 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    STREAM_CAPTURE_MERGE = 902 CUDA_ERROR_STREAM_CAPTURE_MERGE;
    STREAM_CAPTURE_UNMATCHED = 903 CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    STREAM_CAPTURE_UNJOINED = 904 CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    STREAM_CAPTURE_ISOLATION = 905 CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    STREAM_CAPTURE_IMPLICIT = 906 CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    CAPTURED_EVENT = 907 CUDA_ERROR_CAPTURED_EVENT;
    STREAM_CAPTURE_WRONG_THREAD = 908 CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    TIMEOUT = 909 CUDA_ERROR_TIMEOUT;
    GRAPH_EXEC_UPDATE_FAILURE = 910 CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    EXTERNAL_DEVICE = 911 CUDA_ERROR_EXTERNAL_DEVICE;
    UNKNOWN = 999 CUDA_ERROR_UNKNOWN;
}

impl Code {
    /// The code with this number, if there is one.
    pub fn new(number: u32) -> Option<Self> {
        Self::NAMES.iter().map(|&(code, _)| code).find(|code| code.0 == number)
    }

    /// A number that is no code, for callers that take any.
    pub(crate) const fn unlisted(number: u32) -> Self {
        Self(number)
    }

    /// Its number, as C has it.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Its name in `cuda.h`.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(code, _)| *code == self).map_or("", |(_, name)| name)
    }

    /// Whether the context is unusable after it: each later call returns it again. (CUDA Driver API, `CUresult`: codes
    /// after which only a new process helps.)
    pub const fn is_sticky(self) -> bool {
        matches!(
            self,
            Self::ECC_UNCORRECTABLE
                | Self::NVLINK_UNCORRECTABLE
                | Self::ILLEGAL_ADDRESS
                | Self::LAUNCH_TIMEOUT
                | Self::ASSERT
                | Self::HARDWARE_STACK_ERROR
                | Self::ILLEGAL_INSTRUCTION
                | Self::MISALIGNED_ADDRESS
                | Self::INVALID_ADDRESS_SPACE
                | Self::INVALID_PC
                | Self::LAUNCH_FAILED
                | Self::EXTERNAL_DEVICE
        )
    }

    /// The C texts of a code: its name, and the same in plain words.
    pub(crate) fn texts(number: u32) -> Option<(&'static CStr, &'static CStr)> {
        static TEXTS: LazyLock<BTreeMap<u32, (CString, CString)>> = LazyLock::new(|| {
            let entry = |&(code, name): &(Code, &str)| {
                let plain = name.trim_start_matches("CUDA_").trim_start_matches("ERROR_");
                let plain = plain.to_lowercase().replace('_', " ");
                (code.0, (CString::new(name).unwrap_or_default(), CString::new(plain).unwrap_or_default()))
            };
            Code::NAMES.iter().map(entry).collect()
        });
        TEXTS.get(&number).map(|(name, plain)| (name.as_c_str(), plain.as_c_str()))
    }

    /// How the emulator is told to fail so that a call answers with this code, where it can be.
    pub(crate) const fn as_kind(self) -> Option<DriverErrorKind> {
        match self {
            Self::OUT_OF_MEMORY => Some(DriverErrorKind::OutOfMemory),
            Self::NOT_READY => Some(DriverErrorKind::NotReady),
            Self::NOT_SUPPORTED => Some(DriverErrorKind::NotSupported),
            Self::INVALID_VALUE => Some(DriverErrorKind::Invalid),
            _ => None,
        }
    }
}

impl core::fmt::Display for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let name = match self.name() {
            "" => Cow::Owned(self.0.to_string()),
            name => Cow::Borrowed(name),
        };
        f.write_str(&name)
    }
}

/// No kernel of libcuda's waits for a signal of the emulator's, so that none hangs there.
impl From<Hang> for Code {
    fn from(_hang: Hang) -> Self {
        Self::NOT_READY
    }
}

impl From<DriverError> for Code {
    fn from(error: DriverError) -> Self {
        match error.kind {
            DriverErrorKind::OutOfMemory => Self::OUT_OF_MEMORY,
            DriverErrorKind::NotReady => Self::NOT_READY,
            DriverErrorKind::NotSupported => Self::NOT_SUPPORTED,
            DriverErrorKind::Invalid => Self::INVALID_VALUE,
            DriverErrorKind::Lost => Self::UNKNOWN,
        }
    }
}

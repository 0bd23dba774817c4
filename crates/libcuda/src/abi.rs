//! What crosses the C interface: the driver's structs as far as they are read here, and our own for the control
//! functions.
//!
//! Main types: [`AllocationProp`], [`AccessDesc`], [`Location`], [`PoolProps`], [`RawConfig`], [`RawCounts`],
//! [`RawHeld`], [`RawPiece`], [`RawLaunch`], [`RawKernel`]. Neighbours: `exports` takes them from C, `control` gives ours from Rust.

use core::ffi::{c_char, c_void};

/// Changes whenever a control function or a struct of ours does: the two sides must be of one build.
pub(crate) const INTERFACE: u32 = 4;

/// A handle that C programs hold: a number, looked up in a table, never followed.
pub(crate) type Handle = usize;

/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(crate) const LOCATION_DEVICE: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(crate) const ALLOCATION_PINNED: u32 = 1;

/// `CUmemLocation`: four bytes of type, four of ordinal, in every version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocationProp {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32_meta_data: usize,
    pub(crate) compression: u8,
    pub(crate) rdma_capable: u8,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// The beginning of `CUmemPoolProps`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PoolProps {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
}

/// What device to be. Numbers of 0 stand for "not given" where that is said.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RawConfig {
    pub(crate) devices: u32,
    /// 0: host pages; 1: software.
    pub(crate) backing: u32,
    /// 0: by worker threads; 1: at the call.
    pub(crate) execution: u32,
    /// 1: absent.
    pub(crate) without_virtual_memory: u32,
    /// 1: absent.
    pub(crate) without_pools: u32,
    /// 1: one unmap takes one mapping only.
    pub(crate) unmap_one_mapping: u32,
    /// 1: races are not looked for.
    pub(crate) without_detection: u32,
    pub(crate) capacity_bytes: u64,
    pub(crate) granularity_bytes: u64,
    /// 0: what the host can do.
    pub(crate) max_mappings: u64,
    /// With execution at the call: operations until an event completes.
    pub(crate) event_lag: u64,
    /// In nanoseconds.
    pub(crate) small_malloc_ns: u64,
    /// By `Call`.
    pub(crate) costs: [RawCost; CALLS],
}

/// What calls of one kind cost, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RawCost {
    pub(crate) base_ns: u64,
    pub(crate) per_gib_ns: u64,
    pub(crate) per_mapping_ns: u64,
}

/// A run of addresses with one answer to what is behind them.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RawPiece {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The memory's number; 0 for nothing.
    pub(crate) memory: u64,
    pub(crate) offset_bytes: u64,
    /// 1: the device may read and write.
    pub(crate) accessible: u64,
}

/// What the emulator counted on one device. The arrays go by `Call`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RawCounts {
    pub(crate) done: [u64; CALLS],
    pub(crate) failed: [u64; CALLS],
    pub(crate) time_ns: [u64; CALLS],
    pub(crate) mapped_bytes: u64,
    pub(crate) mapped_peak_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) reserved_peak_bytes: u64,
    pub(crate) mappings: u64,
    pub(crate) mappings_peak: u64,
    pub(crate) handles: u64,
    pub(crate) host_waits: u64,
    pub(crate) modelled_ns: u64,
    pub(crate) calls_after_lost: u64,
}

/// Length of the arrays of [`RawCounts`].
pub(crate) const CALLS: usize = concertina_vmm::Call::COUNT;

/// What is taken and not given back.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct RawHeld {
    pub(crate) reservations: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) mappings: u64,
    pub(crate) handles: u64,
    pub(crate) frames: u64,
    pub(crate) mallocs: u64,
    pub(crate) mapped_bytes: u64,
    pub(crate) events: u64,
    pub(crate) streams: u64,
    pub(crate) pinned: u64,
    pub(crate) modules: u64,
    pub(crate) graphs: u64,
    pub(crate) contexts: u64,
}

/// One launch, as the registered function gets it. All pointers are valid until it returns.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawLaunch {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
    pub(crate) parameter_count: u32,
    /// One pointer a parameter, to as many bytes as were declared.
    pub(crate) parameters: *const *const u8,
    pub(crate) parameter_sizes: *const usize,
    /// For `locate`.
    pub(crate) memory: *const c_void,
    /// Where in the host's memory `bytes` at a device address lie; null if they are not accessible or not in one piece.
    pub(crate) locate: extern "C" fn(memory: *const c_void, address: u64, bytes: u64) -> *mut u8,
}

/// A registered function: 0 if the kernel ran.
pub(crate) type Body = unsafe extern "C" fn(context: *mut c_void, launch: *const RawLaunch) -> u32;
/// Gives a registered function's context back.
pub(crate) type Discard = unsafe extern "C" fn(context: *mut c_void);

/// One run of addresses that a launch touches; `writes` is 0 if it only reads them.
pub(crate) type AddAccess = extern "C" fn(accesses: *mut c_void, address: u64, bytes: u64, writes: u32);
/// Calls `add` with `accesses` for each run of addresses that a launch will touch: 0 if all were told.
pub(crate) type Touches = unsafe extern "C" fn(
    context: *mut c_void,
    launch: *const RawLaunch,
    accesses: *mut c_void,
    add: AddAccess,
) -> u32;

/// A kernel to register.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct RawKernel {
    pub(crate) name: *const c_char,
    pub(crate) parameter_sizes: *const usize,
    pub(crate) parameter_count: usize,
    pub(crate) body: Body,
    /// None: what it touches is not known.
    pub(crate) touches: Option<Touches>,
    pub(crate) discard: Discard,
    pub(crate) context: *mut c_void,
}

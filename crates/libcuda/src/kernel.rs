//! Kernels: functions of the program, registered under a name, that run where a GPU would run its own.
//!
//! Main types: [`Kernel`], [`Launch`]. Neighbours: `exports::module` finds and launches them, `control` registers them,
//! `work` runs a launch.

use core::ffi::c_void;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use concertina_emulator::Access;
use concertina_vmm::Address;

use crate::abi::{Body, Discard, RawKernel, RawLaunch, Touches};
use crate::code::{Code, Outcome};
use crate::memory::DeviceMemory;

/// A registered function.
#[derive(Debug)]
pub(crate) struct Kernel {
    name: Box<str>,
    sizes: Box<[usize]>,
    body: Body,
    touches: Option<Touches>,
    discard: Discard,
    context: *mut c_void,
}

// SAFETY: who registers promises that function and context may be used from any thread (the Rust side asks for `Send` and
// `Sync`).
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Drop for Kernel {
    fn drop(&mut self) {
        // SAFETY: the context came with this function, and nobody uses it any more: launches own the kernel.
        unsafe { (self.discard)(self.context) };
    }
}

static REGISTRY: RwLock<Option<HashMap<String, Arc<Kernel>>>> = RwLock::new(None);

impl Kernel {
    /// A kernel of this name, whose parameters have these sizes in bytes.
    ///
    /// # Safety
    /// `body` and `touches` may be called with `context` from any thread, any number of times at once, until `discard` was
    /// called with it, which happens once.
    pub(crate) unsafe fn new(name: &str, sizes: Box<[usize]>, raw: &RawKernel) -> Self {
        let &RawKernel { body, touches, discard, context, .. } = raw;
        Self { name: name.into(), sizes, body, touches, discard, context }
    }

    /// Modules know it under its name from now on.
    pub(crate) fn register(self) {
        let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
        let before = registry.get_or_insert_default().insert(self.name.to_string(), Arc::new(self));
        drop(registry);
        drop(before);
    }

    /// Nobody knows any kernel from now on.
    pub(crate) fn forget_all() {
        let all = REGISTRY.write().unwrap_or_else(PoisonError::into_inner).take();
        drop(all);
    }

    pub(crate) fn find(name: &str) -> Outcome<Arc<Self>> {
        let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
        registry.as_ref().and_then(|registry| registry.get(name)).cloned().ok_or(Code::NOT_FOUND)
    }

    pub(crate) fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

/// How many threads a kernel is launched with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared_bytes: u32,
}

/// Most threads of a block. (CUDA Programming Guide, technical specifications.)
pub(crate) const MAX_THREADS_PER_BLOCK: u64 = 1024;

impl Shape {
    pub(crate) fn check(&self) -> Outcome {
        let threads: u64 = self.block.iter().map(|&size| u64::from(size)).product();
        if self.grid.contains(&0) || threads == 0 || threads > MAX_THREADS_PER_BLOCK {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }
}

/// One launch with its parameters, which were copied at the call.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: Arc<Kernel>,
    pub(crate) shape: Shape,
    /// The parameters one behind the other, each at a multiple of 16 bytes.
    pub(crate) parameters: Box<[u128]>,
    pub(crate) memory: Arc<DeviceMemory>,
}

/// How far apart two parameters are that lie one behind the other, in units of 16 bytes.
pub(crate) const fn parameter_units(bytes: usize) -> usize {
    bytes.div_ceil(size_of::<u128>())
}

extern "C" fn locate(memory: *const c_void, address: u64, bytes: u64) -> *mut u8 {
    // SAFETY: `run` gave this pointer to the memory that the launch owns, and the launch is running.
    let memory = unsafe { &*memory.cast::<DeviceMemory>() };
    memory.locate(address, bytes).unwrap_or(core::ptr::null_mut())
}

extern "C" fn add_access(accesses: *mut c_void, address: u64, bytes: u64, writes: u32) {
    // SAFETY: `accesses` gave this pointer to its own vector, for the time of the call that is being made.
    let accesses = unsafe { &mut *accesses.cast::<Vec<Access>>() };
    let address = Address::new(address);
    accesses.push(if writes == 0 { Access::read(address, bytes) } else { Access::write(address, bytes) });
}

impl Launch {
    pub(crate) fn run(self) -> Outcome {
        // SAFETY: the function was registered with this context, and all that `raw` points to lives until it returns.
        self.with_raw(|raw| unsafe { (self.kernel.body)(self.kernel.context, raw) })
    }

    /// What it is going to touch of the device's memory, as far as its registration tells.
    pub(crate) fn accesses(&self) -> Outcome<Vec<Access>> {
        let mut accesses = Vec::new();
        if let Some(touches) = self.kernel.touches {
            let sink: *mut Vec<Access> = &raw mut accesses;
            // SAFETY: as in `run`; the vector is nobody else's meanwhile, and `add_access` is the function for it.
            self.with_raw(|raw| unsafe { touches(self.kernel.context, raw, sink.cast(), add_access) })?;
        }
        Ok(accesses)
    }

    /// Calls a registered function with this launch as C sees it, and turns what it returns into an outcome.
    fn with_raw(&self, call: impl FnOnce(&RawLaunch) -> u32) -> Outcome {
        let start = self.parameters.as_ptr().cast::<u8>();
        let mut at = 0;
        let place = |&bytes: &usize| {
            let place = start.wrapping_add(at * size_of::<u128>());
            at += parameter_units(bytes);
            place
        };
        let parameters: Vec<*const u8> = self.kernel.sizes.iter().map(place).collect();
        let raw = RawLaunch {
            grid: self.shape.grid,
            block: self.shape.block,
            shared_bytes: self.shape.shared_bytes,
            parameter_count: u32::try_from(parameters.len()).map_err(|_| Code::INVALID_VALUE)?,
            parameters: parameters.as_ptr(),
            parameter_sizes: self.kernel.sizes.as_ptr(),
            memory: Arc::as_ptr(&self.memory).cast(),
            locate,
        };
        if call(&raw) == 0 { Ok(()) } else { Err(Code::LAUNCH_FAILED) }
    }
}

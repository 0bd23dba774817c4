//! The machine that the program sees: its devices, and what belongs to none of them.
//!
//! Main types: [`Machine`]. Neighbours: `exports` ask for it at each call; `exports::control` puts a new one in its place.

use std::cell::RefCell;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::abi::Handle;
use crate::capture::Captures;
use crate::code::{Code, Outcome};
use crate::control::DeviceConfig;
use crate::device::Device;
use crate::layout::Layout;
use crate::memory::{DeviceMemory, MemoryConfig};
use crate::module::Modules;
use crate::pinned::Pinned;
use crate::record::Event;
use crate::stream::Stream;
use crate::table::Table;
use crate::work::Work;

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) config: DeviceConfig,
    pub(crate) devices: Vec<Device>,
    pub(crate) pinned: Pinned,
    pub(crate) modules: Modules,
    pub(crate) captures: Captures,
    pub(crate) graphs: Table<[Work]>,
    /// Graphs made ready to run.
    pub(crate) executables: Table<[Work]>,
    /// Most mappings on one device; none without a limit.
    pub(crate) max_mappings: Option<u64>,
}

static MACHINE: RwLock<Option<Arc<Machine>>> = RwLock::new(None);
static INITIALIZED: AtomicBool = AtomicBool::new(false);
/// The code that every call returns; 0 while the devices are well.
static LOST: AtomicU32 = AtomicU32::new(0);
static CALLS_AFTER_LOST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The thread's contexts; the last is current. Never dropped, a few bytes a thread: what a program keeps in
    /// thread-locals of its own calls the driver as it goes, in whatever order.
    static CONTEXTS: RefCell<ManuallyDrop<Vec<Handle>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Handle that stands for the legacy default stream, beside 0. (`CU_STREAM_LEGACY`.)
const STREAM_LEGACY: Handle = 1;
/// Handle that stands for the thread's default stream. (`CU_STREAM_PER_THREAD`.)
const STREAM_PER_THREAD: Handle = 2;

/// Every call fails with this code from now on.
pub(crate) fn lose(code: Code) {
    // The first one stays.
    let _ = LOST.compare_exchange(0, code.get(), Ordering::AcqRel, Ordering::Acquire);
}

pub(crate) fn is_lost() -> bool {
    LOST.load(Ordering::Acquire) != 0
}

/// Fails if the devices were lost.
pub(crate) fn check_alive() -> Outcome {
    match Code::new(LOST.load(Ordering::Acquire)) {
        None | Some(Code::SUCCESS) => Ok(()),
        Some(code) => Err(code),
    }
}

/// Calls that were made after the devices were lost.
pub(crate) fn calls_after_lost() -> u64 {
    CALLS_AFTER_LOST.load(Ordering::Relaxed)
}

/// The machine, for a call of the driver.
pub(crate) fn get() -> Outcome<Arc<Machine>> {
    if let Err(code) = check_alive() {
        CALLS_AFTER_LOST.fetch_add(1, Ordering::Relaxed);
        return Err(code);
    }
    if !INITIALIZED.load(Ordering::Acquire) {
        return Err(Code::NOT_INITIALIZED);
    }
    installed().ok_or(Code::NOT_INITIALIZED)
}

/// The machine, whatever its state; none before there was a first one.
pub(crate) fn installed() -> Option<Arc<Machine>> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

/// `cuInit`: makes the default machine if there is none.
pub(crate) fn initialize() -> Outcome {
    check_alive()?;
    let mut machine = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
    if machine.is_none() {
        let new = Machine::new(DeviceConfig::default()).map_err(|_| Code::OPERATING_SYSTEM)?;
        *machine = Some(Arc::new(new));
    }
    INITIALIZED.store(true, Ordering::Release);
    Ok(())
}

/// Puts a new machine in the place of the old one, whose work is done first. Handles of the old one are refused from then
/// on. Fails if the host can't give what the new one needs; there is none then.
pub(crate) fn replace(config: DeviceConfig) -> io::Result<()> {
    let old = MACHINE.write().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(old) = &old {
        old.captures.forget_all();
        for device in &old.devices {
            device.shut_down();
        }
    }
    drop(old);
    let new = Machine::new(config)?;
    *MACHINE.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(new));
    LOST.store(0, Ordering::Release);
    CALLS_AFTER_LOST.store(0, Ordering::Relaxed);
    Ok(())
}

impl Machine {
    fn new(config: DeviceConfig) -> io::Result<Self> {
        let count = config.devices.clamp(1, crate::layout::MAX_DEVICES);
        let max_mappings = config.host_budget();
        let device = |ordinal| {
            let layout = Layout::of_device(ordinal, count);
            let emulator = config.emulator_config(ordinal, &layout);
            let memory = DeviceMemory::new(MemoryConfig { emulator, layout, kind: config.backing })?;
            Ok(Device::new(ordinal, memory, config.execution))
        };
        let devices = (0..count).map(device).collect::<io::Result<_>>()?;
        Ok(Self {
            config,
            devices,
            pinned: Pinned::default(),
            modules: Modules::default(),
            captures: Captures::default(),
            graphs: Table::default(),
            executables: Table::default(),
            max_mappings,
        })
    }

    /// The device with this ordinal, as C counts.
    pub(crate) fn device(&self, ordinal: i32) -> Outcome<&Device> {
        let index = usize::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
        self.devices.get(index).ok_or(Code::INVALID_DEVICE)
    }

    /// The device of the thread's current context.
    pub(crate) fn current(&self) -> Outcome<&Device> {
        let context = current_context();
        let of = |device: &&Device| device.context == context;
        let device = self.devices.iter().find(of).ok_or(Code::INVALID_CONTEXT)?;
        device.check_context()?;
        Ok(device)
    }

    /// The device of a context.
    pub(crate) fn of_context(&self, context: Handle) -> Outcome<&Device> {
        self.devices.iter().find(|device| device.context == context).ok_or(Code::INVALID_CONTEXT)
    }

    /// The device that an address belongs to.
    pub(crate) fn of_address(&self, address: u64) -> Outcome<&Device> {
        let of = |device: &&Device| device.memory.layout.contains(address);
        self.devices.iter().find(of).ok_or(Code::INVALID_VALUE)
    }

    /// The stream behind a handle, and its device.
    pub(crate) fn stream(&self, handle: Handle) -> Outcome<(Arc<Stream>, &Device)> {
        match handle {
            0 | STREAM_LEGACY => {
                let device = self.current()?;
                Ok((device.legacy_stream(), device))
            }
            STREAM_PER_THREAD => {
                let device = self.current()?;
                Ok((device.per_thread_stream(), device))
            }
            handle => {
                let mut devices = self.devices.iter();
                devices
                    .find_map(|device| device.streams.get(handle).ok().map(|stream| (stream, device)))
                    .ok_or(Code::INVALID_HANDLE)
            }
        }
    }

    /// The event behind a handle, and its device.
    pub(crate) fn event(&self, handle: Handle) -> Outcome<(Arc<Event>, &Device)> {
        self.devices
            .iter()
            .find_map(|device| device.events.get(handle).ok().map(|event| (event, device)))
            .ok_or(Code::INVALID_HANDLE)
    }
}

/// The thread's current context; 0 if it has none.
pub(crate) fn current_context() -> Handle {
    CONTEXTS.with_borrow(|contexts| contexts.last().copied().unwrap_or(0))
}

/// Puts a context in the place of the current one; 0 takes it away.
pub(crate) fn set_current_context(context: Handle) {
    CONTEXTS.with_borrow_mut(|contexts| {
        contexts.pop();
        if context != 0 {
            contexts.push(context);
        }
    });
}

pub(crate) fn push_context(context: Handle) {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
}

/// Takes the current context away and tells which it was.
pub(crate) fn pop_context() -> Outcome<Handle> {
    CONTEXTS.with_borrow_mut(|contexts| contexts.pop()).ok_or(Code::INVALID_CONTEXT)
}

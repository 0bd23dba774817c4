//! The emulated driver as tests and programs hold it.
//!
//! Main types: [`Library`], [`FreshDevice`], [`StillHeld`], [`Raced`], [`ControlError`]. Neighbours: `load` opens it, `functions`
//! has its functions.

use core::ffi::{c_char, c_void};
use core::mem::MaybeUninit;
use core::ops::Deref;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use concertina_emulator::{Access, AccessKind, Backing, BackingId, Piece};
use concertina_vmm::Address;

use super::config::{ConfigError, DeviceConfig};
use super::figures::{Counts, Held};
use super::functions::Functions;
use super::launch::Launch;
use crate::abi::{AddAccess, RawKernel, RawLaunch, RawPiece, Touches};
use crate::code::Code;

/// The emulated driver of this process.
#[derive(Debug)]
pub struct Library {
    functions: Functions,
    path: PathBuf,
    fresh: Mutex<()>,
}

/// A function of a launch.
type Closure<T> = Box<dyn Fn(&Launch<'_>) -> T + Send + Sync>;

/// What was registered under one name.
struct Closures {
    body: Closure<()>,
    accesses: Closure<Vec<Access>>,
}

/// # Safety
/// `context` is `Closures` that `register` gave, not discarded yet; `launch` is valid.
unsafe extern "C" fn run_closure(context: *mut c_void, launch: *const RawLaunch) -> u32 {
    // SAFETY: the caller says so.
    let closures = unsafe { &*context.cast::<Closures>() };
    // SAFETY: the caller says so.
    let launch = Launch::new(unsafe { &*launch });
    u32::from(catch_unwind(AssertUnwindSafe(|| (closures.body)(&launch))).is_err())
}

/// # Safety
/// As `run_closure`; `add` may be called with `sink`.
unsafe extern "C" fn tell_accesses(
    context: *mut c_void,
    launch: *const RawLaunch,
    sink: *mut c_void,
    add: AddAccess,
) -> u32 {
    // SAFETY: the caller says so.
    let closures = unsafe { &*context.cast::<Closures>() };
    // SAFETY: the caller says so.
    let launch = Launch::new(unsafe { &*launch });
    let Ok(accesses) = catch_unwind(AssertUnwindSafe(|| (closures.accesses)(&launch))) else { return 1 };
    for access in accesses {
        add(sink, access.address.get(), access.bytes, u32::from(access.kind == AccessKind::Write));
    }
    0
}

/// # Safety
/// `context` is `Closures` that `register` gave, and nobody uses them any more.
unsafe extern "C" fn discard_closures(context: *mut c_void) {
    // SAFETY: the caller says so; they were made by `Box::into_raw`.
    drop(unsafe { Box::from_raw(context.cast::<Closures>()) });
}

impl Library {
    pub(super) const fn new(functions: Functions, path: PathBuf) -> Self {
        Self { functions, path, fresh: Mutex::new(()) }
    }

    /// The file that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fresh devices, for the caller alone until it drops them: others who ask wait, so that a thread which has some and
    /// asks again waits for ever. For tests, which share a process.
    ///
    /// # Errors
    /// As [`Library::reset`].
    pub fn fresh(&'static self, config: &DeviceConfig) -> Result<FreshDevice, ControlError> {
        let alone = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        self.reset(config)?;
        Ok(FreshDevice { libcuda: self, _alone: alone })
    }

    /// Puts fresh devices in the place of the present ones: nothing allocated, nothing counted, no failures, no kernels.
    /// Work that was queued is done first. No other thread may be inside the driver.
    ///
    /// Handles and contexts of before are refused from then on, and addresses of before are given again.
    ///
    /// # Errors
    /// If there can be no such devices, or the host doesn't give the addresses.
    pub fn reset(&self, config: &DeviceConfig) -> Result<(), ControlError> {
        config.check()?;
        match (self.functions.reset)(&config.to_raw()) {
            code if code == Code::OPERATING_SYSTEM.get() => Err(ControlError::Host),
            code => self.done("reset", code),
        }
    }

    fn done(&self, function: &'static str, code: u32) -> Result<(), ControlError> {
        match Code::new(code) {
            Some(Code::SUCCESS) => Ok(()),
            code => Err(ControlError::Refused { function, code: code.unwrap_or(Code::UNKNOWN) }),
        }
    }

    /// Most mappings that one device holds at once; none without a limit, or before there is a device.
    pub fn max_mappings(&self) -> Option<u64> {
        Some((self.functions.max_mappings)()).filter(|&budget| budget > 0)
    }

    /// What was counted on a device.
    ///
    /// # Errors
    /// If there is no such device, or none yet.
    pub fn counts(&self, device: u32) -> Result<Counts, ControlError> {
        let mut raw = MaybeUninit::uninit();
        self.done("counts", (self.functions.counts)(device, &mut raw))?;
        // SAFETY: a call that is done has written it.
        Ok(Counts::new(unsafe { raw.assume_init() }))
    }

    /// Modelled time that the host has spent in driver calls of a device, in nanoseconds; 0 without such a device. Quicker than
    /// [`counts`](Self::counts), for whoever asks often.
    pub fn ns_in_calls(&self, device: u32) -> u64 {
        (self.functions.ns_in_calls)(device)
    }

    /// Counts on a device from 0 again, and peaks from what is taken now: to leave out what a program's start took.
    ///
    /// # Errors
    /// If there is no such device, or none yet.
    pub fn restart_counts(&self, device: u32) -> Result<(), ControlError> {
        self.done("restart_counts", (self.functions.restart_counts)(device))
    }

    /// What a device holds for the program: at the end, the leaks. Waits for all work first, and lets the pools give back
    /// what nobody has.
    ///
    /// # Errors
    /// If there is no such device, or none yet.
    pub fn held(&self, device: u32) -> Result<Held, ControlError> {
        let mut raw = MaybeUninit::uninit();
        self.done("held", (self.functions.held)(device, &mut raw))?;
        // SAFETY: a call that is done has written it.
        Ok(Held::new(unsafe { raw.assume_init() }))
    }

    /// That no device holds anything for the program: what a test asks at its end. Waits as [`Library::held`] does.
    ///
    /// # Errors
    /// The first device that does, and what it holds.
    pub fn check_nothing_held(&self) -> Result<(), StillHeld> {
        let devices = (0..).map_while(|device| Some((device, self.held(device).ok()?)));
        for (device, held) in devices {
            if !held.is_empty() {
                return Err(StillHeld { device, held });
            }
        }
        Ok(())
    }

    /// What is behind a range of addresses of a device, as the emulator below has it, into a vector whose content goes: a
    /// piece a mapping, a malloc or a gap. Nothing if there is no such device.
    pub fn resolve_range_into(&self, device: u32, address: Address, bytes: u64, pieces: &mut Vec<Piece>) {
        let mut raw = vec![RawPiece::default(); 16];
        let found = loop {
            let found = (self.functions.resolve)(device, address.get(), bytes, raw.as_mut_ptr(), raw.len());
            if found <= raw.len() {
                break found;
            }
            raw.resize(found, RawPiece::default());
        };
        let piece = |raw: &RawPiece| Piece {
            address: Address::new(raw.address),
            bytes: raw.bytes,
            backing: (raw.memory != 0).then(|| Backing {
                memory: BackingId::from_raw(raw.memory),
                offset_bytes: raw.offset_bytes,
                accessible: raw.accessible != 0,
            }),
        };
        pieces.clear();
        pieces.extend(raw[..found].iter().map(piece));
    }

    /// The calls that broke a rule of the driver's virtual memory, as the emulator names them. Right programs break none.
    pub fn broken_rules(&self, device: u32) -> Vec<String> {
        lines_of(self.functions.broken_rules, device)
    }

    /// What the race detector of a device found, as the emulator tells it, in order: two accesses to the same bytes that
    /// nothing orders, an unmap under work that the host has not seen done. At most the first 1,000; none if
    /// [`DeviceConfig::detection`] is off. `docs/libcuda.md` says what is looked at.
    pub fn races(&self, device: u32) -> Vec<String> {
        lines_of(self.functions.races, device)
    }

    /// That nothing raced on any device: what a test asks at its end.
    ///
    /// # Errors
    /// The first race.
    pub fn check_no_races(&self) -> Result<(), Raced> {
        let devices = (0..).take_while(|&device| self.held(device).is_ok());
        let mut first = devices.filter_map(|device| Some((device, self.races(device).into_iter().next()?)));
        first.next().map_or(Ok(()), |(device, race)| Err(Raced { device, race }))
    }

    fn counted(&self, function: &str) -> Result<(u64, u64), ControlError> {
        let name = name_of(function)?;
        let (mut made, mut failed) = (MaybeUninit::new(0), MaybeUninit::new(0));
        self.done("calls", (self.functions.calls)(name.as_ptr(), &mut made, &mut failed))
            .map_err(|_| ControlError::NoFunction { name: function.to_owned() })?;
        // SAFETY: it was written before the call.
        let made = unsafe { made.assume_init() };
        // SAFETY: it was written before the call.
        let failed = unsafe { failed.assume_init() };
        Ok((made, failed))
    }

    /// How often a function of the driver was called, by its exported name (`cuMemMap`, `cuMemAlloc_v2`).
    ///
    /// # Errors
    /// If the library exports no such function.
    pub fn calls(&self, function: &str) -> Result<u64, ControlError> {
        Ok(self.counted(function)?.0)
    }

    /// How often it didn't answer with success.
    ///
    /// # Errors
    /// If the library exports no such function.
    pub fn failures(&self, function: &str) -> Result<u64, ControlError> {
        Ok(self.counted(function)?.1)
    }

    /// The n-th call of a function from now on fails, once; 1 is the next. Such a call changes nothing. A sticky code
    /// ([`Code::is_sticky`]) takes the devices with it.
    ///
    /// # Errors
    /// If the library exports no such function, or the code is success.
    pub fn fail_once(&self, function: &str, nth: u64, code: Code) -> Result<(), ControlError> {
        let name = name_of(function)?;
        self.done("fail", (self.functions.fail)(name.as_ptr(), nth, 0, code.get()))
    }

    /// The n-th call of a function from now on and all after it fail, until the failures are cleared.
    ///
    /// # Errors
    /// As [`Library::fail_once`].
    pub fn fail_from(&self, function: &str, nth: u64, code: Code) -> Result<(), ControlError> {
        let name = name_of(function)?;
        self.done("fail", (self.functions.fail)(name.as_ptr(), nth, 1, code.get()))
    }

    /// The n-th call of a function from now on answers with a number that is no known code, once: as a driver does that
    /// is newer than the program's bindings.
    ///
    /// # Errors
    /// If the library exports no such function, or the number is a known code.
    ///
    /// # Safety
    /// Whoever makes that call takes any number for an answer. Bindings in Rust whose result is an enumeration don't
    /// (cudarc's are of that kind): for them it is undefined behaviour.
    pub unsafe fn fail_with_number(&self, function: &str, nth: u64, number: u32) -> Result<(), ControlError> {
        if let Some(code) = Code::new(number) {
            return Err(ControlError::Refused { function: "fail_with_number", code });
        }
        let name = name_of(function)?;
        self.done("fail_with_number", (self.functions.fail_with_number)(name.as_ptr(), nth, number))
    }

    /// Each call that changes reservations, frames, mappings or mallocs fails with so many millionths of probability, the
    /// same ones for the same seed.
    ///
    /// # Errors
    /// If the code is not one of out of memory, not ready, not supported and invalid value; or there is no device yet.
    pub fn fail_by_chance(&self, parts_per_million: u32, seed: u64, code: Code) -> Result<(), ControlError> {
        let done = (self.functions.fail_by_chance)(parts_per_million, seed, code.get());
        self.done("fail_by_chance", done)
    }

    /// No call is to fail any more. Lost devices stay lost.
    pub fn clear_failures(&self) {
        (self.functions.clear_failures)();
    }

    /// The devices are lost: every call fails with this code until the next reset.
    ///
    /// # Errors
    /// If the code is not sticky.
    pub fn lose(&self, code: Code) -> Result<(), ControlError> {
        self.done("lose", (self.functions.lose)(code.get()))
    }

    /// The program queued so many further pieces of work: with `Execution::AtCall` events complete by that.
    pub fn advance(&self, operations: u64) {
        (self.functions.advance)(operations);
    }

    /// With `Execution::AtCall`: all events recorded so far complete.
    pub fn complete_all(&self) {
        (self.functions.complete_all)();
    }

    /// Modules have a function with this name from now on, whatever they are loaded from; one that has the name already
    /// gives way. `parameter_bytes` are the sizes of its parameters: a launch doesn't tell them.
    ///
    /// The closure runs once a launch, for all threads of the grid. One that panics fails the launch and loses the devices.
    ///
    /// The race detector doesn't learn what such a kernel touches: [`Library::register_kernel_touching`].
    ///
    /// # Errors
    /// If the name has a zero in it.
    pub fn register_kernel(
        &self,
        name: &str,
        parameter_bytes: &[usize],
        kernel: impl Fn(&Launch<'_>) + Send + Sync + 'static,
    ) -> Result<(), ControlError> {
        let closures = Closures { body: Box::new(kernel), accesses: Box::new(|_| Vec::new()) };
        self.register(name, parameter_bytes, closures, None)
    }

    /// The same, and the race detector learns from `accesses` which device memory a launch touches. It is asked at the
    /// launch, and again at each launch of a graph with it; one that panics fails the launch.
    ///
    /// # Errors
    /// If the name has a zero in it.
    pub fn register_kernel_touching(
        &self,
        name: &str,
        parameter_bytes: &[usize],
        kernel: impl Fn(&Launch<'_>) + Send + Sync + 'static,
        accesses: impl Fn(&Launch<'_>) -> Vec<Access> + Send + Sync + 'static,
    ) -> Result<(), ControlError> {
        let closures = Closures { body: Box::new(kernel), accesses: Box::new(accesses) };
        self.register(name, parameter_bytes, closures, Some(tell_accesses))
    }

    fn register(
        &self,
        name: &str,
        parameter_bytes: &[usize],
        closures: Closures,
        touches: Option<Touches>,
    ) -> Result<(), ControlError> {
        let name = name_of(name)?;
        let context = Box::into_raw(Box::new(closures)).cast::<c_void>();
        let raw = RawKernel {
            name: name.as_ptr(),
            parameter_sizes: parameter_bytes.as_ptr(),
            parameter_count: parameter_bytes.len(),
            body: run_closure,
            touches,
            discard: discard_closures,
            context,
        };
        let done = self.done("register_kernel", (self.functions.register_kernel)(&raw));
        if done.is_err() {
            // SAFETY: the library has not taken it.
            unsafe { discard_closures(context) };
        }
        done
    }
}

/// The text that a control function writes, by lines.
fn lines_of(tell: extern "C" fn(u32, *mut c_char, usize) -> usize, device: u32) -> Vec<String> {
    let mut text = vec![0_u8; 1 << 12];
    loop {
        let bytes = tell(device, text.as_mut_ptr().cast(), text.len());
        if bytes < text.len() {
            text.truncate(bytes);
            return String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        }
        text.resize(bytes + 1, 0);
    }
}

fn name_of(function: &str) -> Result<CString, ControlError> {
    CString::new(function).map_err(|_| ControlError::NoFunction { name: function.to_owned() })
}

/// Fresh devices that nobody else resets.
#[derive(Debug)]
pub struct FreshDevice {
    libcuda: &'static Library,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for FreshDevice {
    type Target = Library;

    fn deref(&self) -> &Library {
        self.libcuda
    }
}

/// What a program has not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {device} still holds {held}")]
pub struct StillHeld {
    /// Ordinal of the device.
    pub device: u32,
    /// What it holds.
    pub held: Held,
}

/// What a program did without order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {device}: {race}")]
pub struct Raced {
    /// Ordinal of the device.
    pub device: u32,
    /// The first report.
    pub race: String,
}

/// Why the library didn't do what it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// There can be no such device.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no function of this name.
    #[error("the emulated driver exports no function {name:?}")]
    NoFunction {
        /// The name given.
        name: String,
    },
    /// The host doesn't give what the devices need. There is no device then.
    #[error(
        "the host doesn't give the addresses from 16 to 64 TiB or the memory file: see whether a thread is still inside \
         the driver, and whether the process's address space is limited (ulimit -v)"
    )]
    Host,
    /// The library said no.
    #[error("concertina_libcuda_{function} answers {code}")]
    Refused {
        /// Which of the control functions.
        function: &'static str,
        /// Its answer.
        code: Code,
    },
}

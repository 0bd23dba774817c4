//! Pools of the driver: memory that is allocated and freed in the order of a stream.
//!
//! Main types: [`Pool`], [`Pools`]. Neighbours: `exports::pool` has the calls; `memory` gives and takes the blocks.
//!
//! Modelled, since no driver documents its own: a block is a malloc of its own. A freed one may be given again to its own
//! stream at once, to others when its stream has passed the free; the best fit that is at most a quarter too large. Beyond
//! the release threshold, freed blocks go back when the program synchronises.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use concertina_emulator::EmulatedStream;

use crate::abi::Handle;
use crate::code::{Code, Outcome};
use crate::memory::{DeviceMemory, Owner};
use crate::record::Record;
use crate::stream::Stream;
use crate::table::{Table, new_handle};

/// Blocks are multiples of this, in bytes.
const STEP: u64 = 512;

#[derive(Debug)]
struct Freed {
    address: u64,
    bytes: u64,
    stream: Handle,
    /// The same stream for the emulator, if it is one of this device's.
    emulated: Option<EmulatedStream>,
    /// Behind the last use.
    record: Arc<Record>,
}

#[derive(Debug, Default)]
struct State {
    threshold: u64,
    freed: Vec<Freed>,
    /// Bytes in use and freed.
    reserved: u64,
    reserved_peak: u64,
    used: u64,
    used_peak: u64,
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) handle: Handle,
    pub(crate) device: u32,
    memory: Arc<DeviceMemory>,
    state: Mutex<State>,
}

/// What a pool tells about itself, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolFigures {
    pub(crate) threshold: u64,
    pub(crate) reserved: u64,
    pub(crate) reserved_peak: u64,
    pub(crate) used: u64,
    pub(crate) used_peak: u64,
}

impl Pool {
    fn new(device: u32, memory: Arc<DeviceMemory>) -> Arc<Self> {
        Arc::new(Self { handle: new_handle(), device, memory, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block for work on the stream: its address and its bytes.
    fn allocate(&self, bytes: u64, stream: &Stream) -> Outcome<(u64, u64)> {
        let bytes = bytes.checked_next_multiple_of(STEP).ok_or(Code::OUT_OF_MEMORY)?;
        let mut state = self.state();
        let fits = |freed: &Freed| (bytes..=bytes.saturating_add(bytes / 4)).contains(&freed.bytes);
        let usable = |freed: &Freed| freed.stream == stream.handle || freed.record.is_passed();
        let candidates = state.freed.iter().enumerate().filter(|(_, freed)| fits(freed) && usable(freed));
        let best = candidates.min_by_key(|(_, freed)| (freed.bytes, freed.address)).map(|(index, _)| index);
        let (address, bytes) = match best {
            Some(index) => {
                let freed = state.freed.remove(index);
                if let Some(other) = freed.emulated.filter(|_| freed.stream != stream.handle) {
                    // The driver has seen the free done, and the stream has not begun with the block.
                    self.memory.emulator.queue_wait(&stream.emulated, &other);
                }
                (freed.address, freed.bytes)
            }
            None => {
                let taken = self.memory.malloc(bytes, Owner::Pool).or_else(|code| {
                    state.trim(&self.memory, 0)?;
                    if code == Code::OUT_OF_MEMORY {
                        self.memory.malloc(bytes, Owner::Pool)
                    } else {
                        Err(code)
                    }
                });
                let address = taken?;
                state.reserved += bytes;
                state.reserved_peak = state.reserved_peak.max(state.reserved);
                (address, bytes)
            }
        };
        state.used += bytes;
        state.used_peak = state.used_peak.max(state.used);
        Ok((address, bytes))
    }

    fn take_back(&self, freed: Freed) {
        let mut state = self.state();
        state.used = state.used.saturating_sub(freed.bytes);
        state.freed.push(freed);
    }

    /// Gives freed blocks back, of those whose last use is over, until at most `keep` bytes are reserved.
    pub(crate) fn trim(&self, keep: u64) -> Outcome {
        self.state().trim(&self.memory, keep)
    }

    /// What a synchronisation does.
    fn trim_to_threshold(&self) -> Outcome {
        let mut state = self.state();
        let keep = state.threshold;
        state.trim(&self.memory, keep)
    }

    pub(crate) fn set_threshold(&self, bytes: u64) {
        self.state().threshold = bytes;
    }

    pub(crate) fn forget_peaks(&self) {
        let mut state = self.state();
        (state.reserved_peak, state.used_peak) = (state.reserved, state.used);
    }

    pub(crate) fn figures(&self) -> PoolFigures {
        let State { threshold, reserved, reserved_peak, used, used_peak, .. } = *self.state();
        PoolFigures { threshold, reserved, reserved_peak, used, used_peak }
    }
}

impl State {
    fn trim(&mut self, memory: &DeviceMemory, keep: u64) -> Outcome {
        let mut index = 0;
        while self.reserved > keep && index < self.freed.len() {
            if !self.freed[index].record.is_passed() {
                index += 1;
                continue;
            }
            let freed = self.freed.remove(index);
            self.reserved = self.reserved.saturating_sub(freed.bytes);
            memory.free(freed.address, Owner::Pool)?;
        }
        Ok(())
    }
}

/// The pools of one device, and which block is of which.
#[derive(Debug)]
pub(crate) struct Pools {
    table: Table<Pool>,
    default: Arc<Pool>,
    /// What `cuMemAllocAsync` takes from.
    current: RwLock<Arc<Pool>>,
    /// Destroyed pools with something still reserved.
    retiring: Mutex<Vec<Arc<Pool>>>,
    /// Pool and bytes of each live block, by address.
    owners: Mutex<HashMap<u64, (Arc<Pool>, u64)>>,
}

impl Pools {
    pub(crate) fn new(device: u32, memory: &Arc<DeviceMemory>) -> Self {
        let default = Pool::new(device, Arc::clone(memory));
        let table = Table::default();
        table.insert(default.handle, Arc::clone(&default));
        let current = RwLock::new(Arc::clone(&default));
        Self { table, default, current, retiring: Mutex::default(), owners: Mutex::default() }
    }

    pub(crate) fn default_pool(&self) -> &Arc<Pool> {
        &self.default
    }

    pub(crate) fn current(&self) -> Arc<Pool> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_current(&self, pool: Arc<Pool>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = pool;
    }

    pub(crate) fn get(&self, handle: Handle) -> Outcome<Arc<Pool>> {
        self.table.get(handle)
    }

    pub(crate) fn create(&self, memory: &Arc<DeviceMemory>) -> Arc<Pool> {
        let pool = Pool::new(self.default.device, Arc::clone(memory));
        self.table.insert(pool.handle, Arc::clone(&pool));
        pool
    }

    /// The pool gives nothing any more; what it has goes back as it is freed.
    pub(crate) fn destroy(&self, handle: Handle) -> Outcome {
        if handle == self.default.handle {
            return Err(Code::INVALID_VALUE);
        }
        let pool = self.table.remove(handle)?;
        pool.set_threshold(0);
        if self.current().handle == handle {
            self.set_current(Arc::clone(&self.default));
        }
        pool.trim(0)?;
        self.retiring.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
        Ok(())
    }

    fn owners(&self) -> MutexGuard<'_, HashMap<u64, (Arc<Pool>, u64)>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn allocate(&self, pool: Arc<Pool>, bytes: u64, stream: &Stream) -> Outcome<u64> {
        let (address, bytes) = pool.allocate(bytes, stream)?;
        self.owners().insert(address, (pool, bytes));
        Ok(address)
    }

    /// Gives a block back that nobody uses any more. Whether it was a pool's.
    pub(crate) fn free_unused(&self, address: u64) -> bool {
        let record = Record::new();
        record.pass();
        self.take_back(address, 0, None, record)
    }

    /// Gives a block back, to be used again behind the record of the stream, which the emulator knows as well if it is one
    /// of this device's. Whether it was a pool's.
    pub(crate) fn free(
        &self,
        address: u64,
        stream: &Stream,
        emulated: Option<EmulatedStream>,
        record: Arc<Record>,
    ) -> bool {
        self.take_back(address, stream.handle, emulated, record)
    }

    fn take_back(
        &self,
        address: u64,
        stream: Handle,
        emulated: Option<EmulatedStream>,
        record: Arc<Record>,
    ) -> bool {
        let Some((pool, bytes)) = self.owners().remove(&address) else { return false };
        pool.take_back(Freed { address, bytes, stream, emulated, record });
        true
    }

    pub(crate) fn owns(&self, address: u64) -> bool {
        self.owners().contains_key(&address)
    }

    /// What a synchronisation does to all pools.
    pub(crate) fn trim_to_thresholds(&self) -> Outcome {
        self.table.all().iter().try_for_each(|pool| pool.trim_to_threshold())?;
        self.trim_retiring()
    }

    /// Gives back all that no program holds.
    pub(crate) fn trim_all(&self) -> Outcome {
        self.table.all().iter().try_for_each(|pool| pool.trim(0))?;
        self.trim_retiring()
    }

    fn trim_retiring(&self) -> Outcome {
        let mut retiring = self.retiring.lock().unwrap_or_else(PoisonError::into_inner);
        retiring.iter().try_for_each(|pool| pool.trim(0))?;
        retiring.retain(|pool| pool.figures().reserved > 0);
        Ok(())
    }
}

//! The emulator behind a driver that keeps vector clocks: it finds accesses that nothing orders.
//!
//! Main types: [`Watched`], [`WatchedStream`], [`Clock`]. Neighbours: `world` tells it of the kernels of a program;
//! everything else it learns from the calls that the allocator makes.
//!
//! A clock has an entry for each stream: how many of its kernels came before. The host has one, too: what it has seen
//! done. A record takes the stream's clock, a wait on the device joins it into another stream's, an event seen done joins
//! it into the host's; and what the host queues comes after all that it has seen. A kernel that touches bytes must come
//! after every earlier kernel of another allocation on the same bytes of the same frame, and an unmap after every kernel
//! through its addresses, as far as the host can know.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use concertina_emulator::{BackingId, EmulatedEvent, EmulatedHandle, EmulatedStream, Emulator};
use concertina_vmm::{
    Accessor, Address, Call, Capabilities, CaptureStatus, Driver, DriverError, DriverErrorKind,
    FrameProperties, MemoryInfo, Returned,
};

/// How many kernels of each stream came before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    fn of(&self, stream: usize) -> u64 {
        self.0.get(stream).copied().unwrap_or(0)
    }

    fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    fn advance(&mut self, stream: usize) -> u64 {
        if self.0.len() <= stream {
            self.0.resize(stream + 1, 0);
        }
        self.0[stream] += 1;
        self.0[stream]
    }
}

/// A kernel that touched a range, in the numbers of a frame or of an address.
#[derive(Clone, Copy, Debug)]
struct Access {
    start: u64,
    end: u64,
    stream: usize,
    number: u64,
    owner: u64,
}

impl Access {
    fn touches(&self, start: u64, end: u64) -> bool {
        self.start < end && start < self.end
    }
}

#[derive(Debug, Default)]
struct Watch {
    host: Clock,
    streams: Vec<Clock>,
    by_frame: HashMap<BackingId, Vec<Access>>,
    by_address: Vec<Access>,
    // By the address of each mapping.
    mapped: HashMap<u64, BackingId>,
    // Bytes of each malloc by its address.
    mallocs: HashMap<u64, u64>,
    // Records and waits of the program itself: not the allocator's.
    own_records: u64,
    own_waits: u64,
    lost: bool,
    violations: Vec<String>,
}

/// The emulator, watched. A clone is the same device.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) emulator: Emulator,
    watch: Arc<Mutex<Watch>>,
}

#[derive(Clone, Debug)]
pub(crate) struct WatchedStream {
    inner: EmulatedStream,
    index: usize,
    alive: Arc<()>,
}

impl WatchedStream {
    /// How many clones keep it alive.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.alive)
    }
}

#[derive(Debug)]
pub(crate) struct WatchedEvent {
    inner: EmulatedEvent,
    recorded: Mutex<Clock>,
}

impl Watched {
    pub(crate) fn new(emulator: Emulator) -> Self {
        Self { emulator, watch: Arc::default() }
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().unwrap()
    }

    pub(crate) fn stream(&self) -> WatchedStream {
        let mut watch = self.watch();
        watch.streams.push(Clock::default());
        WatchedStream { inner: self.emulator.stream(), index: watch.streams.len() - 1, alive: Arc::default() }
    }

    /// The program queues a kernel on the stream that touches the range, in the name of allocation `owner`.
    pub(crate) fn kernel(&self, stream: &WatchedStream, address: Address, bytes: u64, owner: u64) {
        let pieces = self.emulator.resolve_range(address, bytes);
        let mut watch = self.watch();
        let Watch { host, streams, by_frame, by_address, violations, .. } = &mut *watch;
        let clock = &mut streams[stream.index];
        clock.join(host);
        let number = clock.advance(stream.index);
        for piece in pieces {
            let Some(backing) = piece.backing.filter(|backing| backing.accessible) else {
                violations.push(format!("allocation {owner} touches {piece:?}, where nothing is accessible"));
                continue;
            };
            let (start, end) = (backing.offset_bytes, backing.offset_bytes + piece.bytes);
            let access = Access { start, end, stream: stream.index, number, owner };
            let others = by_frame.entry(backing.memory).or_default();
            for other in others.iter().filter(|other| other.owner != owner && other.touches(start, end)) {
                if clock.of(other.stream) < other.number {
                    violations
                        .push(format!("a race in {:?}: {access:?} is not after {other:?}", backing.memory));
                }
            }
            // What comes after all of them stands for them.
            others.retain(|other| {
                clock.of(other.stream) < other.number || other.start < start || other.end > end
            });
            others.push(access);
        }
        let (start, end) = (address.get(), address.get() + bytes);
        by_address
            .retain(|other| clock.of(other.stream) < other.number || other.start < start || other.end > end);
        by_address.push(Access { start, end, stream: stream.index, number, owner });
    }

    /// Looks at an error on its way to the allocator.
    fn note<T>(&self, result: Result<T, DriverError>) -> Result<T, DriverError> {
        self.watch().lost |= result.as_ref().is_err_and(|error| error.kind == DriverErrorKind::Lost);
        result
    }

    /// Whether a call has said that the device is lost.
    pub(crate) fn is_lost(&self) -> bool {
        self.watch().lost
    }

    /// The program's own wait on the device: work on `waiter` from now on comes after all on `on` so far. No call is made
    /// on a device that is lost.
    pub(crate) fn program_waits(
        &self,
        waiter: &WatchedStream,
        on: &WatchedStream,
    ) -> Result<(), DriverError> {
        if self.is_lost() {
            return Err(DriverError::new(DriverErrorKind::Lost, Call::StreamWait, "lost before"));
        }
        let event = self.event_create()?;
        self.event_record(&event, on)?;
        self.watch().own_records += 1;
        self.stream_wait(waiter, &event)?;
        self.watch().own_waits += 1;
        Ok(())
    }

    /// The program's host waits for the stream.
    pub(crate) fn program_synchronizes(&self, stream: &WatchedStream) {
        self.emulator.synchronize_stream(&stream.inner);
        let mut watch = self.watch();
        let clock = watch.streams[stream.index].clone();
        watch.host.join(&clock);
    }

    /// The program's host waits for the device.
    pub(crate) fn program_synchronizes_all(&self) {
        self.emulator.synchronize_device();
        let Watch { host, streams, .. } = &mut *self.watch();
        streams.iter().for_each(|clock| host.join(clock));
    }

    /// The device has run all that is queued on the stream; the host doesn't know.
    pub(crate) fn complete(&self, stream: &WatchedStream) {
        self.emulator.complete_stream(&stream.inner);
    }

    /// Races, and accesses and unmaps that are faults.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.watch().violations.clone()
    }

    /// Whether the frame is mapped anywhere.
    pub(crate) fn is_mapped(&self, frame: BackingId) -> bool {
        self.watch().mapped.values().any(|mapped| *mapped == frame)
    }

    /// Bytes of the malloc with this memory.
    pub(crate) fn malloc_bytes(&self, memory: BackingId) -> u64 {
        let watch = self.watch();
        let at = watch.mapped.iter().find(|(_, mapped)| **mapped == memory);
        at.and_then(|(address, _)| watch.mallocs.get(address).copied()).unwrap_or(0)
    }

    /// Records and waits that the program made itself.
    pub(crate) fn own_fences(&self) -> (u64, u64) {
        let watch = self.watch();
        (watch.own_records, watch.own_waits)
    }

    fn seen_done(&self, event: &WatchedEvent) {
        self.watch().host.join(&event.recorded.lock().unwrap());
    }
}

impl Driver for Watched {
    type Handle = EmulatedHandle;
    type Event = WatchedEvent;
    type Stream = WatchedStream;

    fn capabilities(&self) -> &Capabilities {
        self.emulator.capabilities()
    }

    fn granularity(&self, properties: &FrameProperties) -> Result<u64, DriverError> {
        self.emulator.granularity(properties)
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.note(self.emulator.memory_info())
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> Result<Address, DriverError> {
        self.note(self.emulator.reserve(bytes, alignment))
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.note(self.emulator.unreserve(address, bytes))
    }

    fn create(&self, bytes: u64, properties: &FrameProperties) -> Result<EmulatedHandle, DriverError> {
        self.note(self.emulator.create(bytes, properties))
    }

    fn release(&self, handle: EmulatedHandle) -> Result<(), Returned<EmulatedHandle>> {
        self.emulator.release(handle).inspect_err(|returned| {
            let _ = self.note::<()>(Err(returned.error.clone()));
        })
    }

    fn map(&self, address: Address, bytes: u64, handle: &EmulatedHandle) -> Result<(), DriverError> {
        self.note(self.emulator.map(address, bytes, handle))?;
        let backing = self.emulator.resolve(address).expect("mapped just now");
        self.watch().mapped.insert(address.get(), backing.memory);
        Ok(())
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.note(self.emulator.unmap(address, bytes))?;
        let Watch { host, by_address, mapped, violations, .. } = &mut *self.watch();
        let (start, end) = (address.get(), address.get() + bytes);
        mapped.retain(|at, _| *at < start || *at >= end);
        for access in by_address.iter().filter(|access| access.touches(start, end)) {
            if host.of(access.stream) < access.number {
                violations.push(format!("{start:#x}..{end:#x} was unmapped under {access:?}"));
            }
        }
        by_address.retain(|access| access.start < start || access.end > end);
        Ok(())
    }

    fn set_access(&self, address: Address, bytes: u64, accessors: &[Accessor]) -> Result<(), DriverError> {
        self.note(self.emulator.set_access(address, bytes, accessors))
    }

    fn event_create(&self) -> Result<WatchedEvent, DriverError> {
        Ok(WatchedEvent { inner: self.note(self.emulator.event_create())?, recorded: Mutex::default() })
    }

    fn event_record(&self, event: &WatchedEvent, stream: &WatchedStream) -> Result<(), DriverError> {
        self.note(self.emulator.event_record(&event.inner, &stream.inner))?;
        let mut watch = self.watch();
        let Watch { host, streams, .. } = &mut *watch;
        let clock = &mut streams[stream.index];
        clock.join(host);
        *event.recorded.lock().unwrap() = clock.clone();
        Ok(())
    }

    fn event_query(&self, event: &WatchedEvent) -> Result<bool, DriverError> {
        let done = self.note(self.emulator.event_query(&event.inner))?;
        if done {
            self.seen_done(event);
        }
        Ok(done)
    }

    fn event_synchronize(&self, event: &WatchedEvent) -> Result<(), DriverError> {
        self.note(self.emulator.event_synchronize(&event.inner))?;
        self.seen_done(event);
        Ok(())
    }

    fn stream_wait(&self, stream: &WatchedStream, event: &WatchedEvent) -> Result<(), DriverError> {
        self.note(self.emulator.stream_wait(&stream.inner, &event.inner))?;
        let recorded = event.recorded.lock().unwrap().clone();
        self.watch().streams[stream.index].join(&recorded);
        Ok(())
    }

    fn capture_status(&self, stream: &WatchedStream) -> Result<CaptureStatus, DriverError> {
        self.note(self.emulator.capture_status(&stream.inner))
    }

    fn malloc(&self, bytes: u64) -> Result<Address, DriverError> {
        let address = self.note(self.emulator.malloc(bytes))?;
        let backing = self.emulator.resolve(address).expect("given just now");
        let Watch { mapped, mallocs, .. } = &mut *self.watch();
        mapped.insert(address.get(), backing.memory);
        mallocs.insert(address.get(), bytes);
        Ok(address)
    }

    fn free(&self, address: Address) -> Result<(), DriverError> {
        self.note(self.emulator.free(address))?;
        // It waits for the whole device.
        let Watch { host, streams, by_address, mapped, mallocs, .. } = &mut *self.watch();
        streams.iter().for_each(|clock| host.join(clock));
        mapped.remove(&address.get());
        let bytes = mallocs.remove(&address.get()).unwrap_or(0);
        let (start, end) = (address.get(), address.get() + bytes);
        by_address.retain(|access| access.start < start || access.end > end);
        Ok(())
    }
}

/// The watcher itself: without a wait it cries, with one it is silent.
#[test]
fn the_watcher_sees_a_race_and_an_order() {
    for waits in [false, true] {
        let device = Watched::new(Emulator::new(concertina_emulator::EmulatorConfig::default()).unwrap());
        let page = device.granularity(&FrameProperties::default()).unwrap();
        let address = device.reserve(page, 0).unwrap();
        let handle = device.create(page, &FrameProperties::default()).unwrap();
        device.map(address, page, &handle).unwrap();
        device.set_access(address, page, &[Accessor::Device(0)]).unwrap();
        let (first, second) = (device.stream(), device.stream());
        device.kernel(&first, address, 1024, 0);
        if waits {
            device.program_waits(&second, &first).unwrap();
        }
        device.kernel(&second, address.add(512), 1024, 1);
        assert_eq!(device.violations().is_empty(), waits, "{:?}", device.violations());
        device.program_synchronizes(&first);
        if waits {
            device.program_synchronizes(&second);
        }
        device.unmap(address, page).unwrap();
        let unmapped_under = device.violations().iter().any(|line| line.contains("unmapped under"));
        assert_eq!(unmapped_under, !waits, "{:?}", device.violations());
    }
}

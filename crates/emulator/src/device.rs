//! The device behind one lock: every call's rules, its effect and its price.
//!
//! Main types: [`Device`]. Neighbours: `emulator` holds the lock and admits calls here; the parts are `physical`,
//! `address_space`, `malloc_area`, `timeline`, `detector` and `fault`.
//!
//! Each call checks everything first and then changes what it must, so one that fails has changed nothing.

use concertina_vmm::{Accessor, Call, DriverError, DriverErrorKind, FrameProperties};

use crate::address_space::{AddressSpace, Behind, WholeRules};
use crate::backing::{Backing, BackingId};
use crate::config::{AddressLayout, Detection, EmulatorConfig};
use crate::counts::{Counts, Held};
use crate::detector::Detector;
use crate::fault::Faults;
use crate::hang::{Hang, WaitOrigin};
use crate::malloc_area::{MallocArea, Taken};
use crate::physical::{Physical, Purpose};
use crate::rule::{BrokenRule, Refusal, Rule};
use crate::slab::Key;
use crate::timeline::Timeline;

/// What a call that is done gives, and what it costs in nanoseconds.
pub(crate) type Done<T> = Result<(T, u64), Refusal>;

#[derive(Debug)]
pub(crate) struct Device {
    config: EmulatorConfig,
    pub(crate) memory: Physical,
    pub(crate) space: AddressSpace,
    pub(crate) mallocs: MallocArea,
    pub(crate) timeline: Timeline,
    pub(crate) faults: Faults,
    pub(crate) broken: Vec<BrokenRule>,
    pub(crate) hangs: Vec<Hang>,
    /// None if it is off.
    pub(crate) detector: Option<Box<Detector>>,
    counts: Counts,
    lost: bool,
}

impl Device {
    pub(crate) fn new(config: EmulatorConfig) -> Self {
        let AddressLayout { mallocs, reservations } = config.address_layout;
        Self {
            memory: Physical::new(config.capacity_bytes),
            space: AddressSpace::new(config.granularity_bytes, reservations, config.address_space_bytes),
            mallocs: MallocArea::new(config.granularity_bytes, mallocs, reservations),
            timeline: Timeline::new(config.event_completion),
            faults: Faults::default(),
            broken: Vec::new(),
            hangs: Vec::new(),
            detector: (config.detection == Detection::On).then(|| Box::new(Detector::new())),
            counts: Counts::default(),
            lost: false,
            config,
        }
    }

    /// Makes one call: not if the device is lost or the call is to fail; counted and charged if it is done.
    pub(crate) fn call<T>(
        &mut self,
        call: Call,
        body: impl FnOnce(&mut Self) -> Done<T>,
    ) -> Result<T, DriverError> {
        let refused = if self.lost {
            self.counts.calls_after_lost += 1;
            DriverError::new(DriverErrorKind::Lost, call, "the device was lost before")
        } else if let Err(unsupported) = self.check_supported(call) {
            unsupported
        } else if let Some(kind) = self.faults.strike(call) {
            self.lost = kind == DriverErrorKind::Lost;
            DriverError::new(kind, call, "told to fail")
        } else {
            match body(self) {
                Ok((value, ns)) => {
                    self.counts.done[call as usize] += 1;
                    let of_kind = &mut self.counts.time_ns[call as usize];
                    *of_kind = of_kind.saturating_add(ns);
                    self.counts.modelled_ns = self.counts.modelled_ns.saturating_add(ns);
                    self.timeline.spend(ns);
                    return Ok(value);
                }
                Err(Refusal::Full(detail)) => DriverError::new(DriverErrorKind::OutOfMemory, call, detail),
                Err(Refusal::Broken(rule, detail)) => self.log_broken(rule, call, detail),
                Err(Refusal::Hang(hang)) => {
                    let error = DriverError::new(DriverErrorKind::NotReady, call, hang.to_string());
                    self.hangs.push(hang);
                    error
                }
            }
        };
        self.counts.failed[call as usize] += 1;
        Err(refused)
    }

    fn check_supported(&self, call: Call) -> Result<(), DriverError> {
        let of_mallocs = matches!(call, Call::Malloc | Call::Free) || !call.is_memory_call();
        if self.config.virtual_memory || of_mallocs {
            return Ok(());
        }
        let why = "the emulated device was made without virtual memory";
        Err(DriverError::new(DriverErrorKind::NotSupported, call, why))
    }

    fn log_broken(&mut self, rule: Rule, call: Call, detail: String) -> DriverError {
        let error = DriverError::new(DriverErrorKind::Invalid, call, format!("{rule}: {detail}"));
        self.broken.push(BrokenRule { rule, call, detail });
        error
    }

    pub(crate) const fn is_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// The host's clock, or where there is none the time of all driver calls.
    pub(crate) fn host_ns(&self) -> u64 {
        self.timeline.host_ns().unwrap_or(self.counts.modelled_ns)
    }

    pub(crate) fn restart_counts(&mut self) {
        self.counts = self.counts.restarted();
    }

    pub(crate) fn flat(&self, call: Call) -> u64 {
        self.config.cost_table.of(call).base_ns
    }

    fn check_device(&self, device: u32) -> Result<(), Refusal> {
        if device == self.config.device {
            return Ok(());
        }
        Rule::UnknownDevice.broken(|| format!("device {device}; this one is {}", self.config.device))
    }

    fn check_granular(&self, bytes: u64) -> Result<(), Refusal> {
        let granularity = self.config.granularity_bytes;
        if bytes == 0 {
            return Rule::SizeZero.broken(|| "0 bytes".to_owned());
        }
        if !bytes.is_multiple_of(granularity) {
            return Rule::SizeNotGranular
                .broken(|| format!("{bytes} bytes; the granularity is {granularity}"));
        }
        Ok(())
    }

    /// The granularity for frames with these properties. Not counted: drivers answer from a table.
    pub(crate) fn granularity(&mut self, properties: &FrameProperties) -> Result<u64, DriverError> {
        match self.check_device(properties.device) {
            Err(Refusal::Broken(rule, detail)) => Err(self.log_broken(rule, Call::Create, detail)),
            _ => self.check_supported(Call::Create).map(|()| self.config.granularity_bytes),
        }
    }

    /// Free and total bytes.
    pub(crate) fn memory_info(&mut self) -> Done<(u64, u64)> {
        Ok(((self.memory.free_bytes(), self.config.capacity_bytes), self.flat(Call::MemoryInfo)))
    }

    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64) -> Done<u64> {
        self.check_granular(bytes)?;
        if alignment != 0 && !alignment.is_power_of_two() {
            return Rule::AlignmentNotPowerOfTwo.broken(|| format!("alignment of {alignment}"));
        }
        let start = self.space.reserve(bytes, alignment)?;
        self.note_reserved();
        Ok((start, self.config.cost_table.of(Call::Reserve).of_bytes(bytes)))
    }

    pub(crate) fn unreserve(&mut self, address: u64, bytes: u64) -> Done<()> {
        self.space.unreserve(address, bytes)?;
        self.note_reserved();
        Ok(((), self.config.cost_table.of(Call::Unreserve).of_bytes(bytes)))
    }

    pub(crate) fn create(&mut self, bytes: u64, properties: &FrameProperties) -> Done<Key> {
        self.check_device(properties.device)?;
        self.check_granular(bytes)?;
        let Some(key) = self.memory.take(bytes, Purpose::Create) else {
            return Err(Refusal::Full(format!("{bytes} bytes; {} are free", self.memory.free_bytes())));
        };
        self.counts.handles += 1;
        self.note_memory();
        Ok((key, self.config.cost_table.of(Call::Create).of_bytes(bytes)))
    }

    /// Checks that a handle of this device is still one, and tells its frame's bytes.
    fn check_handle(&self, key: Key) -> Result<u64, Refusal> {
        match self.memory.frames.get(key) {
            Some(frame) if frame.handles > 0 => Ok(frame.bytes),
            _ => Rule::HandleReleased
                .broken(|| format!("handle {}.{} is no longer one", key.slot, key.generation)),
        }
    }

    pub(crate) fn release(&mut self, key: Key) -> Done<()> {
        let bytes = self.check_handle(key)?;
        self.memory.give_up_handle(key.slot);
        self.counts.handles -= 1;
        self.note_memory();
        Ok(((), self.config.cost_table.of(Call::Release).of_bytes(bytes)))
    }

    /// One more handle of the frame behind an address, if a mapping is there.
    pub(crate) fn retain(&mut self, address: u64) -> Option<Key> {
        if address < self.space.base() {
            return None;
        }
        let Behind::Mapping(mapping, ..) = self.space.behind(address).0 else { return None };
        let slot = mapping.frame;
        let handles = &mut self.memory.frames.at_mut(slot).handles;
        *handles = handles.checked_add(1)?;
        self.counts.handles += 1;
        Some(self.memory.frames.key_of(slot))
    }

    /// Whether the memory with this key was not given back yet.
    pub(crate) fn holds(&self, key: Key) -> bool {
        self.memory.frames.get(key).is_some()
    }

    pub(crate) fn map(&mut self, address: u64, bytes: u64, key: Key) -> Done<()> {
        let frame_bytes = self.check_handle(key)?;
        let place = self.space.place(address, bytes)?;
        if bytes != frame_bytes {
            return Rule::MapNotWhole.broken(|| format!("{bytes} bytes of a handle of {frame_bytes}"));
        }
        self.space.check_unmapped(place)?;
        self.space.map(place, key.slot);
        self.memory.frames.at_mut(key.slot).mappings += 1;
        self.note_mappings();
        Ok(((), self.config.cost_table.of(Call::Map).of_bytes(bytes)))
    }

    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Done<()> {
        let place = self.space.place(address, bytes)?;
        let rules = WholeRules { unmapped: Rule::UnmapUnmapped, part: Rule::UnmapPart };
        let (count, ns) = self.space.check_whole(place, rules, self.config.cost_table.of(Call::Unmap))?;
        if count > 1 && !self.config.unmap_spans_mappings {
            return Rule::UnmapSpansMappings
                .broken(|| format!("{bytes} bytes at {address:#x} are {count} mappings"));
        }
        let Self { memory, space, detector, .. } = self;
        space.unmap(place, |mapping, frame| {
            memory.drop_mapping(frame);
            if let Some(detector) = detector {
                detector.unmap(mapping, address, bytes);
            }
        });
        self.note_mappings();
        self.note_memory();
        Ok(((), ns))
    }

    pub(crate) fn set_access(&mut self, address: u64, bytes: u64, accessors: &[Accessor]) -> Done<()> {
        if accessors.is_empty() {
            return Rule::AccessForNone.broken(|| format!("no accessor for {bytes} bytes at {address:#x}"));
        }
        for &Accessor::Device(device) in accessors {
            self.check_device(device)?;
        }
        let place = self.space.place(address, bytes)?;
        let rules = WholeRules { unmapped: Rule::AccessUnmapped, part: Rule::AccessPart };
        let (_, ns) = self.space.check_whole(place, rules, self.config.cost_table.of(Call::SetAccess))?;
        if let Some(budget) = self.config.max_mappings.filter(|&budget| self.space.mapping_count() > budget) {
            let now = self.space.mapping_count();
            return Err(Refusal::Full(format!("{now} mappings; the driver holds at most {budget}")));
        }
        self.space.give_access(place);
        Ok(((), ns))
    }

    pub(crate) fn event_create(&mut self) -> Done<u32> {
        Ok((self.timeline.create_event(), self.flat(Call::EventCreate)))
    }

    pub(crate) fn event_record(&mut self, event: u32, stream: u32) -> Done<()> {
        self.timeline.record(event, stream);
        if let Some(detector) = &mut self.detector {
            detector.record(event, stream);
        }
        Ok(((), self.flat(Call::EventRecord)))
    }

    pub(crate) fn event_query(&mut self, event: u32) -> Done<bool> {
        self.timeline.draw();
        let done = match self.timeline.record_of(event) {
            None => true,
            Some(record) if record.captured => return captured(event),
            Some(record) => {
                let done = self.timeline.is_done(record.at);
                if done && let Some(detector) = &mut self.detector {
                    detector.saw_event(event);
                }
                done
            }
        };
        Ok((done, self.flat(Call::EventQuery)))
    }

    pub(crate) fn event_synchronize(&mut self, event: u32) -> Done<()> {
        if let Some(record) = self.timeline.record_of(event) {
            if record.captured {
                return captured(event);
            }
            if !self.timeline.is_done(record.at) {
                self.timeline.complete(record.at)?;
                self.counts.host_waits += 1;
            }
            if let Some(detector) = &mut self.detector {
                detector.saw_event(event);
            }
        }
        Ok(((), self.flat(Call::EventSynchronize)))
    }

    pub(crate) fn stream_wait(&mut self, stream: u32, event: u32) -> Done<()> {
        if let Some(record) = self.timeline.record_of(event) {
            self.timeline.wait(stream, record.at, WaitOrigin::DriverCall);
            if let Some(detector) = &mut self.detector {
                detector.wait(stream, event);
            }
        }
        Ok(((), self.flat(Call::StreamWait)))
    }

    pub(crate) fn capture_status(&mut self, stream: u32) -> Done<concertina_vmm::CaptureStatus> {
        Ok((self.timeline.capture(stream), self.flat(Call::CaptureStatus)))
    }

    pub(crate) fn malloc(&mut self, bytes: u64) -> Done<u64> {
        if bytes == 0 {
            return Rule::SizeZero.broken(|| "0 bytes".to_owned());
        }
        let (address, taken) = self.mallocs.malloc(bytes, &mut self.memory)?;
        self.note_memory();
        let table = &self.config.cost_table;
        let ns = match taken {
            Taken::SmallBlock => table.small_malloc_ns,
            Taken::Granules => table.of(Call::Malloc).of_bytes(bytes),
        };
        Ok((address, ns))
    }

    pub(crate) fn free(&mut self, address: u64) -> Done<()> {
        self.mallocs.check_live(address)?;
        self.timeline.complete_all()?;
        self.counts.host_waits += 1;
        if let Some(detector) = &mut self.detector {
            detector.saw_all();
        }
        self.mallocs.free(address, &mut self.memory);
        self.note_memory();
        Ok(((), self.flat(Call::Free)))
    }

    fn note_memory(&mut self) {
        self.counts.mapped_bytes = self.memory.used_bytes();
        self.counts.mapped_peak_bytes = self.counts.mapped_peak_bytes.max(self.counts.mapped_bytes);
    }

    fn note_reserved(&mut self) {
        self.counts.reserved_bytes = self.space.reserved_bytes();
        self.counts.reserved_peak_bytes = self.counts.reserved_peak_bytes.max(self.counts.reserved_bytes);
    }

    fn note_mappings(&mut self) {
        self.counts.mappings = self.space.mapping_count();
        self.counts.mappings_peak = self.counts.mappings_peak.max(self.counts.mappings);
    }

    /// What is behind an address, and for how many bytes from there the answer holds.
    pub(crate) fn behind(&mut self, address: u64) -> (Option<Backing>, u64) {
        if address < self.space.base() {
            let (found, bytes) = self.mallocs.behind(address);
            let backing = found.map(|(key, offset_bytes)| Backing {
                memory: BackingId(key),
                offset_bytes,
                accessible: true,
            });
            return (backing, bytes);
        }
        match self.space.behind(address) {
            (Behind::Nothing, bytes) => (None, bytes),
            (Behind::Mapping(mapping, _, offset_bytes), bytes) => {
                let memory = BackingId(self.memory.frames.key_of(mapping.frame));
                (Some(Backing { memory, offset_bytes, accessible: mapping.accessible }), bytes)
            }
        }
    }

    /// What is held, from the counters.
    pub(crate) fn held(&self) -> Held {
        Held {
            reservations: self.space.reservation_count(),
            reserved_bytes: self.counts.reserved_bytes,
            mappings: self.counts.mappings,
            handles: self.counts.handles,
            frames: self.memory.created(),
            mallocs: self.mallocs.live(),
            mapped_bytes: self.counts.mapped_bytes,
            events: self.timeline.event_count(),
        }
    }

    /// What is held, counted one by one.
    pub(crate) fn recount(&self) -> Held {
        let (reservations, reserved_bytes, mappings) = self.space.recount();
        let mallocs = self.mallocs.recount();
        let frames = || self.memory.frames.iter();
        let created = || frames().filter(|frame| frame.purpose == Purpose::Create);
        Held {
            reservations,
            reserved_bytes,
            mappings,
            handles: created().map(|frame| u64::from(frame.handles)).sum(),
            frames: created().count() as u64,
            mallocs,
            mapped_bytes: frames().map(|frame| frame.bytes).sum(),
            events: self.timeline.event_count(),
        }
    }
}

fn captured<T>(event: u32) -> Done<T> {
    Rule::EventCaptured.broken(|| format!("event {event} was recorded in a capture"))
}

//! Measures what the calls of a driver cost, and makes a cost table of it.
//!
//! Main types: [`Measurement`], [`Timing`]. Neighbours: `cargo xtask probe` runs it on CUDA devices; the emulator reads the
//! table (`CostTable::from_toml`).
//!
//! Measured is host time from call to return, on an idle device: what an allocator waits for. Each figure is the median of
//! several calls, after one that is not counted.

use std::fmt::Write as _;
use std::time::Instant;

use concertina_emulator::{CallCost, CostTable};
use concertina_vmm::{Accessor, Address, Call, Driver, DriverError, FrameProperties};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// The least size of frames that is measured; where tables have their base.
const BASE: u64 = 2 * MIB;
/// Sizes of frames and mallocs, in bytes.
const SIZES: [u64; 6] = [BASE, 8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB, GIB];
/// A malloc of less than a granule, in bytes.
const SMALL: u64 = 4 << 10;
/// Mappings under one call.
const BATCHES: [u64; 3] = [4, 16, 64];

/// What one kind of call took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The kind.
    pub call: Call,
    /// Bytes of each frame, mapping, reservation or malloc that it was about; 0 where there is none.
    pub bytes: u64,
    /// Mappings that one call covered; 1 where that says nothing.
    pub mappings: u64,
    /// The median, in nanoseconds.
    pub median_ns: u64,
    /// The shortest, in nanoseconds.
    pub least_ns: u64,
    /// How many calls were timed.
    pub calls: usize,
}

/// What all kinds of calls took on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measurement {
    /// In the order in which they were made.
    pub timings: Vec<Timing>,
}

/// Times of one kind of call, as they come.
#[derive(Debug, Default)]
struct Times(Vec<u64>);

impl Times {
    fn time<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = call();
        self.0.push(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        result
    }
}

/// A driver on which calls are timed.
struct Probe<'a, D> {
    driver: &'a D,
    properties: FrameProperties,
    repeat: usize,
    measurement: Measurement,
}

/// Measures the calls of `driver` for frames on `device`, each `repeat` times (at least once). Gives back all that it takes,
/// unless a call fails.
///
/// # Errors
/// The first call that failed. Sizes that the device has no memory for are left out.
pub fn measure<D: Driver>(
    driver: &D,
    device: u32,
    streams: [&D::Stream; 2],
    repeat: usize,
) -> Result<Measurement, DriverError> {
    let properties = FrameProperties { device };
    let mut probe = Probe { driver, properties, repeat: repeat.max(1), measurement: Measurement::default() };
    let granularity = driver.granularity(&probe.properties)?;
    let sizes = SIZES.map(|bytes| bytes.next_multiple_of(granularity));
    for bytes in sizes {
        if !probe.frames(bytes)? {
            break;
        }
    }
    for mappings in BATCHES {
        probe.batch(sizes[0], mappings)?;
    }
    for bytes in [SMALL].into_iter().chain(sizes) {
        if !probe.mallocs(bytes)? {
            break;
        }
    }
    probe.events(streams)?;
    Ok(probe.measurement)
}

impl<D: Driver> Probe<'_, D> {
    fn note(&mut self, call: Call, bytes: u64, mappings: u64, Times(mut times): Times) {
        // The first one pays for what the driver sets up once.
        if times.len() > 1 {
            times.remove(0);
        }
        times.sort_unstable();
        let Some(&least_ns) = times.first() else { return };
        let (median_ns, calls) = (times[times.len() / 2], times.len());
        self.measurement.timings.push(Timing { call, bytes, mappings, median_ns, least_ns, calls });
    }

    fn grant(&self, address: Address, bytes: u64) -> Result<(), DriverError> {
        self.driver.set_access(address, bytes, &[Accessor::Device(self.properties.device)])
    }

    /// One frame at a time. Whether there was memory for it.
    fn frames(&mut self, bytes: u64) -> Result<bool, DriverError> {
        let driver = self.driver;
        let [mut reserve, mut create, mut map, mut access, mut unmap, mut release, mut unreserve] =
            [(); 7].map(|()| Times::default());
        for _ in 0..=self.repeat {
            let frame = match create.time(|| driver.create(bytes, &self.properties)) {
                Ok(frame) => frame,
                Err(error) if error.is_out_of_memory() => return Ok(false),
                Err(error) => return Err(error),
            };
            let address = reserve.time(|| driver.reserve(bytes, 0))?;
            map.time(|| driver.map(address, bytes, &frame))?;
            access.time(|| self.grant(address, bytes))?;
            unmap.time(|| driver.unmap(address, bytes))?;
            release.time(|| driver.release(frame)).map_err(|returned| returned.error)?;
            unreserve.time(|| driver.unreserve(address, bytes))?;
        }
        let all = [
            (Call::Reserve, reserve),
            (Call::Create, create),
            (Call::Map, map),
            (Call::SetAccess, access),
            (Call::Unmap, unmap),
            (Call::Release, release),
            (Call::Unreserve, unreserve),
        ];
        all.into_iter().for_each(|(call, times)| self.note(call, bytes, 1, times));
        Ok(true)
    }

    /// One set access and one unmap over neighbouring mappings of frames of their own.
    fn batch(&mut self, bytes: u64, mappings: u64) -> Result<(), DriverError> {
        let driver = self.driver;
        let frames: Vec<_> =
            (0..mappings).map(|_| driver.create(bytes, &self.properties)).collect::<Result<_, _>>()?;
        let whole = bytes * mappings;
        let address = driver.reserve(whole, 0)?;
        let [mut access, mut unmap] = [(); 2].map(|()| Times::default());
        let spans = driver.capabilities().unmap_spans_mappings;
        for _ in 0..=self.repeat {
            let mut at = address;
            for frame in &frames {
                driver.map(at, bytes, frame)?;
                at = at.add(bytes);
            }
            access.time(|| self.grant(address, whole))?;
            if spans {
                unmap.time(|| driver.unmap(address, whole))?;
            } else {
                (0..mappings).try_for_each(|index| driver.unmap(address.add(index * bytes), bytes))?;
            }
        }
        driver.unreserve(address, whole)?;
        for frame in frames {
            driver.release(frame).map_err(|returned| returned.error)?;
        }
        self.note(Call::SetAccess, bytes, mappings, access);
        self.note(Call::Unmap, bytes, mappings, unmap);
        Ok(())
    }

    fn mallocs(&mut self, bytes: u64) -> Result<bool, DriverError> {
        let [mut malloc, mut free] = [(); 2].map(|()| Times::default());
        for _ in 0..=self.repeat {
            let address = match malloc.time(|| self.driver.malloc(bytes)) {
                Ok(address) => address,
                Err(error) if error.is_out_of_memory() => return Ok(false),
                Err(error) => return Err(error),
            };
            free.time(|| self.driver.free(address))?;
        }
        self.note(Call::Malloc, bytes, 1, malloc);
        self.note(Call::Free, bytes, 1, free);
        Ok(true)
    }

    fn events(&mut self, [stream, other]: [&D::Stream; 2]) -> Result<(), DriverError> {
        let driver = self.driver;
        let [mut info, mut create, mut record, mut query, mut wait, mut synchronize, mut capture] =
            [(); 7].map(|()| Times::default());
        for _ in 0..=self.repeat {
            info.time(|| driver.memory_info())?;
            let event = create.time(|| driver.event_create())?;
            record.time(|| driver.event_record(&event, stream))?;
            wait.time(|| driver.stream_wait(other, &event))?;
            query.time(|| driver.event_query(&event))?;
            synchronize.time(|| driver.event_synchronize(&event))?;
            capture.time(|| driver.capture_status(stream))?;
        }
        let all = [
            (Call::MemoryInfo, info),
            (Call::EventCreate, create),
            (Call::EventRecord, record),
            (Call::StreamWait, wait),
            (Call::EventQuery, query),
            (Call::EventSynchronize, synchronize),
            (Call::CaptureStatus, capture),
        ];
        all.into_iter().for_each(|(call, times)| self.note(call, 0, 1, times));
        Ok(())
    }
}

impl Measurement {
    /// The cost table of this name that comes nearest: for each kind the median at the least size as the base, the line from
    /// there to the largest size as the slope, and what each further mapping of the largest batch added.
    pub fn cost_table(&self, name: &str) -> CostTable {
        let mut table = CostTable::free_of_charge();
        name.clone_into(&mut table.name);
        let small = self.timings.iter().find(|timing| timing.call == Call::Malloc && timing.bytes == SMALL);
        table.small_malloc_ns = small.map_or(0, |timing| timing.median_ns);
        Call::ALL.iter().fold(table, |table, &call| table.with(call, self.cost_of(call)))
    }

    fn cost_of(&self, call: Call) -> CallCost {
        let of_call =
            || self.timings.iter().filter(move |timing| timing.call == call && timing.bytes != SMALL);
        let single = || of_call().filter(|timing| timing.mappings == 1);
        let Some(base) = single().min_by_key(|timing| timing.bytes) else { return CallCost::default() };
        let per_gib_ns = single().max_by_key(|timing| timing.bytes).map_or(0, |largest| {
            let (ns, bytes) = (largest.median_ns.saturating_sub(base.median_ns), largest.bytes - base.bytes);
            let slope = u128::from(ns) * u128::from(GIB) / u128::from(bytes.max(1));
            u64::try_from(slope).unwrap_or(u64::MAX)
        });
        let per_mapping_ns = of_call()
            .max_by_key(|timing| timing.mappings)
            .map_or(0, |batch| batch.median_ns.saturating_sub(base.median_ns) / (batch.mappings - 1).max(1));
        CallCost { base_ns: base.median_ns, per_gib_ns, per_mapping_ns }
    }
}

/// The table as TOML that [`CostTable::from_toml`] reads, below comments of these lines.
pub fn to_toml(table: &CostTable, comments: &[String]) -> String {
    let mut text = String::new();
    for line in comments.iter().flat_map(|comment| comment.lines()) {
        let _ = writeln!(text, "# {line}");
    }
    // Names may have quotes; the text form of Rust escapes them as TOML does.
    let _ = writeln!(text, "name = {:?}\nsmall_malloc_ns = {}", table.name, table.small_malloc_ns);
    for &call in Call::ALL {
        let CallCost { base_ns, per_gib_ns, per_mapping_ns } = table.of(call);
        let _ = writeln!(text, "\n[{}]\nbase_ns = {base_ns}", call.name());
        let _ = writeln!(text, "per_gib_ns = {per_gib_ns}\nper_mapping_ns = {per_mapping_ns}");
    }
    text
}

#[cfg(test)]
mod tests {
    use concertina_emulator::{Emulator, EmulatorConfig};

    use super::{Measurement, SMALL, Timing, measure, to_toml};
    use concertina_emulator::{CallCost, CostTable};
    use concertina_vmm::Call;

    fn timing(call: Call, bytes: u64, mappings: u64, median_ns: u64) -> Timing {
        Timing { call, bytes, mappings, median_ns, least_ns: median_ns, calls: 1 }
    }

    #[test]
    fn a_table_is_the_line_through_the_ends() {
        let timings = vec![
            timing(Call::Unmap, 1 << 30, 1, 5_000),
            timing(Call::Unmap, 1 << 29, 1, 1_000),
            timing(Call::Unmap, 1 << 29, 5, 3_000),
            timing(Call::Malloc, SMALL, 1, 70),
            timing(Call::Malloc, 1 << 21, 1, 900),
        ];
        let table = Measurement { timings }.cost_table("a \"GPU\"");
        // 4,000 ns for half a GiB, and 2,000 for four further mappings.
        let unmap = CallCost { base_ns: 1_000, per_gib_ns: 8_000, per_mapping_ns: 500 };
        assert_eq!((*table.of(Call::Unmap), *table.of(Call::Malloc)), (unmap, CallCost::flat(900)));
        assert_eq!((table.small_malloc_ns, *table.of(Call::Free)), (70, CallCost::flat(0)));
        let text = to_toml(&table, &["one\ntwo".to_owned()]);
        assert!(text.starts_with("# one\n# two\n"), "{text}");
        assert_eq!(CostTable::from_toml(&text).expect("what is written is read"), table);
    }

    #[test]
    fn every_kind_of_call_is_measured_and_everything_given_back() {
        let emulator = Emulator::new(EmulatorConfig::default()).expect("a device");
        let streams = [emulator.stream(), emulator.stream()];
        let measured = measure(&emulator, 0, [&streams[0], &streams[1]], 3).expect("all calls are done");
        for call in Call::ALL {
            let timings = measured.timings.iter().filter(|timing| timing.call == *call);
            assert!(timings.clone().count() > 0, "{}", call.name());
            assert!(timings.clone().all(|timing| timing.calls == 3 && timing.least_ns <= timing.median_ns));
        }
        assert!(emulator.is_empty() && emulator.broken_rules().is_empty(), "{}", emulator.leaks());
    }

    #[test]
    fn sizes_that_do_not_fit_are_left_out() {
        let config = EmulatorConfig::default().with_capacity(200 << 20).expect("a capacity");
        let emulator = Emulator::new(config).expect("a device");
        let streams = [emulator.stream(), emulator.stream()];
        let measured = measure(&emulator, 0, [&streams[0], &streams[1]], 1).expect("all calls are done");
        let largest = measured.timings.iter().map(|timing| timing.bytes).max();
        assert_eq!(largest, Some(128 << 20));
        assert!(emulator.is_empty());
    }
}

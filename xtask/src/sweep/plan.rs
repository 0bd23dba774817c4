//! The description of a sweep, and the grid that it spans.
//!
//! Main types: [`Description`], [`Plan`], [`Planned`]. Neighbours: `point` is one experiment; `run` runs them.

use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use concertina_bench::{
    AllocatorName, Capacity, DeviceKind, DeviceSpec, Fineness, Granularity, PolicyName, TraceFile,
};
use concertina_emulator::CostTable;
use concertina_trace::LoadedTrace;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::error::SweepError;
use super::point::{Point, Timing};
use crate::error::XtaskError;
use crate::measured_device::MEASUREMENTS;
use crate::process::repository_root;

/// Most points of a grid.
const MOST_POINTS: u128 = 1_000_000;

/// The word for a capacity that is to be searched for.
const MIN: &str = "min";

fn words<const COUNT: usize>(words: [&str; COUNT]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

/// A description as it stands in the file. What is left out has one value, that of `cargo xtask bench`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    traces: Vec<String>,
    allocators: Vec<String>,
    #[serde(default = "default_policies")]
    policies: Vec<String>,
    #[serde(default = "default_capacities")]
    capacities: Vec<String>,
    #[serde(default = "default_granularities")]
    granularities: Vec<String>,
    #[serde(default)]
    event_lags: Vec<u64>,
    #[serde(default)]
    work_seeds: Vec<u64>,
    #[serde(default = "default_cost_tables")]
    cost_tables: Vec<String>,
    #[serde(default)]
    max_mappings: Vec<u64>,
}

fn default_policies() -> Vec<String> {
    words(["balanced"])
}

fn default_capacities() -> Vec<String> {
    words(["80GiB"])
}

fn default_granularities() -> Vec<String> {
    words(["2MiB"])
}

fn default_cost_tables() -> Vec<String> {
    words(["h100"])
}

/// How much memory the device of a point has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Room {
    /// So much.
    Given(Capacity),
    /// The least that is enough: it is searched for.
    Searched(Fineness),
}

/// A point with everything that it takes to run it.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) id: String,
    pub(crate) point: Point,
    /// Its place in [`Plan::traces`].
    pub(crate) trace: usize,
    pub(crate) allocator: AllocatorName,
    pub(crate) policy: PolicyName,
    pub(crate) room: Room,
    pub(crate) device: DeviceSpec,
}

/// A sweep, ready to run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) traces: Vec<LoadedTrace>,
    /// In the order of the grid: the last list of the description changes fastest.
    pub(crate) points: Vec<Planned>,
}

/// A trace with what its points are known by.
struct Source {
    name: String,
    content_hash: Vec<u8>,
}

impl Plan {
    /// Reads a description and all that it names. Traces are names of bundled ones, or files, sought from the description
    /// on.
    ///
    /// # Errors
    /// A file that can't be read, a key or value that means nothing, a grid of more than a million points.
    pub(crate) fn open(path: &Path) -> Result<Self, XtaskError> {
        let text = fs::read_to_string(path).map_err(|source| XtaskError::io("read", path, source))?;
        Self::of_text(path, &text)
    }

    fn of_text(path: &Path, text: &str) -> Result<Self, XtaskError> {
        let description: Description = toml::from_str(text).map_err(|error| describe(path, text, &error))?;
        let grid = Grid::new(path, &description)?;
        let mut traces = Vec::new();
        let mut sources = Vec::new();
        for word in &description.traces {
            let (trace, source) = open_trace(path, word)?;
            traces.push(trace);
            sources.push(source);
        }
        // One trace by two names would give two points with one id.
        let names: Vec<&String> = sources.iter().map(|source| &source.name).collect();
        (Lists { path }).check_unique("traces", &names)?;
        let points = grid.points(&sources);
        Ok(Self { traces, points })
    }
}

/// What TOML has to say, in one line with its place.
fn describe(path: &Path, text: &str, error: &toml::de::Error) -> SweepError {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let message = error.message().replace('\n', " ");
    let message = line.map_or_else(|| message.clone(), |line| format!("line {line}: {message}"));
    SweepError::Description { path: path.to_owned(), message }
}

fn open_trace(description: &Path, word: &str) -> Result<(LoadedTrace, Source), XtaskError> {
    let beside: PathBuf = description.parent().unwrap_or(Path::new("")).join(word);
    let file = match TraceFile::find(word) {
        Ok(file) => file,
        Err(unknown) => TraceFile::find(&beside.to_string_lossy()).map_err(|_| unknown)?,
    };
    let trace = LoadedTrace::open(file.path())?;
    let content = fs::read(file.path()).map_err(|source| XtaskError::io("read", file.path(), source))?;
    let source = Source { name: trace.name().to_owned(), content_hash: Sha256::digest(&content).to_vec() };
    Ok((trace, source))
}

/// The lists of a description, read.
struct Grid {
    allocators: Vec<AllocatorName>,
    policies: Vec<PolicyName>,
    rooms: Vec<(String, Room)>,
    granularities: Vec<(String, Granularity)>,
    timings: Vec<Timing>,
    cost_tables: Vec<(String, CostTable)>,
    max_mappings: Vec<Option<u64>>,
}

impl Grid {
    fn new(path: &Path, description: &Description) -> Result<Self, XtaskError> {
        let lists = Lists { path };
        lists.check("traces", &description.traces)?;
        lists.check_unique("event_lags", &description.event_lags)?;
        lists.check_unique("work_seeds", &description.work_seeds)?;
        lists.check_unique("max_mappings", &description.max_mappings)?;
        let allocators: Vec<AllocatorName> = lists.read("allocators", &description.allocators)?;
        lists.check_unique("allocators", &allocators)?;
        let policies = lists.read("policies", &description.policies)?;
        lists.check("capacities", &description.capacities)?;
        let rooms = description.capacities.iter().map(|word| Ok((word.clone(), lists.room(word)?)));
        let rooms = rooms.collect::<Result<_, SweepError>>()?;
        let granularities = lists.read("granularities", &description.granularities)?;
        let granularities = description.granularities.iter().cloned().zip(granularities).collect();
        lists.check("cost_tables", &description.cost_tables)?;
        let measurements = repository_root().join(MEASUREMENTS);
        let mut cost_tables = Vec::new();
        for word in &description.cost_tables {
            cost_tables.push((word.clone(), CostTable::find(word, &measurements)?));
        }
        let (lags, seeds) = (&description.event_lags, &description.work_seeds);
        let mut timings: Vec<Timing> = lags.iter().copied().map(Timing::EventLag).collect();
        timings.extend(seeds.iter().copied().map(Timing::Work));
        if timings.is_empty() {
            timings.push(Timing::EventLag(0));
        }
        let mut max_mappings: Vec<Option<u64>> = description.max_mappings.iter().copied().map(Some).collect();
        if max_mappings.is_empty() {
            max_mappings.push(None);
        }
        let grid = Self { allocators, policies, rooms, granularities, timings, cost_tables, max_mappings };
        let points = grid.count() * description.traces.len() as u128;
        if points > MOST_POINTS {
            return Err(SweepError::TooManyPoints { path: path.to_owned(), points, most: MOST_POINTS }.into());
        }
        Ok(grid)
    }

    /// Points a trace.
    fn count(&self) -> u128 {
        let with_policies: usize =
            self.allocators.iter().map(|allocator| self.policies_of(allocator).len()).sum();
        let lists = [
            self.rooms.len(),
            self.granularities.len(),
            self.timings.len(),
            self.cost_tables.len(),
            self.max_mappings.len(),
        ];
        lists.iter().fold(with_policies as u128, |product, &length| product.saturating_mul(length as u128))
    }

    /// One without policies runs once, whatever policies there are.
    fn policies_of(&self, allocator: &AllocatorName) -> &[PolicyName] {
        if allocator.has_policy() { &self.policies } else { &[PolicyName::Balanced] }
    }

    fn points(&self, sources: &[Source]) -> Vec<Planned> {
        let mut points = Vec::new();
        for (number, source) in sources.iter().enumerate() {
            for &allocator in &self.allocators {
                for &policy in self.policies_of(&allocator) {
                    self.on_devices(|names, room, device| {
                        let [capacity, granularity, timing, cost_table, max_mappings] = names;
                        let policy_name = if allocator.has_policy() { policy.name() } else { "-" };
                        let point = Point {
                            trace: source.name.clone(),
                            allocator: allocator.to_string(),
                            policy: policy_name.to_owned(),
                            capacity,
                            granularity,
                            timing,
                            cost_table,
                            max_mappings,
                        };
                        let id = point.id(&source.content_hash, &format!("{:?}", device.cost_table));
                        points.push(Planned { id, point, trace: number, allocator, policy, room, device });
                    });
                }
            }
        }
        points
    }

    fn on_devices(&self, mut take: impl FnMut([String; 5], Room, DeviceSpec)) {
        for (capacity, room) in &self.rooms {
            for (granularity_word, granularity) in &self.granularities {
                for timing in &self.timings {
                    for (table_word, cost_table) in &self.cost_tables {
                        for max_mappings in &self.max_mappings {
                            let (event_lag, work) = match *timing {
                                Timing::EventLag(lag) => (lag, None),
                                Timing::Work(seed) => (0, Some(seed)),
                            };
                            let device = DeviceSpec {
                                kind: DeviceKind::Emulated,
                                capacity: match *room {
                                    Room::Given(capacity) => capacity,
                                    Room::Searched(_) => DeviceSpec::default().capacity,
                                },
                                granularity: *granularity,
                                event_lag,
                                work,
                                cost_table: cost_table.clone(),
                                max_mappings: *max_mappings,
                            };
                            let mappings =
                                max_mappings.map_or_else(|| "-".to_owned(), |most| most.to_string());
                            let names = [
                                capacity.clone(),
                                granularity_word.clone(),
                                timing.to_string(),
                                table_word.clone(),
                                mappings,
                            ];
                            take(names, *room, device);
                        }
                    }
                }
            }
        }
    }
}

/// Reads the lists of one description.
struct Lists<'a> {
    path: &'a Path,
}

impl Lists<'_> {
    fn wrong(&self, key: &'static str, reason: impl Display) -> SweepError {
        SweepError::Value { path: self.path.to_owned(), key, reason: reason.to_string() }
    }

    /// That something is in it, and nothing twice.
    fn check<T: PartialEq + Display>(&self, key: &'static str, list: &[T]) -> Result<(), SweepError> {
        if list.is_empty() {
            return Err(self.wrong(key, "the list is empty; name one at least"));
        }
        self.check_unique(key, list)
    }

    fn check_unique<T: PartialEq + Display>(&self, key: &'static str, list: &[T]) -> Result<(), SweepError> {
        for (place, word) in list.iter().enumerate() {
            if list[..place].contains(word) {
                return Err(self.wrong(key, format_args!("`{word}` stands there twice")));
            }
        }
        Ok(())
    }

    fn read<T: FromStr<Err: Display>>(
        &self,
        key: &'static str,
        list: &[String],
    ) -> Result<Vec<T>, SweepError> {
        self.check(key, list)?;
        list.iter().map(|word| word.parse().map_err(|error| self.wrong(key, error))).collect()
    }

    fn room(&self, word: &str) -> Result<Room, SweepError> {
        if word == MIN {
            return Ok(Room::Searched(Fineness::default()));
        }
        word.parse().map(Room::Given).map_err(|error| self.wrong("capacities", error))
    }
}

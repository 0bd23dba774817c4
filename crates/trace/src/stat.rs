//! Figures of a trace: what is in it, how much is live and for how long.
//!
//! Main types: [`TraceStat`], [`SizeClass`], [`StreamStat`], [`Lifetimes`]. Neighbours: made from `loaded`; `xtask`
//! prints it.

use crate::event::Letter;
use crate::loaded::{LoadedTrace, Step};

/// Events by letter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    by_letter: [u64; Letter::ALL.len()],
}

impl EventCounts {
    /// Events with this letter.
    pub const fn of(&self, letter: Letter) -> u64 {
        self.by_letter[letter as usize]
    }

    /// All events.
    pub fn total(&self) -> u64 {
        self.by_letter.iter().sum()
    }
}

/// Allocations whose sizes lie between two powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClass {
    /// Smallest size that falls into the class, in bytes: a power of two. Sizes are below twice that.
    pub from_bytes: u64,
    /// Allocations.
    pub allocations: u64,
    /// Their sizes together, in bytes.
    pub bytes: u128,
}

/// What happened on one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamStat {
    /// The trace's number of the stream.
    pub stream: u32,
    /// Allocations on it.
    pub allocations: u64,
    /// Their sizes together, in bytes.
    pub bytes: u128,
    /// Uses of other streams' blocks on it (`u`).
    pub uses: u64,
}

/// How long blocks live, in events from the allocation to the free. Blocks that are never freed are counted apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Blocks that are freed.
    pub freed: u64,
    /// Blocks that are live at the end.
    pub never_freed: u64,
    /// Half of the freed blocks live no longer.
    pub median: u64,
    /// Nine of ten live no longer.
    pub p90: u64,
    /// 99 of a hundred live no longer.
    pub p99: u64,
    /// The longest.
    pub most: u64,
}

/// What is live at some event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveAt {
    /// Bytes, as asked.
    pub bytes: u64,
    /// Blocks.
    pub blocks: u64,
    /// The event, counted from 0.
    pub event: usize,
    /// Its line in the file, counted from 1.
    pub line: u64,
}

/// A mark, and what is live there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MarkStat {
    /// Its text.
    pub label: Box<str>,
    /// What is live.
    pub live: LiveAt,
}

/// A header line that says something else than the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disagreement {
    /// The header's key.
    pub key: &'static str,
    /// Its value.
    pub declared: String,
    /// What the events say.
    pub found: u64,
}

/// Figures of one trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceStat {
    /// The trace's name.
    pub name: String,
    /// Events by letter.
    pub events: EventCounts,
    /// One a stream, ascending; those that only wait are among them, and stream 0 always.
    pub streams: Vec<StreamStat>,
    /// One a power of two that occurs, ascending.
    pub sizes: Vec<SizeClass>,
    /// Smallest allocation in bytes; 0 without allocations.
    pub smallest_bytes: u64,
    /// Largest allocation in bytes.
    pub largest_bytes: u64,
    /// Sizes that differ.
    pub distinct_sizes: u64,
    /// All allocations together, in bytes.
    pub allocated_bytes: u128,
    /// Most live bytes, at the first event that reaches them.
    pub live_peak: LiveAt,
    /// What stays live.
    pub live_at_end: LiveAt,
    /// How long blocks live.
    pub lifetimes: Lifetimes,
    /// One a mark, in order.
    pub marks: Vec<MarkStat>,
    /// The headers `events` and `peak_live`, where they are wrong. A cut-off plain file shows here.
    pub disagreements: Vec<Disagreement>,
}

impl TraceStat {
    /// Measures a trace.
    pub fn of(trace: &LoadedTrace) -> Self {
        let mut count = Count::new(trace);
        for (at, step) in trace.steps().iter().enumerate() {
            count.step(trace, at, *step);
        }
        count.finish(trace)
    }
}

/// The figures while they are counted.
struct Count {
    by_letter: [u64; Letter::ALL.len()],
    streams: Vec<StreamStat>,
    classes: [SizeClass; 64],
    sizes: Vec<u64>,
    allocated_bytes: u128,
    live: LiveAt,
    live_peak: LiveAt,
    /// By slot: the block's size and the event that allocated it.
    blocks: Vec<(u64, usize)>,
    lifetimes: Vec<u64>,
    marks: Vec<MarkStat>,
}

impl Count {
    fn new(trace: &LoadedTrace) -> Self {
        let stream = |stream: &u32| StreamStat { stream: *stream, allocations: 0, bytes: 0, uses: 0 };
        Self {
            by_letter: [0; Letter::ALL.len()],
            streams: trace.streams().iter().map(stream).collect(),
            classes: std::array::from_fn(|at| SizeClass { from_bytes: 1 << at, allocations: 0, bytes: 0 }),
            sizes: Vec::new(),
            allocated_bytes: 0,
            live: LiveAt::default(),
            live_peak: LiveAt::default(),
            blocks: vec![(0, 0); trace.slot_count() as usize],
            lifetimes: Vec::new(),
            marks: Vec::new(),
        }
    }

    fn step(&mut self, trace: &LoadedTrace, at: usize, step: Step) {
        self.by_letter[step.letter() as usize] += 1;
        self.live.event = at;
        self.live.line = trace.line_of(at);
        match step {
            Step::Allocate { slot, stream, bytes } => {
                self.blocks[slot as usize] = (bytes, at);
                let on = &mut self.streams[stream as usize];
                on.allocations += 1;
                on.bytes += u128::from(bytes);
                let class = &mut self.classes[bytes.ilog2() as usize];
                class.allocations += 1;
                class.bytes += u128::from(bytes);
                self.sizes.push(bytes);
                self.allocated_bytes += u128::from(bytes);
                self.live.bytes += bytes;
                self.live.blocks += 1;
                if self.live.bytes > self.live_peak.bytes {
                    self.live_peak = self.live;
                }
            }
            Step::Free { slot } => {
                let (bytes, since) = self.blocks[slot as usize];
                self.live.bytes -= bytes;
                self.live.blocks -= 1;
                self.lifetimes.push((at - since) as u64);
            }
            Step::RecordStream { stream, .. } => self.streams[stream as usize].uses += 1,
            Step::Mark { number } => {
                let label = trace.marks()[number as usize].label.clone();
                self.marks.push(MarkStat { label, live: self.live });
            }
            Step::StreamWait { .. } | Step::Synchronize { .. } | Step::ReleaseCached => {}
        }
    }

    fn finish(mut self, trace: &LoadedTrace) -> TraceStat {
        let events = EventCounts { by_letter: self.by_letter };
        let lifetimes = lifetimes(self.lifetimes, self.live.blocks);
        self.sizes.sort_unstable();
        let (smallest_bytes, largest_bytes) =
            (self.sizes.first().copied().unwrap_or(0), self.sizes.last().copied().unwrap_or(0));
        self.sizes.dedup();
        let disagreements = [("events", events.total()), ("peak_live", self.live_peak.bytes)]
            .into_iter()
            .filter_map(|(key, found)| {
                let declared = trace.header().get(key)?;
                (declared != found.to_string()).then(|| Disagreement {
                    key,
                    declared: declared.to_owned(),
                    found,
                })
            })
            .collect();
        TraceStat {
            name: trace.name().to_owned(),
            events,
            streams: self.streams,
            sizes: self.classes.into_iter().filter(|class| class.allocations > 0).collect(),
            smallest_bytes,
            largest_bytes,
            distinct_sizes: self.sizes.len() as u64,
            allocated_bytes: self.allocated_bytes,
            live_peak: self.live_peak,
            live_at_end: self.live,
            lifetimes,
            marks: self.marks,
            disagreements,
        }
    }
}

fn lifetimes(mut events: Vec<u64>, never_freed: u64) -> Lifetimes {
    events.sort_unstable();
    // The smallest number that `share` percent of them do not pass.
    let percentile = |share: usize| match events.len() {
        0 => 0,
        count => events[(count * share).div_ceil(100) - 1],
    };
    Lifetimes {
        freed: events.len() as u64,
        never_freed,
        median: percentile(50),
        p90: percentile(90),
        p99: percentile(99),
        most: events.last().copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;

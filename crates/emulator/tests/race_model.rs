//! The race detector against a graph of what comes before what, on random programs.
//!
//! Main types: [`Program`], [`Step`], [`Graph`], [`World`]. Neighbours: `races` has the worked examples.
//!
//! The graph has a node for each thing that is queued or seen, and its whole closure: a set of ancestors a node. The detector
//! forgets an access once a later one stands for it. So each report must be a pair that the graph leaves unordered; and
//! for each such pair and each cell of memory in it, the second access must be reported with the first, or with one that
//! comes after the first, in the same cell.

use core::fmt;
use std::collections::{BTreeSet, HashMap};

use concertina_emulator::{
    EmulatedEvent, EmulatedHandle, EmulatedStream, Emulator, EmulatorConfig, EventCompletion, Queued, Race,
    Signal, Work,
};
use concertina_vmm::{Accessor, Address, Driver, FrameProperties};
use proptest::prelude::*;

const PAGE: u64 = 4096;
const CELL: u64 = 512;
const STREAMS: usize = 4;
const EVENTS: usize = 3;
const SIGNALS: usize = 2;
/// The frame behind each page: two of them have two mappings.
const FRAMES: [usize; 6] = [0, 1, 2, 3, 0, 1];
const CELLS: u64 = FRAMES.len() as u64 * (PAGE / CELL);

#[derive(Clone, Debug)]
enum Step {
    /// A kernel that touches cells of the address range; reads come first, then writes.
    Kernel {
        stream: usize,
        reads: (u64, u64),
        writes: (u64, u64),
        awaits: Option<usize>,
        sends: Option<usize>,
    },
    /// A block is handed out: a write.
    Allocate {
        stream: usize,
        cells: (u64, u64),
    },
    Record {
        event: usize,
        stream: usize,
    },
    Wait {
        stream: usize,
        event: usize,
    },
    QueueWait {
        stream: usize,
        on: usize,
    },
    Query {
        event: usize,
    },
    Synchronize {
        event: usize,
    },
    SynchronizeStream {
        stream: usize,
    },
    SynchronizeDevice,
    HostSends {
        signal: usize,
    },
    /// The device runs on, and the host doesn't know.
    Complete {
        stream: usize,
    },
    Advance,
    /// A page loses its mapping, and gets the same frame again.
    Remap {
        page: usize,
    },
}

#[derive(Clone)]
struct Program {
    completion: EventCompletion,
    steps: Vec<Step>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.completion)?;
        self.steps.iter().try_for_each(|step| writeln!(f, "    {step:?},"))
    }
}

fn cells() -> impl Strategy<Value = (u64, u64)> {
    prop_oneof![
        3 => Just((0, 0)),
        4 => (0..CELLS, 1..4_u64).prop_map(|(first, count)| (first, count.min(CELLS - first))),
        2 => (0..FRAMES.len() as u64, 1..3_u64).prop_map(|(page, pages)| {
            let first = page * (PAGE / CELL);
            (first, (pages * (PAGE / CELL)).min(CELLS - first))
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..STREAMS;
    let event = || 0..EVENTS;
    let signal = || prop::option::weighted(0.05, 0..SIGNALS);
    prop_oneof![
        10 => (stream(), cells(), cells(), signal(), signal())
            .prop_map(|(stream, reads, writes, awaits, sends)| Step::Kernel { stream, reads, writes, awaits, sends }),
        1 => (stream(), cells()).prop_map(|(stream, cells)| Step::Allocate { stream, cells }),
        4 => (event(), stream()).prop_map(|(event, stream)| Step::Record { event, stream }),
        4 => (stream(), event()).prop_map(|(stream, event)| Step::Wait { stream, event }),
        2 => (stream(), stream()).prop_map(|(stream, on)| Step::QueueWait { stream, on }),
        2 => event().prop_map(|event| Step::Query { event }),
        1 => event().prop_map(|event| Step::Synchronize { event }),
        1 => stream().prop_map(|stream| Step::SynchronizeStream { stream }),
        1 => Just(Step::SynchronizeDevice),
        1 => (0..SIGNALS).prop_map(|signal| Step::HostSends { signal }),
        1 => stream().prop_map(|stream| Step::Complete { stream }),
        1 => Just(Step::Advance),
        2 => (0..FRAMES.len()).prop_map(|page| Step::Remap { page }),
    ]
}

fn program() -> impl Strategy<Value = Program> {
    let completion = prop_oneof![
        Just(EventCompletion::AtOnce),
        Just(EventCompletion::AfterOperations(3)),
        Just(EventCompletion::ByHand),
        any::<u64>().prop_map(EventCompletion::BySeed),
        Just(EventCompletion::ByClock),
    ];
    (completion, prop::collection::vec(step(), 1..60))
        .prop_map(|(completion, steps)| Program { completion, steps })
}

/// Which access: stream and number in it, as reports say.
type Name = (u32, u64);

/// An access in the model: where it is in the graph, and which cells of frames it reads and writes.
struct Touched {
    name: Name,
    node: usize,
    reads: BTreeSet<(usize, u64)>,
    writes: BTreeSet<(usize, u64)>,
}

impl Touched {
    /// The cells at which one of the two writes.
    fn conflicts(&self, other: &Self) -> BTreeSet<(usize, u64)> {
        let mut cells: BTreeSet<_> = self.writes.intersection(&other.writes).copied().collect();
        cells.extend(self.writes.intersection(&other.reads));
        cells.extend(self.reads.intersection(&other.writes));
        cells
    }
}

/// What comes before what.
#[derive(Default)]
struct Graph {
    /// The ancestors of each node.
    before: Vec<BTreeSet<usize>>,
}

impl Graph {
    fn node(&mut self, parents: impl IntoIterator<Item = Option<usize>>) -> usize {
        let mut before = BTreeSet::new();
        for parent in parents.into_iter().flatten() {
            before.extend(&self.before[parent]);
            before.insert(parent);
        }
        self.before.push(before);
        self.before.len() - 1
    }

    fn is_before(&self, first: usize, second: usize) -> bool {
        self.before[second].contains(&first)
    }
}

struct World {
    emulator: Emulator,
    base: Address,
    handles: Vec<EmulatedHandle>,
    streams: Vec<EmulatedStream>,
    events: Vec<EmulatedEvent>,
    signals: Vec<Signal>,

    graph: Graph,
    /// The last node of each stream, and of the host.
    last: Vec<Option<usize>>,
    host: Option<usize>,
    numbers: Vec<u64>,
    recorded: Vec<Option<usize>>,
    sent: Vec<Option<usize>>,
    touched: Vec<Touched>,
    /// By page, since it was mapped.
    uses: Vec<Vec<usize>>,
    queued: Vec<(usize, Queued)>,
    unmaps: usize,
}

impl World {
    fn new(completion: EventCompletion) -> Self {
        let config = EmulatorConfig::default().with_granularity(PAGE).with_event_completion(completion);
        let emulator = Emulator::new(config).unwrap();
        let base = emulator.reserve(FRAMES.len() as u64 * PAGE, 0).unwrap();
        let handles: Vec<_> =
            (0..4).map(|_| emulator.create(PAGE, &FrameProperties::default()).unwrap()).collect();
        let streams = (0..STREAMS).map(|_| emulator.stream()).collect();
        let events = (0..EVENTS).map(|_| emulator.event_create().unwrap()).collect();
        let signals = (0..SIGNALS).map(|_| emulator.signal()).collect();
        let world = Self {
            emulator,
            base,
            handles,
            streams,
            events,
            signals,
            graph: Graph::default(),
            last: vec![None; STREAMS],
            host: None,
            numbers: vec![0; STREAMS],
            recorded: vec![None; EVENTS],
            sent: vec![None; SIGNALS],
            touched: Vec::new(),
            uses: vec![Vec::new(); FRAMES.len()],
            queued: Vec::new(),
            unmaps: 0,
        };
        (0..FRAMES.len()).for_each(|page| world.map(page));
        world
    }

    fn map(&self, page: usize) {
        let address = self.base.add(page as u64 * PAGE);
        self.emulator.map(address, PAGE, &self.handles[FRAMES[page]]).unwrap();
        self.emulator.set_access(address, PAGE, &[Accessor::Device(0)]).unwrap();
    }

    fn run_of(&self, (first, count): (u64, u64)) -> (Address, u64) {
        (self.base.add(first * CELL), count * CELL)
    }

    fn cells_of((first, count): (u64, u64)) -> BTreeSet<(usize, u64)> {
        let a_page = PAGE / CELL;
        (first..first + count).map(|cell| (FRAMES[(cell / a_page) as usize], cell % a_page)).collect()
    }

    /// A node at the end of a stream.
    fn push(&mut self, stream: usize, also: Option<usize>) -> usize {
        let node = self.graph.node([self.last[stream], self.host, also]);
        self.last[stream] = Some(node);
        node
    }

    fn touch(&mut self, stream: usize, node: usize, reads: (u64, u64), writes: (u64, u64)) {
        self.numbers[stream] += 1;
        let name = (self.streams[stream].number(), self.numbers[stream]);
        let (reads, writes) = (Self::cells_of(reads), Self::cells_of(writes));
        self.touched.push(Touched { name, node, reads, writes });
    }

    fn saw(&mut self, node: Option<usize>) {
        self.host = Some(self.graph.node([self.host, node]));
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Kernel { stream, reads, writes, awaits, sends } => {
                let mut work = Work::new("kernel");
                for (cells, write) in [(reads, false), (writes, true)] {
                    let (address, bytes) = self.run_of(cells);
                    work = if write { work.writing(address, bytes) } else { work.reading(address, bytes) };
                }
                let begin = self.push(stream, None);
                if let Some(signal) = sends {
                    work = work.sending(&self.signals[signal]);
                    // The first sender counts.
                    self.sent[signal].get_or_insert(begin);
                }
                if let Some(signal) = awaits {
                    work = work.awaiting(&self.signals[signal]);
                }
                let node = self.push(stream, awaits.and_then(|signal| self.sent[signal]));
                for (page, uses) in self.uses.iter_mut().enumerate() {
                    let a_page = PAGE / CELL;
                    let (from, to) = (page as u64 * a_page, (page as u64 + 1) * a_page);
                    let there = |(first, count): (u64, u64)| count > 0 && first < to && from < first + count;
                    if there(reads) || there(writes) {
                        uses.push(self.touched.len());
                    }
                }
                self.touch(stream, node, reads, writes);
                self.queued.push((node, self.emulator.queue(&self.streams[stream], work)));
            }
            Step::Allocate { stream, cells } => {
                let node = self.push(stream, None);
                self.touch(stream, node, (0, 0), cells);
                let (address, bytes) = self.run_of(cells);
                self.emulator.block_allocated("block", address, bytes, &self.streams[stream]);
            }
            Step::Record { event, stream } => {
                self.recorded[event] = Some(self.push(stream, None));
                self.emulator.event_record(&self.events[event], &self.streams[stream]).unwrap();
            }
            Step::Wait { stream, event } => {
                self.push(stream, self.recorded[event]);
                self.emulator.stream_wait(&self.streams[stream], &self.events[event]).unwrap();
            }
            Step::QueueWait { stream, on } => {
                self.push(stream, self.last[on]);
                self.emulator.queue_wait(&self.streams[stream], &self.streams[on]);
            }
            Step::Query { event } => {
                if self.emulator.event_query(&self.events[event]).unwrap() {
                    self.saw(self.recorded[event]);
                }
            }
            Step::Synchronize { event } => {
                if self.emulator.event_synchronize(&self.events[event]).is_ok() {
                    self.saw(self.recorded[event]);
                }
            }
            Step::SynchronizeStream { stream } => {
                if self.emulator.synchronize_stream(&self.streams[stream]).is_ok() {
                    self.saw(self.last[stream]);
                }
            }
            Step::SynchronizeDevice => {
                if self.emulator.synchronize_device().is_ok() {
                    let all = self.last.clone();
                    self.host = Some(self.graph.node(all.into_iter().chain([self.host])));
                }
            }
            // Of what a kernel was to send, the host takes the order away.
            Step::HostSends { signal } if self.sent[signal].is_some() => {}
            Step::HostSends { signal } => {
                let host = self.graph.node([self.host]);
                self.sent[signal].get_or_insert(host);
                self.emulator.send(&self.signals[signal]);
            }
            Step::Complete { stream } => self.emulator.complete_stream(&self.streams[stream]),
            Step::Advance => self.emulator.advance(1),
            Step::Remap { page } => self.remap(page),
        }
    }

    fn remap(&mut self, page: usize) {
        let known = self.emulator.races().len();
        self.emulator.unmap(self.base.add(page as u64 * PAGE), PAGE).unwrap();
        let races = self.emulator.races();
        self.unmaps += races.len() - known;
        let reported: BTreeSet<Name> = races[known..]
            .iter()
            .map(|race| match race {
                Race::Unmapped { access, .. } => (access.stream, access.number),
                other => panic!("{other}"),
            })
            .collect();
        let seen = |node: usize| self.host.is_some_and(|host| self.graph.is_before(node, host));
        let uses = std::mem::take(&mut self.uses[page]);
        let unseen: Vec<&Touched> =
            uses.iter().map(|&at| &self.touched[at]).filter(|use_| !seen(use_.node)).collect();
        for name in &reported {
            assert!(unseen.iter().any(|use_| use_.name == *name), "{name:?} was seen done");
        }
        for use_ in &unseen {
            let stands = |other: &&&Touched| {
                reported.contains(&other.name)
                    && (other.node == use_.node || self.graph.is_before(use_.node, other.node))
            };
            assert!(unseen.iter().find(stands).is_some(), "nothing stands for {:?}", use_.name);
        }
        self.map(page);
    }

    /// What is done came after what it waits for.
    fn check_done(&self) {
        let done: HashMap<usize, bool> =
            self.queued.iter().map(|(node, queued)| (*node, self.emulator.is_done(queued))).collect();
        for (node, _) in done.iter().filter(|(_, done)| **done) {
            let early = self.graph.before[*node].iter().find(|before| done.get(before) == Some(&false));
            assert_eq!(early, None, "node {node} is done");
        }
    }

    fn check_races(&self) {
        let mut reported: BTreeSet<(Name, Name)> = BTreeSet::new();
        for race in self.emulator.races() {
            match race {
                Race::Unordered { first, second, .. } => {
                    reported.insert(((first.stream, first.number), (second.stream, second.number)));
                }
                Race::Unmapped { .. } => {}
                other => panic!("{other}"),
            }
        }
        let mut racing: BTreeSet<(Name, Name)> = BTreeSet::new();
        for (at, second) in self.touched.iter().enumerate() {
            for first in &self.touched[..at] {
                if self.graph.is_before(first.node, second.node) {
                    continue;
                }
                let cells = first.conflicts(second);
                if cells.is_empty() {
                    continue;
                }
                racing.insert((first.name, second.name));
                for cell in cells {
                    let stands = |other: &&Touched| {
                        let later = other.node == first.node || self.graph.is_before(first.node, other.node);
                        later
                            && reported.contains(&(other.name, second.name))
                            && other.conflicts(second).contains(&cell)
                    };
                    assert!(
                        self.touched[..at].iter().find(stands).is_some(),
                        "{:?} and {:?} race in {cell:?}, and nothing is reported there",
                        first.name,
                        second.name
                    );
                }
            }
        }
        for pair in &reported {
            assert!(racing.contains(pair), "{pair:?} was reported and is in order");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(3_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn detector_and_graph_agree_on_every_pair(program in program()) {
        let mut world = World::new(program.completion);
        for step in &program.steps {
            world.step(step);
            world.check_done();
        }
        world.check_races();
        prop_assert!(world.unmaps <= world.emulator.races().len());
    }
}

//! Threads that allocate and free side by side: how much do they slow one another?
//!
//! Main types: [`Crew`], [`Sharing`]. Neighbours: `side_by_side` times them while all run;
//! `benches/threads.rs` times them with criterion, `examples/thread_scaling.rs` prints a table of ratios.
//!
//! Every pair finds a place whose pages are all held: a run asserts that no driver call was made. Two variants can only
//! be compared within one run of a program, by turns: what the machine does beside it changes from second to second.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use concertina::{Allocation, Allocator, Config, Layout, Stream};
use concertina_emulator::{Emulator, EmulatorConfig};

use crate::side_by_side::ns_while_all_run;

/// Sizes in bytes that each thread asks for by turns: bins, parts of a page, many pages.
const SIZES: [u64; 4] = [512, 64 << 10, 1 << 20, 20 << 20];

/// Blocks of 64 KiB that stay live on each stream, so that its heaps are not empty.
const NEIGHBOURS: usize = 200;

/// What the threads of a crew have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Nothing: an allocator on a device of its own for each thread. What the machine can do.
    Nothing,
    /// The allocator; each thread has a stream of its own.
    Allocator,
    /// Allocator and stream.
    Stream,
}

impl Sharing {
    /// The name used in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "an allocator each",
            Self::Allocator => "a stream each",
            Self::Stream => "one stream",
        }
    }
}

struct Member {
    device: Emulator,
    allocator: Allocator<Emulator>,
    stream: Stream<Emulator>,
    neighbours: Vec<Allocation<Emulator>>,
}

impl Member {
    fn new() -> Self {
        let device = Emulator::new(EmulatorConfig::default()).expect("a device");
        let allocator = Allocator::new(device.clone(), Config::default()).expect("an allocator");
        let stream = allocator.register_stream(device.stream());
        Self { device, allocator, stream, neighbours: Vec::new() }
    }

    fn on_another_stream(&self) -> Self {
        let (device, allocator) = (self.device.clone(), self.allocator.clone());
        let stream = allocator.register_stream(device.stream());
        Self { device, allocator, stream, neighbours: Vec::new() }
    }

    fn on_the_same_stream(&self) -> Self {
        let (device, allocator) = (self.device.clone(), self.allocator.clone());
        Self { device, allocator, stream: self.stream.clone(), neighbours: Vec::new() }
    }

    fn allocate(&self, bytes: u64) -> Allocation<Emulator> {
        self.allocator.allocate(Layout::new(bytes), &self.stream).expect("the device is large enough")
    }

    fn pairs(&self, pairs: u64) {
        for bytes in SIZES.into_iter().cycle().take(pairs as usize) {
            drop(black_box(self.allocate(bytes)));
        }
    }
}

/// Threads with all that they need to allocate.
pub struct Crew {
    members: Vec<Member>,
}

impl std::fmt::Debug for Crew {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Crew").field("threads", &self.members.len()).finish_non_exhaustive()
    }
}

impl Crew {
    /// So many threads, warm: what they will ask for is held.
    ///
    /// # Panics
    /// If an emulated device can't be made.
    pub fn new(threads: usize, sharing: Sharing) -> Self {
        let first = Member::new();
        let more = (1..threads).map(|_| match sharing {
            Sharing::Nothing => Member::new(),
            Sharing::Allocator => first.on_another_stream(),
            Sharing::Stream => first.on_the_same_stream(),
        });
        let more: Vec<Member> = more.collect();
        let mut members: Vec<Member> = std::iter::once(first).chain(more).collect();
        for member in &mut members {
            member.neighbours = (0..NEIGHBOURS).map(|_| member.allocate(64 << 10)).collect();
        }
        // All at once, since threads on one stream may all have a block of each size at the same time.
        let most: Vec<_> =
            members.iter().flat_map(|member| SIZES.map(|bytes| member.allocate(bytes))).collect();
        drop(most);
        Self { members }
    }

    /// Runs so many pairs of an allocation and its free on each thread. Returns the time from the first one's start to
    /// the last one's end.
    ///
    /// # Panics
    /// If a pair made a driver call.
    pub fn run(&self, pairs: u64) -> Duration {
        let calls =
            || -> u64 { self.members.iter().map(|member| member.device.counts().memory_calls()).sum() };
        let (before, start) = (calls(), Barrier::new(self.members.len()));
        let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
            let start = &start;
            let work = |member: &Member| {
                start.wait();
                let begun = Instant::now();
                member.pairs(pairs);
                (begun, Instant::now())
            };
            let threads: Vec<_> =
                self.members.iter().map(|member| scope.spawn(move || work(member))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no pair fails")).collect()
        });
        assert_eq!(calls(), before, "a pair made a driver call");
        let begun = times.iter().map(|(begun, _)| *begun).min();
        let ended = times.iter().map(|(_, ended)| *ended).max();
        begun.zip(ended).map_or(Duration::ZERO, |(begun, ended)| ended - begun)
    }

    /// Pairs a second of all threads together.
    pub fn pairs_per_second(&self, pairs: u64) -> f64 {
        (self.members.len() as u64 * pairs) as f64 / self.run(pairs).as_secs_f64()
    }

    /// Runs so many pairs on each thread, and returns the ns a pair took while all threads were running, one value for
    /// each chunk: see [`ns_while_all_run`].
    pub fn ns_while_all_run(&self, pairs: u64) -> Vec<f64> {
        let mut loops: Vec<_> = self.members.iter().map(|member| |pairs| member.pairs(pairs)).collect();
        ns_while_all_run(&mut loops, pairs).concat()
    }
}

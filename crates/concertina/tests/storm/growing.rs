//! Growables of a thread.
//!
//! Main type: [`LiveGrowable`]. Neighbours: `actor` has the other steps.
//!
//! Each run of bytes that a growth adds is a block of its own for the race detector: what lay at these addresses before a
//! shrink is somebody else's, and work on it must come before.

use std::sync::Arc;

use concertina::{Address, Growable, StreamId};
use concertina_emulator::{Access, BlockId, EmulatedStream, Piece, Work};

use crate::actor::Actor;
use crate::mutation::{MutantDriver, Mutation};
use crate::op::Op;
use crate::site::{Site, UserStream};

/// What one growth added, as far as it is still there.
struct Run {
    /// From the start of the growable, in bytes.
    start: u64,
    end: u64,
    block: BlockId,
    pieces: Vec<Piece>,
}

pub(crate) struct LiveGrowable {
    growable: Growable<MutantDriver>,
    stream: EmulatedStream,
    readers: Vec<(StreamId, EmulatedStream)>,
    runs: Vec<Run>,
}

impl LiveGrowable {
    fn bytes(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.end)
    }

    /// The streams that use it.
    fn users(&self) -> impl Iterator<Item = &EmulatedStream> {
        self.readers.iter().map(|(_, reader)| reader).chain([&self.stream])
    }

    fn at(&self, offset: u64) -> Address {
        self.growable.address().add(offset)
    }
}

impl Actor {
    fn growable(&mut self, nth: usize) -> Option<&mut LiveGrowable> {
        let index = nth.checked_rem(self.growables.len())?;
        self.growables.get_mut(index)
    }

    pub(crate) fn growable_step(&mut self, op: &Op) {
        let site = Arc::clone(&self.site);
        let page = site.setup.page_bytes;
        match *op {
            Op::Reserve { max, stream } if site.setup.virtual_memory => {
                let streams = site.streams.read();
                let UserStream { registered, own, .. } = &streams[stream];
                match site.allocator.reserve_growable(max.of(page), registered) {
                    Ok(growable) => {
                        let (readers, runs) = (Vec::new(), Vec::new());
                        self.growables.push(LiveGrowable { growable, stream: own.clone(), readers, runs });
                    }
                    Err(error) => site.refused(&error),
                }
            }
            Op::Grow { nth, by } => {
                if let Some(live) = self.growable(nth) {
                    let bytes = (live.bytes() + by.of(page)).min(live.growable.max_bytes());
                    site.grow(live, bytes);
                }
            }
            Op::Shrink { nth, thousandths } => {
                if let Some(live) = self.growable(nth) {
                    site.shrink(live, live.bytes() * thousandths / 1000);
                }
            }
            Op::Share { nth, stream } => {
                if let Some(live) = self.growable(nth) {
                    let streams = site.streams.read();
                    let _untold = site.nobody_tells([&streams[stream].own]);
                    live.readers.push((streams[stream].registered.id(), streams[stream].own.clone()));
                    if site.mutation != Mutation::ForgetUses {
                        live.growable.record_stream(&streams[stream].registered).expect("of this allocator");
                    }
                }
            }
            Op::Discard { nth } => {
                if let Some(index) = nth.checked_rem(self.growables.len()) {
                    let mut live = self.growables.remove(index);
                    // Either as it is, or empty.
                    if nth.is_multiple_of(2) {
                        site.shrink(&mut live, 0);
                    }
                    site.discard(live);
                }
            }
            _ => {}
        }
    }
}

impl Site {
    fn grow(&self, live: &mut LiveGrowable, bytes: u64) {
        let before = live.bytes();
        if bytes == before {
            return;
        }
        let untold = self.nobody_tells([&live.stream]);
        let grown = live.growable.grow_to(bytes);
        drop(untold);
        if let Err(error) = grown {
            assert_eq!(live.growable.bytes(), before, "a growth that fails changes nothing");
            return self.refused(&error);
        }
        assert_eq!(live.growable.bytes(), bytes);
        let (block, pieces) = self.hand_out(&live.stream, live.at(before), bytes - before);
        live.runs.push(Run { start: before, end: bytes, block, pieces });
        self.count("growths");
    }

    /// The streams that use it work on its bytes from `start` on, for the last time.
    fn use_from(&self, live: &LiveGrowable, start: u64, streams: &[UserStream]) {
        let registered = |id: StreamId| streams.iter().any(|user| user.registered.id() == id);
        let readers = live.readers.iter().filter(|(id, _)| registered(*id)).map(|(_, reader)| reader);
        // The program puts its readers behind what was written on the growable's own stream.
        let readers = readers.inspect(|reader| self.emulator.queue_wait(reader, &live.stream));
        for stream in readers.chain([&live.stream]) {
            for run in live.runs.iter().filter(|run| run.end > start) {
                let first = run.start.max(start);
                let read = Access::read(live.at(first), run.end - first).of_block(run.block);
                self.queue(stream, Work::new("last read").touching(read));
            }
        }
    }

    fn shrink(&self, live: &mut LiveGrowable, bytes: u64) {
        let streams = self.streams.read();
        let _untold = self.nobody_tells(live.users());
        self.use_from(live, bytes, &streams);
        let address = live.growable.address();
        // Before the allocator is told, so that nobody else has the bytes by then. A block that loses its end stays one.
        live.runs.retain_mut(|run| {
            let (at, long) = (address.add(run.start), run.end - run.start);
            if run.start >= bytes {
                self.take_back(at, long, &run.pieces);
                self.emulator.block_freed(run.block, &live.stream);
                return false;
            }
            if run.end > bytes {
                run.pieces = self.cut(at, long, bytes - run.start, &run.pieces);
                run.end = bytes;
            }
            true
        });
        live.growable.shrink_to(bytes);
        assert_eq!((live.growable.address(), live.growable.bytes()), (address, bytes));
        self.count("shrinks");
    }

    fn discard(&self, live: LiveGrowable) {
        let streams = self.streams.read();
        let _untold = self.nobody_tells(live.users());
        self.use_from(&live, 0, &streams);
        for run in &live.runs {
            self.take_back(live.at(run.start), run.end - run.start, &run.pieces);
            self.emulator.block_freed(run.block, &live.stream);
        }
        drop(live.growable);
    }
}

//! Which streams use a buffer, and what a further use has to wait for.
//!
//! Main types: [`Uses`], [`Access`], [`Claim`]. Neighbours: `owner` has one for each buffer, behind a lock;
//! `concertina_vmm::Fences` makes the events, keeps them for the next use, and knows which waits are needless.
//!
//! Reads of one buffer need no order among each other; every other pair does. For each stream the last read and the last
//! write are kept, each as the stream's tick at its end, so that no reader hides another.
//!
//! Some uses don't say when they end: a plain `&buffer` as the argument of a kernel is launched later, a copy of
//! cudarc's tells nobody of ours. They stay *open*, and count as ending when somebody has to wait for them. The borrow
//! rules make that right: of two uses that need an order one is a write, which borrows the buffer mutably, and so what
//! comes before it has been queued by then, and so has it itself when the next one comes. Only the parts of a buffer
//! that was split can be used beside each other by two writers: a use by such a part leaves what is open open.

use std::sync::Arc;

use concertina_vmm::{Driver, DriverError, Fences, StreamClock, StreamId, Use};

/// What a use does with the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// How much of the buffer nobody else can use while a use begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// All that a write can touch: who reads has it together with readers only, who writes has it alone.
    Whole,
    /// A part of a buffer whose other parts may be written meanwhile, by other threads as well.
    Part,
}

/// The last uses of one kind on one stream.
#[derive(Debug, Default)]
struct Last {
    tick: Option<u64>,
    // Uses that have begun and not ended.
    open: u32,
}

impl Last {
    fn begin(&mut self) {
        self.open = self.open.saturating_add(1);
    }

    fn end(&mut self, tick: u64) {
        self.open = self.open.saturating_sub(1);
        self.tick = self.tick.max(Some(tick));
    }

    /// The tick that comes after all uses that are queued. With the whole buffer claimed that is all there are: those
    /// that are open end now. Beside others that use their parts, open ones stay open, since they may not be queued
    /// yet.
    fn until<D: Driver>(&mut self, fences: &Fences<D>, stream: StreamId, claim: Claim) -> Option<u64> {
        if self.open == 0 {
            return self.tick;
        }
        // A stream that was forgotten has nothing left to do.
        let now = fences.now(stream).map(|now| now.tick);
        if claim == Claim::Whole {
            *self = Self { tick: now, open: 0 };
        }
        now
    }
}

struct OnStream<K> {
    clock: Arc<StreamClock>,
    read: Last,
    write: Last,
    // While uses are open that nobody else keeps the stream registered for.
    kept: Option<K>,
}

/// The uses of one buffer that something may still have to wait for. `K` keeps a stream registered.
pub(crate) struct Uses<K> {
    // Of the home stream only the writes: its reads leave no trace.
    written_at_home: Last,
    elsewhere: Vec<OnStream<K>>,
}

impl<K> Uses<K> {
    /// Those of a new block. Its allocation is the first write: the home stream may have been made to wait for a use of
    /// the frames elsewhere, and whoever comes next comes after that.
    pub(crate) fn new() -> Self {
        Self { written_at_home: Last { tick: None, open: 1 }, elsewhere: Vec::new() }
    }

    /// Puts what is queued on `stream` from now on after all that it conflicts with, and counts it as begun.
    ///
    /// # Errors
    /// If the driver refuses; then nothing is changed.
    pub(crate) fn begin<D: Driver>(
        &mut self,
        fences: &Fences<D>,
        home: &StreamClock,
        stream: &Arc<StreamClock>,
        access: Access,
        claim: Claim,
    ) -> Result<(), DriverError> {
        let (id, home_id) = (stream.stream(), home.stream());
        let conflicts = self.conflicts(fences, home, Some(id), access, claim);
        for use_ in &conflicts {
            if !fences.is_ordered(id, *use_) {
                // What is over needs no wait, and gives its event back to be used again.
                fences.poll(use_.stream)?;
            }
        }
        fences.wait(id, &conflicts)?;
        if access == Access::Write && claim == Claim::Whole {
            // Whoever waits for this write waits for them, too.
            self.forget_all();
        }
        if id != home_id {
            self.entry(stream).of(access).begin();
        } else if access == Access::Write {
            self.written_at_home.begin();
        }
        Ok(())
    }

    /// Keeps the stream of this clock registered as long as a use there is open. Else its registration could end before
    /// the use is queued, and the event of its end would not cover it.
    pub(crate) fn keep(&mut self, stream: &Arc<StreamClock>, registration: K) {
        self.entry(stream).kept = Some(registration);
    }

    /// What was begun has been queued.
    pub(crate) fn end(&mut self, home: &StreamClock, stream: &Arc<StreamClock>, access: Access) -> Use {
        let now = stream.now();
        if now.stream != home.stream() {
            self.entry(stream).of(access).end(now.tick);
        } else if access == Access::Write {
            self.written_at_home.end(now.tick);
        }
        now
    }

    /// Whoever comes next need not wait for any of the uses so far.
    pub(crate) fn forget_all(&mut self) {
        self.elsewhere.clear();
        self.written_at_home = Last::default();
    }

    /// The uses that one of this kind on the stream with this number, or on none that has one, has to come after.
    pub(crate) fn conflicts<D: Driver>(
        &mut self,
        fences: &Fences<D>,
        home: &StreamClock,
        stream: Option<StreamId>,
        access: Access,
        claim: Claim,
    ) -> Vec<Use> {
        let mut uses = Vec::new();
        if stream != Some(home.stream()) {
            let home_id = home.stream();
            let written = self.written_at_home.until(fences, home_id, claim);
            let tick = match access {
                Access::Read => written,
                Access::Write => Some(home.now().tick),
            };
            uses.extend(tick.map(|tick| Use { stream: home_id, tick }));
        }
        for other in &mut self.elsewhere {
            let id = other.clock.stream();
            if Some(id) == stream {
                continue;
            }
            let mut tick = other.write.until(fences, id, claim);
            if access == Access::Write {
                tick = tick.max(other.read.until(fences, id, claim));
            }
            if other.read.open == 0 && other.write.open == 0 {
                other.kept = None;
            }
            uses.extend(tick.map(|tick| Use { stream: id, tick }));
        }
        uses
    }

    /// The uses that the home stream is not known to come after: what the end of the bytes has to wait for.
    pub(crate) fn outstanding<D: Driver>(&mut self, fences: &Fences<D>, home: &StreamClock) -> Vec<Use> {
        let mut uses = self.conflicts(fences, home, Some(home.stream()), Access::Write, Claim::Whole);
        uses.retain(|use_| !fences.is_ordered(home.stream(), *use_));
        uses
    }

    /// The clocks of the streams of such uses.
    pub(crate) fn clocks(&self, uses: &[Use]) -> impl Iterator<Item = &StreamClock> {
        let of = |on: &&OnStream<K>| uses.iter().any(|use_| use_.stream == on.clock.stream());
        self.elsewhere.iter().filter(of).map(|on| &*on.clock)
    }

    /// Work on the home stream comes before whoever uses the bytes next, which is in no conflict with the uses so far.
    pub(crate) fn note_written_at_home(&mut self) {
        self.written_at_home.begin();
    }

    fn entry(&mut self, stream: &Arc<StreamClock>) -> &mut OnStream<K> {
        let known = self.elsewhere.iter().position(|on| on.clock.stream() == stream.stream());
        let index = known.unwrap_or_else(|| {
            let clock = Arc::clone(stream);
            self.elsewhere.push(OnStream {
                clock,
                read: Last::default(),
                write: Last::default(),
                kept: None,
            });
            self.elsewhere.len() - 1
        });
        &mut self.elsewhere[index]
    }
}

impl<K> OnStream<K> {
    fn of(&mut self, access: Access) -> &mut Last {
        match access {
            Access::Read => &mut self.read,
            Access::Write => &mut self.write,
        }
    }
}

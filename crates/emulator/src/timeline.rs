//! Streams, events and signals: what is queued, and what of it is done.
//!
//! Main types: [`Timeline`], [`Record`]. Neighbours: `device` calls it; `config::EventCompletion` says how work completes,
//! `hang` what a wait without end looks like.
//!
//! A stream is a queue of items: kernels, records of events, waits for other streams. The end of an item is known once
//! those before it have ends, what it waits for has, and the signal that it awaits is sent. Ends are times of one clock,
//! which counts operations or nanoseconds; an item is done when the clock has come to its end. Where work completes by
//! hand or by seed, an item has no end before it is let go, and then it ends at once: there the clock stands still.

use std::borrow::Cow;
use std::collections::VecDeque;

use concertina_vmm::CaptureStatus;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::config::EventCompletion;
use crate::hang::{Hang, HangLink, WaitOrigin};
use crate::program::ClockTimes;
use crate::slab::Slab;
use crate::work::{Position, Work};

/// What an event stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub(crate) at: Position,
    pub(crate) captured: bool,
}

#[derive(Debug)]
enum Task {
    Record,
    Wait { on: Position, origin: WaitOrigin },
    Kernel { name: Cow<'static, str>, ns: u64, awaits: Option<u32>, sends: Option<u32> },
}

#[derive(Debug)]
struct Item {
    task: Task,
    /// It does not begin before.
    floor: u64,
    end: Option<u64>,
}

#[derive(Debug)]
struct Stream {
    /// Items up to this number are done, and gone.
    done: u64,
    /// The others, in order.
    pending: VecDeque<Item>,
    /// How many of these have an end.
    ended: usize,
    /// The last end.
    ready: u64,
    /// Items beyond this number were not let go.
    let_go: u64,
    /// The first item without an end was let go.
    stuck: bool,
    capture: CaptureStatus,
}

impl Stream {
    fn queued(&self) -> u64 {
        self.done + self.pending.len() as u64
    }

    /// The end of an item, if it is known; of one that is gone, 0.
    fn end_of(&self, number: u64) -> Option<u64> {
        let Some(ahead) = number.checked_sub(self.done + 1) else { return Some(0) };
        self.pending.get(ahead as usize)?.end
    }

    fn settle(&mut self, now: u64) {
        while self.pending.front().and_then(|item| item.end).is_some_and(|end| end <= now) {
            self.pending.pop_front();
            self.done += 1;
            self.ended -= 1;
        }
    }
}

#[derive(Debug, Default)]
struct Signalling {
    sent_at: Option<u64>,
    sender: Option<Position>,
}

#[derive(Debug)]
pub(crate) struct Timeline {
    completion: EventCompletion,
    /// Operations, or nanoseconds.
    now: u64,
    /// The latest end of all.
    latest: u64,
    streams: Vec<Stream>,
    /// How many streams are stuck.
    stuck: usize,
    events: Slab<Option<Record>>,
    signals: Vec<Signalling>,
    dice: ChaCha8Rng,
}

impl Timeline {
    pub(crate) fn new(completion: EventCompletion) -> Self {
        let seed = if let EventCompletion::BySeed(seed) = completion { seed } else { 0 };
        Self {
            completion,
            now: 0,
            latest: 0,
            streams: Vec::new(),
            stuck: 0,
            events: Slab::new(),
            signals: Vec::new(),
            dice: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Whether items must be let go before they end.
    const fn holds_back(&self) -> bool {
        matches!(self.completion, EventCompletion::ByHand | EventCompletion::BySeed(_))
    }

    pub(crate) fn add_stream(&mut self) -> u32 {
        self.streams.push(Stream {
            done: 0,
            pending: VecDeque::new(),
            ended: 0,
            ready: 0,
            let_go: if self.holds_back() { 0 } else { u64::MAX },
            stuck: false,
            capture: CaptureStatus::None,
        });
        u32::try_from(self.streams.len() - 1).expect("fewer than 2^32 streams")
    }

    pub(crate) fn stream_count(&self) -> usize {
        self.streams.len()
    }

    pub(crate) fn add_signal(&mut self) -> u32 {
        self.signals.push(Signalling::default());
        u32::try_from(self.signals.len() - 1).expect("fewer than 2^32 signals")
    }

    pub(crate) fn capture(&self, stream: u32) -> CaptureStatus {
        self.streams[stream as usize].capture
    }

    pub(crate) fn set_capture(&mut self, stream: u32, status: CaptureStatus) {
        self.streams[stream as usize].capture = status;
    }

    /// The program queued so many operations.
    pub(crate) fn advance(&mut self, operations: u64) {
        if self.completion != EventCompletion::ByClock {
            self.now = self.now.saturating_add(operations);
        }
        self.draw();
    }

    /// The host was busy for so long.
    pub(crate) fn spend(&mut self, ns: u64) {
        if self.completion == EventCompletion::ByClock {
            self.now = self.now.saturating_add(ns);
        }
    }

    /// The host's clock, if there is one.
    pub(crate) fn host_ns(&self) -> Option<u64> {
        (self.completion == EventCompletion::ByClock).then_some(self.now)
    }

    pub(crate) fn clock(&self) -> ClockTimes {
        match self.completion {
            EventCompletion::ByClock => ClockTimes { host_ns: self.now, device_ns: self.latest },
            _ => ClockTimes::default(),
        }
    }

    pub(crate) fn create_event(&mut self) -> u32 {
        self.events.insert(None).slot
    }

    pub(crate) fn destroy_event(&mut self, event: u32) {
        self.events.remove(event);
    }

    pub(crate) fn event_count(&self) -> u64 {
        self.events.len() as u64
    }

    pub(crate) fn record_of(&self, event: u32) -> Option<Record> {
        *self.events.at(event)
    }

    pub(crate) fn record(&mut self, event: u32, stream: u32) {
        let captured = self.capture(stream) != CaptureStatus::None;
        let at = self.push(stream, Task::Record);
        *self.events.at_mut(event) = Some(Record { at, captured });
    }

    /// What is queued on `stream` from now on is done after the position.
    pub(crate) fn wait(&mut self, stream: u32, on: Position, origin: WaitOrigin) {
        if on.stream != stream && !self.is_done(on) {
            self.push(stream, Task::Wait { on, origin });
        }
    }

    pub(crate) fn queue(&mut self, stream: u32, work: Work) -> Position {
        let Work { name, ns, awaits, sends, accesses: _ } = work;
        let awaits = awaits.map(|signal| signal.index);
        let mut sends = sends.map(|signal| signal.index);
        if let Some(signal) = sends.map(|signal| &mut self.signals[signal as usize]) {
            if signal.sent_at.is_some() || signal.sender.is_some() {
                sends = None;
            } else {
                let number = self.streams[stream as usize].queued() + 1;
                signal.sender = Some(Position { stream, number });
            }
        }
        self.push(stream, Task::Kernel { name, ns, awaits, sends })
    }

    /// The host sends a signal.
    pub(crate) fn send(&mut self, signal: u32) {
        self.signals[signal as usize].sent_at.get_or_insert(self.now);
        self.end_stuck();
    }

    /// The end of what is queued on a stream.
    pub(crate) fn last(&self, stream: u32) -> Position {
        Position { stream, number: self.streams[stream as usize].queued() }
    }

    pub(crate) fn is_done(&mut self, at: Position) -> bool {
        let stream = &mut self.streams[at.stream as usize];
        stream.settle(self.now);
        at.number <= stream.done
    }

    fn push(&mut self, stream: u32, task: Task) -> Position {
        let lag = if let EventCompletion::AfterOperations(lag) = self.completion { lag } else { 0 };
        let floor = match task {
            _ if self.holds_back() => 0,
            Task::Wait { .. } => 0,
            Task::Record | Task::Kernel { .. } => self.now.saturating_add(lag),
        };
        let queue = &mut self.streams[stream as usize];
        queue.pending.push_back(Item { task, floor, end: None });
        let number = queue.queued();
        self.end_items(stream);
        self.streams[stream as usize].settle(self.now);
        self.end_stuck();
        self.draw();
        Position { stream, number }
    }

    /// By seed: up to two streams get one item further.
    pub(crate) fn draw(&mut self) {
        if !matches!(self.completion, EventCompletion::BySeed(_)) || self.streams.is_empty() {
            return;
        }
        for _ in 0..self.dice.random_range(0..=2_u32) {
            let first = self.dice.random_range(0..self.streams.len());
            let mut numbers = (first..self.streams.len()).chain(0..first);
            let waits = |stream: &Stream| stream.let_go < stream.queued();
            let Some(next) = numbers.find(|&number| waits(&self.streams[number])) else { return };
            self.streams[next].let_go += 1;
            self.end_items(next as u32);
            self.end_stuck();
        }
    }

    /// Gives ends to the items of a stream, as far as they can have one. Whether any got one, or a signal was sent.
    fn end_items(&mut self, stream: u32) -> bool {
        let by_clock = self.completion == EventCompletion::ByClock;
        let mut moved = false;
        let stuck = loop {
            let queue = &self.streams[stream as usize];
            let Some(item) = queue.pending.get(queue.ended) else { break false };
            if queue.done + queue.ended as u64 >= queue.let_go {
                break false;
            }
            let start = queue.ready.max(item.floor);
            let end = match item.task {
                Task::Record => Some(start),
                Task::Wait { on, .. } => {
                    self.streams[on.stream as usize].end_of(on.number).map(|end| start.max(end))
                }
                Task::Kernel { ns, awaits, sends, .. } => {
                    if let Some(signal) = sends.map(|signal| &mut self.signals[signal as usize])
                        && signal.sent_at.is_none()
                    {
                        signal.sent_at = Some(start);
                        moved = true;
                    }
                    let sent = awaits.map_or(Some(0), |signal| self.signals[signal as usize].sent_at);
                    sent.map(|sent| start.max(sent).saturating_add(if by_clock { ns } else { 0 }))
                }
            };
            let Some(end) = end else { break true };
            let queue = &mut self.streams[stream as usize];
            queue.pending[queue.ended].end = Some(end);
            queue.ended += 1;
            queue.ready = end;
            self.latest = self.latest.max(end);
            moved = true;
        };
        let queue = &mut self.streams[stream as usize];
        self.stuck = self.stuck + usize::from(stuck) - usize::from(queue.stuck);
        queue.stuck = stuck;
        moved
    }

    /// Looks at the streams that are stuck until none gets further.
    fn end_stuck(&mut self) {
        let mut moved = true;
        while moved && self.stuck > 0 {
            moved = false;
            for stream in 0..self.streams.len() {
                moved |= self.streams[stream].stuck && self.end_items(stream as u32);
            }
        }
    }

    /// Lets everything go that must be done before the position is.
    fn let_go(&mut self, at: Position) {
        if !self.holds_back() {
            return;
        }
        let mut seen = vec![0_u64; self.streams.len()];
        let mut ahead = vec![at];
        while let Some(at) = ahead.pop() {
            let queue = &mut self.streams[at.stream as usize];
            queue.let_go = queue.let_go.max(at.number.min(queue.queued()));
            let seen = &mut seen[at.stream as usize];
            let from = queue.ended.max(seen.saturating_sub(queue.done) as usize);
            let until = at.number.saturating_sub(queue.done) as usize;
            *seen = at.number.max(*seen);
            for item in queue.pending.iter().take(until).skip(from) {
                match item.task {
                    Task::Wait { on, .. } => ahead.push(on),
                    Task::Kernel { awaits: Some(signal), .. } => {
                        let signal = &self.signals[signal as usize];
                        ahead.extend(signal.sender.filter(|_| signal.sent_at.is_none()));
                    }
                    Task::Record | Task::Kernel { .. } => {}
                }
            }
        }
        for stream in 0..self.streams.len() {
            self.end_items(stream as u32);
        }
        self.end_stuck();
    }

    /// The position, and all that it waits for, is done: time passes as far as needed.
    ///
    /// # Errors
    /// If it never can be. As much as could be is let go by then.
    pub(crate) fn complete(&mut self, at: Position) -> Result<(), Hang> {
        self.let_go(at);
        let queue = &mut self.streams[at.stream as usize];
        let Some(end) = queue.end_of(at.number) else { return Err(self.explain(at)) };
        self.now = self.now.max(end);
        queue.settle(self.now);
        Ok(())
    }

    /// All that is queued anywhere is done.
    ///
    /// # Errors
    /// If something never can be. As much as could be is done by then.
    pub(crate) fn complete_all(&mut self) -> Result<(), Hang> {
        for queue in self.streams.iter_mut().filter(|queue| queue.let_go < u64::MAX) {
            queue.let_go = queue.queued();
        }
        if self.holds_back() {
            for stream in 0..self.streams.len() {
                self.end_items(stream as u32);
            }
            self.end_stuck();
        }
        self.now = self.now.max(self.latest);
        match self.streams.iter().position(|stream| stream.stuck) {
            None => Ok(()),
            Some(stream) => Err(self.explain(self.last(stream as u32))),
        }
    }

    /// What keeps the position from being done.
    fn explain(&self, at: Position) -> Hang {
        let mut hang = Hang { stream: at.stream, links: Vec::new() };
        let mut seen = Vec::new();
        let mut next = Some(at);
        while let Some(at) = next.take() {
            let queue = &self.streams[at.stream as usize];
            let Some(item) = queue.pending.get(queue.ended) else { break };
            // Each stream is held up by one item, so that the second visit closes a ring.
            if seen.contains(&at.stream) {
                break;
            }
            seen.push(at.stream);
            match &item.task {
                Task::Record => {}
                Task::Wait { on, origin } => {
                    hang.links.push(HangLink::Wait { stream: at.stream, on: on.stream, origin: *origin });
                    next = Some(*on);
                }
                Task::Kernel { name, awaits, .. } => {
                    let Some(signal) = *awaits else { break };
                    let sender = self.signals[signal as usize].sender;
                    next = sender;
                    let sender = sender.and_then(|at| Some((self.kernel_at(at)?.to_owned(), at.stream)));
                    let kernel = name.clone().into_owned();
                    hang.links.push(HangLink::Signal { kernel, stream: at.stream, signal, sender });
                }
            }
        }
        hang
    }

    fn kernel_at(&self, at: Position) -> Option<&str> {
        let queue = &self.streams[at.stream as usize];
        let ahead = at.number.checked_sub(queue.done + 1)?;
        match &queue.pending.get(ahead as usize)?.task {
            Task::Kernel { name, .. } => Some(name),
            Task::Record | Task::Wait { .. } => None,
        }
    }
}

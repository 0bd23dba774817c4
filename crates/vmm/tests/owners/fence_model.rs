//! A trivial model of fences: every stream's full history, and nothing else.
//!
//! Main types: [`Model`], [`Item`]. Neighbours: `fences` runs programs on it and on the real thing.
//!
//! There are no ticks here. A use is a position in its stream's history; an event covers it if it was recorded further
//! down; a stream comes after it if it waited for something further down. All answers are searches in the history.

use concertina_emulator::EventCompletion;
use concertina_vmm::FenceCounts;

use crate::recorder::{EventCall, Record};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Item {
    /// Work whose memory was freed.
    Use,
    /// An event of the fences, recorded when so many operations were queued.
    Record { now: u64 },
    /// An event of the program's own.
    ProgramRecord { now: u64 },
    /// What follows runs after everything on stream `on` before position `until`; the fences know of what is before `known`.
    Wait { on: usize, until: usize, known: usize },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    items: Vec<Item>,
    /// Everything before this position is seen done.
    seen: usize,
    /// Everything before this position is done; by hand only.
    completed: usize,
    /// Where the first unasked wait is, and what such waits are for.
    unasked: Option<(usize, Vec<ModelUse>)>,
    /// Nothing is queued from here on; once this position is seen done, a stream to be forgotten is.
    pub(crate) left: Option<usize>,
    to_be_forgotten: bool,
    pub(crate) forgotten: bool,
}

/// A use: the stream, and the position in its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModelUse {
    pub(crate) stream: usize,
    pub(crate) at: usize,
}

/// The driver refused.
#[derive(Debug)]
pub(crate) struct Refused;

#[derive(Debug)]
pub(crate) struct Model {
    completion: EventCompletion,
    /// Operations queued.
    now: u64,
    pub(crate) streams: Vec<History>,
    /// To be forgotten and not yet, in the order of the asking.
    leaving: Vec<usize>,
    pub(crate) counts: FenceCounts,
    /// Events that are recorded nowhere and can be used again.
    spare: usize,
    /// Calls that reached the driver.
    pub(crate) calls: Vec<EventCall>,
    /// Which call from now on the driver refuses; 1 is the next.
    pub(crate) failing: Option<u64>,
}

impl Model {
    pub(crate) fn new(completion: EventCompletion) -> Self {
        Self {
            completion,
            now: 0,
            streams: Vec::new(),
            leaving: Vec::new(),
            counts: FenceCounts::default(),
            spare: 0,
            calls: Vec::new(),
            failing: None,
        }
    }

    fn call(&mut self, call: EventCall) -> Result<(), Refused> {
        self.calls.push(call);
        self.failing = self.failing.map(|nth| nth.saturating_sub(1));
        match self.failing {
            Some(0) => {
                self.failing = None;
                Err(Refused)
            }
            _ => Ok(()),
        }
    }

    // --- the device -------------------------------------------------------------------------------------------------

    pub(crate) fn advance(&mut self, operations: u64) {
        self.now += operations;
    }

    /// When everything before `until` on the stream is done at the earliest, in operations.
    fn due(&self, stream: usize, until: usize) -> u64 {
        let lag = if let EventCompletion::AfterOperations(lag) = self.completion { lag } else { 0 };
        let due = self.streams[stream].items[..until].iter().map(|item| match *item {
            Item::Use => 0,
            Item::Record { now } | Item::ProgramRecord { now } => now + lag,
            Item::Wait { on, until, .. } => self.due(on, until),
        });
        due.max().unwrap_or(0)
    }

    fn is_complete(&self, stream: usize, at: usize) -> bool {
        match self.completion {
            EventCompletion::ByHand => at < self.streams[stream].completed,
            _ => self.due(stream, at + 1) <= self.now,
        }
    }

    /// The device runs the stream up to `until`, and what that waits for; or time passes until it has.
    fn complete(&mut self, stream: usize, until: usize) {
        if self.completion != EventCompletion::ByHand {
            self.now = self.now.max(self.due(stream, until));
            return;
        }
        let history = &mut self.streams[stream];
        history.completed = history.completed.max(until);
        for at in 0..until {
            if let Item::Wait { on, until, .. } = self.streams[stream].items[at] {
                self.complete(on, until);
            }
        }
    }

    pub(crate) fn complete_stream(&mut self, stream: usize) {
        self.complete(stream, self.streams[stream].items.len());
    }

    // --- what is known ----------------------------------------------------------------------------------------------

    pub(crate) fn is_done(&self, use_: ModelUse) -> bool {
        self.streams[use_.stream].forgotten || use_.at < self.streams[use_.stream].seen
    }

    pub(crate) fn is_ordered(&self, waiter: usize, use_: ModelUse) -> bool {
        let waits = |item: &Item| matches!(*item, Item::Wait { on, known, .. } if on == use_.stream && known > use_.at);
        waiter == use_.stream
            || self.is_done(use_)
            || (!self.streams[waiter].forgotten && self.streams[waiter].items.iter().any(waits))
    }

    /// Positions of the events on a stream, oldest first.
    fn records(&self, stream: usize) -> impl Iterator<Item = (Record, usize)> + '_ {
        let items = self.streams[stream].items.iter().enumerate();
        let records = items.filter(|(_, item)| matches!(item, Item::Record { .. }));
        (0..).zip(records).map(move |(nth, (at, _))| (Record { stream, nth }, at))
    }

    /// The earliest event that covers the use.
    fn cover_of(&self, use_: ModelUse) -> Option<(Record, usize)> {
        self.records(use_.stream).find(|(_, at)| *at > use_.at)
    }

    fn see(&mut self, stream: usize, until: usize) {
        let seen = self.streams[stream].seen;
        self.spare += self.records(stream).filter(|(_, at)| (seen..until).contains(at)).count();
        self.streams[stream].seen = seen.max(until);
        self.forget_if_over(stream);
    }

    fn forget_if_over(&mut self, stream: usize) {
        let history = &mut self.streams[stream];
        if history.to_be_forgotten && history.left.is_some_and(|left| left < history.seen) {
            history.forgotten = true;
            self.leaving.retain(|leaving| *leaving != stream);
        }
    }

    // --- the calls --------------------------------------------------------------------------------------------------

    pub(crate) fn use_now(&mut self, stream: usize) -> ModelUse {
        self.streams[stream].items.push(Item::Use);
        ModelUse { stream, at: self.streams[stream].items.len() - 1 }
    }

    pub(crate) fn poll(&mut self, stream: usize) -> Result<(), Refused> {
        if self.streams[stream].forgotten {
            return Ok(());
        }
        let seen = self.streams[stream].seen;
        let records: Vec<_> = self.records(stream).filter(|(_, at)| *at >= seen).collect();
        for (record, at) in records {
            self.call(EventCall::Query(record))?;
            if !self.is_complete(stream, at) {
                return Ok(());
            }
            self.see(stream, at + 1);
            if self.streams[stream].forgotten {
                return Ok(());
            }
        }
        Ok(())
    }

    fn record(&mut self, stream: usize) -> Result<(), Refused> {
        if self.spare > 0 {
            self.spare -= 1;
        } else {
            self.call(EventCall::Create)?;
        }
        if let Err(refused) = self.call(EventCall::Record(stream)) {
            self.spare += 1;
            return Err(refused);
        }
        self.streams[stream].items.push(Item::Record { now: self.now });
        self.counts.records += 1;
        Ok(())
    }

    pub(crate) fn cover(&mut self, use_: ModelUse) -> Result<(), Refused> {
        if self.is_done(use_) || self.cover_of(use_).is_some() { Ok(()) } else { self.record(use_.stream) }
    }

    pub(crate) fn wait(&mut self, waiter: usize, uses: &[ModelUse]) -> Result<(), Refused> {
        for &use_ in uses {
            if self.is_ordered(waiter, use_) || self.streams[waiter].forgotten {
                continue;
            }
            self.cover(use_)?;
            let (on, at) = self.cover_of(use_).expect("it was just covered");
            self.call(EventCall::Wait { waiter, on })?;
            let history = &mut self.streams[waiter];
            history.items.push(Item::Wait { on: use_.stream, until: at + 1, known: at + 1 });
            self.counts.waits += 1;
            if history.left.is_some() {
                self.leave_now(waiter);
            }
        }
        Ok(())
    }

    pub(crate) fn host_wait(&mut self, stream: usize) -> Result<(), Refused> {
        if self.streams[stream].forgotten {
            return Ok(());
        }
        // Behind everything that is queued, unless an event is there already.
        let last = self.streams[stream].left.unwrap_or(self.streams[stream].items.len());
        self.cover(ModelUse { stream, at: last })?;
        let seen = self.streams[stream].seen;
        let Some((record, at)) = self.records(stream).filter(|(_, at)| *at >= seen).last() else {
            return Ok(());
        };
        self.call(EventCall::Query(record))?;
        if !self.is_complete(stream, at) {
            self.call(EventCall::Synchronize(record))?;
            self.complete(stream, at + 1);
            self.counts.host_waits += 1;
        }
        self.see(stream, at + 1);
        Ok(())
    }

    /// The program recorded an event on `on` and made `waiter` wait for it.
    pub(crate) fn note_wait(&mut self, waiter: usize, on: usize) {
        self.streams[on].items.push(Item::ProgramRecord { now: self.now });
        let until = self.streams[on].items.len();
        let known = self.told(on);
        self.streams[waiter].items.push(Item::Wait { on, until, known });
    }

    /// The program made the host wait for the stream.
    pub(crate) fn note_synchronized(&mut self, stream: usize) {
        self.complete_stream(stream);
        if !self.streams[stream].forgotten {
            let until = self.told(stream);
            self.see(stream, until);
        }
    }

    /// The same wait for a stream whose program knows nothing of it. A part that the driver refused holds nothing up.
    pub(crate) fn wait_unasked(&mut self, waiter: usize, uses: &[ModelUse]) -> Result<(), Refused> {
        let new: Vec<ModelUse> =
            uses.iter().copied().filter(|use_| !self.is_ordered(waiter, *use_)).collect();
        let at = self.streams[waiter].items.len();
        let waited = self.wait(waiter, uses);
        let put_in: Vec<ModelUse> = new.into_iter().filter(|use_| self.is_ordered(waiter, *use_)).collect();
        if !put_in.is_empty() {
            self.streams[waiter].unasked.get_or_insert((at, Vec::new())).1.extend(put_in);
        }
        waited
    }

    /// Up to where the program may tell of the stream: everything queued so far, but for what is behind an unasked wait
    /// whose uses are not seen done.
    fn told(&mut self, stream: usize) -> usize {
        let all = self.streams[stream].items.len();
        let Some((at, mut uses)) = self.streams[stream].unasked.take() else { return all };
        for use_ in &uses {
            let _ = self.poll(use_.stream);
        }
        uses.retain(|use_| !self.is_done(*use_));
        if uses.is_empty() {
            return all;
        }
        self.streams[stream].unasked = Some((at, uses));
        at
    }

    /// A position of its own behind everything that is queued.
    fn leave_now(&mut self, stream: usize) {
        self.streams[stream].left = Some(self.use_now(stream).at);
    }

    pub(crate) fn leave(&mut self, stream: usize) -> Result<(), Refused> {
        if self.streams[stream].forgotten {
            return Ok(());
        }
        if self.streams[stream].left.is_none() {
            self.leave_now(stream);
        }
        let at = self.streams[stream].left.expect("it left");
        self.cover(ModelUse { stream, at })?;
        self.poll(stream)
    }

    pub(crate) fn forget(&mut self, stream: usize) {
        if self.streams[stream].forgotten {
            return;
        }
        if self.streams[stream].left.is_none() {
            self.leave_now(stream);
        }
        self.streams[stream].to_be_forgotten = true;
        if !self.leaving.contains(&stream) {
            self.leaving.push(stream);
        }
        self.forget_if_over(stream);
    }

    pub(crate) fn poll_leaving(&mut self) -> Result<(), Refused> {
        self.leaving.clone().into_iter().try_for_each(|stream| self.poll(stream))
    }
}

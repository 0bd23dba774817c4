//! What a replay is asked to note on its way, and the noting.
//!
//! Main types: [`Watch`], [`Sample`], [`Observation`], `Watcher`. Neighbours: `replay` calls the watcher after each
//! event, `picture` has what memory looked like at one of them; the benches draw both.

use concertina_emulator::Counts;

use crate::device::ReplayDevice;
use crate::loaded::{LoadedTrace, Step};
use crate::picture::{Picture, PictureBlock};

/// Which events of a trace are sampled, and at which one a picture of memory is taken.
///
/// The events depend on the trace alone, so that allocators can be compared event by event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watch {
    /// Ascending.
    events: Vec<usize>,
    moment: Option<usize>,
}

impl Watch {
    /// Two events in each of `windows` equal parts of the trace, those after which the fewest and the most bytes are
    /// live, and also every mark and the last event. So the live peak is among them, and no peak in between is lost.
    pub fn evenly(trace: &LoadedTrace, windows: usize) -> Self {
        let steps = trace.steps();
        let length = steps.len().div_ceil(windows.max(1)).max(1);
        let mut sizes = vec![0; trace.slot_count() as usize];
        let mut live = 0_u64;
        let mut events: Vec<usize> = trace.marks().iter().map(|mark| mark.event).collect();
        events.extend(steps.len().checked_sub(1));
        for (window, steps) in steps.chunks(length).enumerate() {
            let (mut fewest, mut most) = ((u64::MAX, 0), (0, window * length));
            for (event, step) in (window * length..).zip(steps) {
                match *step {
                    Step::Allocate { slot, bytes, .. } => {
                        sizes[slot as usize] = bytes;
                        live += bytes;
                    }
                    Step::Free { slot } => live -= sizes[slot as usize],
                    _ => {}
                }
                if live < fewest.0 {
                    fewest = (live, event);
                }
                if live > most.0 {
                    most = (live, event);
                }
            }
            events.extend([fewest.1, most.1]);
        }
        events.sort_unstable();
        events.dedup();
        Self { events, moment: None }
    }

    /// The same with a picture of memory after this event, counted from 0; if the replay does not come so far, of what
    /// it left.
    #[must_use]
    pub const fn with_picture(mut self, event: usize) -> Self {
        self.moment = Some(event);
        self
    }

    /// The events that are sampled, ascending, counted from 0.
    pub fn events(&self) -> &[usize] {
        &self.events
    }
}

/// How things stood after an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The event, counted from 0.
    pub event: usize,
    /// Live bytes, as asked.
    pub live_bytes: u64,
    /// Physical bytes not given back to the driver.
    pub mapped_bytes: u64,
    /// Bytes of addresses that reservations take.
    pub reserved_bytes: u64,
}

impl Sample {
    const fn new(event: usize, live_bytes: u64, counts: &Counts) -> Self {
        let (mapped_bytes, reserved_bytes) = (counts.mapped_bytes, counts.reserved_bytes);
        Self { event, live_bytes, mapped_bytes, reserved_bytes }
    }
}

/// What was noted in a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// At the events of the [`Watch`], as far as the replay came, and at most one between two of them: that with the
    /// most mapped bytes, where these are more than at both. What an event takes and gives back again before it ends is
    /// in none.
    pub samples: Vec<Sample>,
    /// Memory at the moment that was asked for.
    pub picture: Option<Picture>,
}

/// Notes what a [`Watch`] asks for.
#[derive(Debug)]
pub(crate) struct Watcher<'a> {
    watch: &'a Watch,
    /// How many of the watch's events are behind.
    behind: usize,
    /// Of those since the last sample, that with the most mapped bytes.
    highest: Option<Sample>,
    observation: Observation,
}

impl<'a> Watcher<'a> {
    pub(crate) fn new(watch: &'a Watch) -> Self {
        let samples = Vec::with_capacity(2 * watch.events.len());
        Self { watch, behind: 0, highest: None, observation: Observation { samples, picture: None } }
    }

    /// Whether a picture is to be taken after this event.
    pub(crate) fn wants_picture(&self, event: usize) -> bool {
        self.watch.moment == Some(event)
    }

    /// The event was replayed.
    pub(crate) fn after(&mut self, event: usize, live_bytes: u64, counts: &Counts) {
        if self.watch.events.get(self.behind) == Some(&event) {
            self.behind += 1;
            self.add(event, live_bytes, counts);
        } else if self.highest.is_none_or(|highest| highest.mapped_bytes < counts.mapped_bytes) {
            self.highest = Some(Sample::new(event, live_bytes, counts));
        }
    }

    /// Adds the sample, and before it the highest since the last one if that stands out.
    fn add(&mut self, event: usize, live_bytes: u64, counts: &Counts) {
        let sample = Sample::new(event, live_bytes, counts);
        let samples = &mut self.observation.samples;
        let before = samples.last().map_or(0, |sample| sample.mapped_bytes);
        if let Some(highest) = self.highest.take()
            && highest.mapped_bytes > before.max(sample.mapped_bytes)
        {
            samples.push(highest);
        }
        samples.push(sample);
    }

    /// Takes the picture after this event.
    pub(crate) fn take_picture(
        &mut self,
        event: usize,
        counts: &Counts,
        device: &dyn ReplayDevice,
        blocks: Vec<PictureBlock>,
    ) {
        self.observation.picture = Some(Picture::take(event, counts, device, blocks));
    }

    /// What was noted, of a replay of so many events. The last one is a sample, and if the moment for the picture never
    /// came it shows what there is now.
    pub(crate) fn finish(
        mut self,
        events: usize,
        live_bytes: u64,
        device: &dyn ReplayDevice,
        blocks: impl FnOnce() -> Vec<PictureBlock>,
    ) -> Observation {
        let counts = device.counts();
        if events > self.observation.samples.last().map_or(0, |sample| sample.event + 1) {
            self.add(events - 1, live_bytes, &counts);
        }
        if self.watch.moment.is_some() && self.observation.picture.is_none() {
            self.take_picture(events.saturating_sub(1), &counts, device, blocks());
        }
        self.observation
    }
}

#[cfg(test)]
mod tests;

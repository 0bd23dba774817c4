//! Streams that capture: what the fences leave alone meanwhile.
//!
//! Main types: [`BeginCapture`], and the half of [`Fences`] that deals in captures. Neighbours: a scope of the face
//! begins and ends; `fence` asks before it records or waits.
//!
//! Work on a capturing stream does not run: it becomes part of a graph, which runs later, on whichever stream it is
//! launched. An event recorded there marks a place in the graph: the host may neither ask nor wait for it, and a stream
//! outside that waits for it would be drawn into the capture. Nor may the capturing stream wait for anything outside.
//! (CUDA driver API, "stream management", `cuStreamBeginCapture`; CUDA programming guide, "cross-stream dependencies
//! and events".) So, while a stream captures:
//!
//! - No event is recorded on it. What an earlier event does not cover counts as not done until the capture has ended.
//! - It is made to wait for nothing, and of memory that others used it may take only what is seen done: what its own
//!   work was before is no order for the graph, which may be launched on another stream.
//! - What streams of a capture are told to wait for holds in the graph only, and is forgotten at the end.

use super::known::Known;
use super::{Fences, Inner, Timeline, Use};
use crate::driver::{CaptureStatus, Driver};
use crate::error::{Call, DriverError, DriverErrorKind};
use crate::units::StreamId;

/// A capture on a stream.
pub(super) struct Capture {
    /// What the stream came after when it began.
    known: Known,
    /// The last tick before it: what is queued later is a graph's.
    since: u64,
    /// Nobody tells when it ends: the driver has to be asked.
    left: bool,
}

/// How the beginning of a capture was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginCapture {
    /// The stream counts as capturing from now on.
    Begun,
    /// It does already.
    Twice,
    /// The stream's capture was broken by an illegal call, and must be ended first.
    Broken,
}

impl<D: Driver> Timeline<D> {
    fn end_capture(&mut self) {
        if let Some(capture) = self.capture.take() {
            self.known = capture.known;
        }
    }
}

impl<D: Driver> Inner<D> {
    pub(super) fn captures(&self, stream: StreamId) -> bool {
        self.timeline(stream).is_some_and(|timeline| timeline.capture.is_some())
    }
}

/// What is refused while the stream captures.
pub(super) fn in_capture(call: Call, stream: StreamId) -> DriverError {
    let why = format!(
        "stream {} captures a graph: no event is recorded on it and nothing is waited for; end the capture first",
        stream.get()
    );
    DriverError::new(DriverErrorKind::NotReady, call, why)
}

impl<D: Driver> Fences<D> {
    /// The stream captures from now on, or is about to. If it does not yet, an event covers all that was queued there
    /// before, so that others can see it done meanwhile.
    ///
    /// # Errors
    /// If the driver would not say whether the stream captures, or not record the event; nothing has changed then.
    pub fn begin_capture(&self, stream: StreamId) -> Result<BeginCapture, DriverError> {
        let mut inner = self.inner.lock();
        self.settle_left(&mut inner, stream)?;
        let Some(timeline) = inner.timeline(stream) else { return Ok(BeginCapture::Begun) };
        if timeline.capture.is_some() {
            return Ok(BeginCapture::Twice);
        }
        let last = timeline.now();
        match self.device.capture_status(&timeline.stream)? {
            CaptureStatus::Invalidated => return Ok(BeginCapture::Broken),
            CaptureStatus::None => self.cover_locked(&mut inner, last)?,
            // No event can cover what was queued before: it can be seen done only after the capture.
            CaptureStatus::Active => drop(timeline.clock.end_tick()),
        }
        if let Some(timeline) = inner.timeline_mut(stream) {
            let known = std::mem::take(&mut timeline.known);
            let since = timeline.clock.now().tick - 1;
            timeline.capture = Some(Capture { known, since, left: false });
        }
        Ok(BeginCapture::Begun)
    }

    /// The stream's capture has ended. Returns whether it has: if not, the stream counts as capturing until the driver
    /// says that it does not, and is asked before the next event.
    ///
    /// # Errors
    /// If the driver would not say; it is asked again later.
    pub fn end_capture(&self, stream: StreamId) -> Result<bool, DriverError> {
        let mut inner = self.inner.lock();
        if let Some(capture) = inner.timeline_mut(stream).and_then(|timeline| timeline.capture.as_mut()) {
            capture.left = true;
        }
        self.settle_left(&mut inner, stream)?;
        Ok(!inner.captures(stream))
    }

    /// Whether the stream counts as capturing, after a question to the driver if nobody tells when it ends.
    ///
    /// # Errors
    /// The driver's.
    pub fn look_at_capture(&self, stream: StreamId) -> Result<bool, DriverError> {
        let mut inner = self.inner.lock();
        self.settle_left(&mut inner, stream)?;
        Ok(inner.captures(stream))
    }

    /// Whether the stream counts as capturing. Makes no driver call.
    pub fn captures(&self, stream: StreamId) -> bool {
        self.inner.lock().captures(stream)
    }

    /// The part of a use that runs: of one that ends in a capture which has not ended, what was queued before the capture.
    pub fn that_runs(&self, use_: Use) -> Use {
        let inner = self.inner.lock();
        let capture = inner.timeline(use_.stream).and_then(|timeline| timeline.capture.as_ref());
        Use { tick: capture.map_or(use_.tick, |capture| use_.tick.min(capture.since)), ..use_ }
    }

    /// What the driver says of the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn capture_status(&self, stream: StreamId) -> Result<CaptureStatus, DriverError> {
        let Some(stream) = self.inner.lock().timeline(stream).map(|timeline| timeline.stream.clone()) else {
            return Ok(CaptureStatus::None);
        };
        self.device.capture_status(&stream)
    }

    /// Where nobody tells when a capture ends, the driver is asked.
    pub(super) fn settle_left(&self, inner: &mut Inner<D>, stream: StreamId) -> Result<(), DriverError> {
        let Some(timeline) = inner.timeline_mut(stream) else { return Ok(()) };
        if timeline.capture.as_ref().is_some_and(|capture| capture.left)
            && self.device.capture_status(&timeline.stream)? == CaptureStatus::None
        {
            timeline.end_capture();
        }
        Ok(())
    }
}

//! What comes before what, as far as it is known: the questions that thieves and plans ask.
//!
//! Main type: [`Order`]. Neighbours: `fence` keeps the timelines, and hands an order out under its lock.

use core::fmt;

use super::{Inner, Use};
use crate::cross_stream::CrossStream;
use crate::driver::Driver;
use crate::units::StreamId;

/// The order that is known now, from the view of one stream.
pub struct Order<'a, D: Driver> {
    pub(super) inner: &'a Inner<D>,
    pub(super) waiter: StreamId,
}

impl<D: Driver> fmt::Debug for Order<'_, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order").field("waiter", &self.waiter).finish_non_exhaustive()
    }
}

impl<D: Driver> Order<'_, D> {
    /// Whether the use is seen done.
    pub fn is_done(&self, use_: Use) -> bool {
        self.inner.is_done(use_)
    }

    /// Whether the use is of the stream itself, or of one that was forgotten and is nobody's.
    pub fn is_own(&self, use_: Use) -> bool {
        use_.stream == self.waiter || self.inner.timeline(use_.stream).is_none()
    }

    /// Whether work queued on the stream from now on comes after the use with no further wait. While the stream captures,
    /// that work is a graph's, which may be launched elsewhere: what the stream did before is no order for it.
    pub fn is_before(&self, use_: Use) -> bool {
        (use_.stream == self.waiter && !self.inner.captures(self.waiter))
            || self.inner.is_done(use_)
            || self.inner.timeline(self.waiter).is_some_and(|timeline| timeline.known.covers(use_))
    }

    /// The rule that holds between the stream and another one. While one of them captures, neither waits for the other.
    pub fn rule(&self, other: StreamId) -> CrossStream {
        let of = |stream| match self.inner.timeline(stream) {
            None => CrossStream::DeviceWait,
            Some(timeline) if timeline.capture.is_some() => timeline.rule.min(CrossStream::Completed),
            Some(timeline) => timeline.rule,
        };
        of(self.waiter).min(of(other))
    }

    /// Whether the stream may take a frame with such a last use, by a wait on the device if need be.
    /// While it captures: if the use is seen done.
    pub fn may_take(&self, use_: Use) -> bool {
        if self.inner.captures(self.waiter) && !self.is_done(use_) {
            return false;
        }
        match self.rule(use_.stream) {
            CrossStream::Never => self.is_own(use_),
            CrossStream::Completed => self.is_before(use_),
            CrossStream::DeviceWait => true,
        }
    }

    /// Whether the stream comes after the use, or may be made to by a wait on the device.
    pub fn may_follow(&self, use_: Use) -> bool {
        self.is_before(use_) || self.rule(use_.stream) == CrossStream::DeviceWait
    }

    /// What the host would have to wait for before the stream may take a frame with such a last use: `None` if it may
    /// already, or never will by a wait. Under [`CrossStream::Never`] that is the end of a stream that was retired: once
    /// all of it is done, its frames are nobody's.
    pub fn awaited(&self, use_: Use) -> Option<Use> {
        if self.may_take(use_) || !self.can_wait_for(use_) {
            return None;
        }
        match self.rule(use_.stream) {
            CrossStream::Never => {
                self.end_of(use_.stream).filter(|&end| !self.is_done(end) && self.can_wait_for(end))
            }
            CrossStream::Completed | CrossStream::DeviceWait => Some(use_),
        }
    }

    /// Whether memory of another stream can ever come to this one: under [`CrossStream::Never`], once that one is retired.
    pub fn may_ever_take_of(&self, other: StreamId) -> bool {
        self.rule(other) != CrossStream::Never || self.end_of(other).is_some()
    }

    /// The last use of a stream that is to be forgotten.
    fn end_of(&self, stream: StreamId) -> Option<Use> {
        self.inner.timeline(stream)?.last.map(|tick| Use { stream, tick })
    }

    /// Whether the host may wait for the use: not for one in a capture.
    pub fn can_wait_for(&self, use_: Use) -> bool {
        self.inner.timeline(use_.stream).is_none_or(|timeline| timeline.can_show(use_))
    }
}

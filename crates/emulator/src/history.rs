//! Who touched the bytes of one frame last.
//!
//! Main types: [`History`], [`Touch`]. Neighbours: `detector` has one a frame.
//!
//! An access that comes after others of the same bytes stands for them: whatever comes after it comes after them as well,
//! and whatever doesn't is found by it. So a run of bytes remembers only accesses that nothing orders among one another,
//! at most one read and one write a stream; in right programs that is one write, or the reads behind it. (Flanagan and
//! Freund, "FastTrack", PLDI 2009, do the same with one write.) A frame that is touched as a whole is one run.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use crate::clock::{Clock, Stamp};
use crate::work::AccessKind;

/// An access as a history keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Touch {
    pub(crate) stamp: Stamp,
    /// The detector's number of it.
    pub(crate) access: u32,
    /// The address by which it reached the frame's first byte.
    pub(crate) base: u64,
}

type Touches = SmallVec<[Touch; 1]>;

/// What is remembered of a run of bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cell {
    writes: Touches,
    reads: Touches,
}

impl Cell {
    fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.reads.is_empty()
    }

    /// Whether nothing but this write is left of it.
    fn is_only(&self, write: Touch) -> bool {
        self.reads.is_empty() && self.writes[..] == [write]
    }

    fn touch(&mut self, kind: AccessKind, me: Touch, clock: &Clock, mut found: impl FnMut(Touch)) {
        let unordered = |other: &Touch| !clock.covers(other.stamp);
        self.writes.iter().copied().filter(unordered).for_each(&mut found);
        match kind {
            AccessKind::Write => {
                self.reads.iter().copied().filter(unordered).for_each(&mut found);
                self.writes.retain(|other| unordered(other));
                self.reads.retain(|other| unordered(other));
                self.writes.push(me);
            }
            AccessKind::Read => {
                self.reads.retain(|other| unordered(other));
                self.reads.push(me);
            }
        }
    }

    fn prune(&mut self, done: &Clock, mut kept: impl FnMut(u32)) {
        for touches in [&mut self.writes, &mut self.reads] {
            touches.retain(|touch| !done.covers(touch.stamp));
            touches.iter().for_each(|touch| kept(touch.access));
        }
    }
}

#[derive(Debug)]
struct Part {
    end: u64,
    cell: Cell,
}

#[derive(Debug)]
enum Runs {
    Whole(Cell),
    /// By their start; they do not overlap. What is missing was never touched.
    Parts(BTreeMap<u64, Part>),
}

/// The accesses of one frame.
#[derive(Debug)]
pub(crate) struct History {
    /// Of the frame in its slot.
    pub(crate) generation: u32,
    /// Of the frame.
    bytes: u64,
    runs: Runs,
}

impl History {
    pub(crate) fn new(generation: u32, bytes: u64) -> Self {
        Self { generation, bytes, runs: Runs::Whole(Cell::default()) }
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// A run of bytes is touched by what comes after all that `clock` covers. Tells of each earlier access that is in
    /// conflict, and the bytes that both touch.
    pub(crate) fn touch(
        &mut self,
        range: Range<u64>,
        kind: AccessKind,
        me: Touch,
        clock: &Clock,
        found: &mut impl FnMut(Touch, Range<u64>),
    ) {
        let whole = range == (0..self.bytes);
        if let Runs::Whole(cell) = &mut self.runs {
            if whole {
                cell.touch(kind, me, clock, |other| found(other, range.clone()));
                return;
            }
            let mut parts = BTreeMap::new();
            if !cell.is_empty() {
                parts.insert(0, Part { end: self.bytes, cell: std::mem::take(cell) });
            }
            self.runs = Runs::Parts(parts);
        }
        let Runs::Parts(parts) = &mut self.runs else { return };
        touch_parts(parts, range, kind, me, clock, found);
        if whole
            && parts.len() == 1
            && let Some((_, part)) = parts.pop_first()
        {
            self.runs = Runs::Whole(part.cell);
        }
    }

    /// Forgets what `done` covers, and tells which accesses are kept.
    pub(crate) fn prune(&mut self, done: &Clock, mut kept: impl FnMut(u32)) {
        match &mut self.runs {
            Runs::Whole(cell) => cell.prune(done, kept),
            Runs::Parts(parts) => {
                let mut before: Option<(u64, u64)> = None;
                let starts: Vec<u64> = parts.keys().copied().collect();
                for start in starts {
                    let Some(mut part) = parts.remove(&start) else { continue };
                    part.cell.prune(done, &mut kept);
                    if part.cell.is_empty() {
                        continue;
                    }
                    // Neighbours of which the same is known are one again.
                    if let Some((first, end)) = before
                        && end == start
                        && let Some(joined) = parts.get_mut(&first).filter(|other| other.cell == part.cell)
                    {
                        joined.end = part.end;
                        before = Some((first, part.end));
                        continue;
                    }
                    before = Some((start, part.end));
                    parts.insert(start, part);
                }
                if parts.is_empty() {
                    self.runs = Runs::Whole(Cell::default());
                }
            }
        }
    }
}

fn split(parts: &mut BTreeMap<u64, Part>, at: u64) {
    if let Some((_, part)) = parts.range_mut(..at).next_back()
        && part.end > at
    {
        let tail = Part { end: part.end, cell: part.cell.clone() };
        part.end = at;
        parts.insert(at, tail);
    }
}

fn touch_parts(
    parts: &mut BTreeMap<u64, Part>,
    range: Range<u64>,
    kind: AccessKind,
    me: Touch,
    clock: &Clock,
    found: &mut impl FnMut(Touch, Range<u64>),
) {
    split(parts, range.start);
    split(parts, range.end);
    let mut gaps: SmallVec<[Range<u64>; 2]> = SmallVec::new();
    let mut at = range.start;
    let mut count = 0;
    let mut alone = kind == AccessKind::Write;
    for (&start, part) in parts.range_mut(range.clone()) {
        let bytes = start..part.end;
        part.cell.touch(kind, me, clock, |other| found(other, bytes.clone()));
        alone &= part.cell.is_only(me);
        count += 1;
        if at < start {
            gaps.push(at..start);
        }
        at = part.end;
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    if alone {
        // The write stands for all of them: one run from now on.
        if count != 1 || !gaps.is_empty() {
            while let Some(start) = parts.range(range.clone()).next().map(|(start, _)| *start) {
                parts.remove(&start);
            }
            let cell = Cell { writes: SmallVec::from_buf([me]), reads: SmallVec::new() };
            parts.insert(range.start, Part { end: range.end, cell });
        }
        return;
    }
    for gap in gaps {
        let mut cell = Cell::default();
        cell.touch(kind, me, clock, |_| {});
        parts.insert(gap.start, Part { end: gap.end, cell });
    }
}

//! The bytes behind device addresses, and what copies and fills do with them.
//!
//! Main types: [`Place`], [`Pattern`], [`Intent`]. Neighbours: `work` runs copies on the streams' workers; `memory` has
//! the pages.
//!
//! At the call an address is checked as a driver does: mapped, accessible, long enough. When the work then runs, nobody
//! checks again: with host pages a page that is gone by then is a fault of the processor, without them an illegal address,
//! which the device doesn't survive.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use concertina_vmm::Address;

use crate::code::{Code, Outcome};
use crate::host_pages::Protection;
use crate::memory::{Backing, DeviceMemory};

/// What work is going to do at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    Read,
    Write,
}

/// Where bytes come from or go to.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// An address of a device.
    Device(Arc<DeviceMemory>, u64),
    /// An address of the host.
    Host(usize),
}

/// What memory is filled with, over and over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    Bytes(u8),
    Pairs([u8; 2]),
    Quads([u8; 4]),
}

impl Pattern {
    pub(crate) const fn width(self) -> u64 {
        match self {
            Self::Bytes(_) => 1,
            Self::Pairs(_) => 2,
            Self::Quads(_) => 4,
        }
    }
}

/// A piece of host memory.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: *mut u8,
    bytes: usize,
}

impl DeviceMemory {
    /// Whether the device can do that with all these bytes now.
    pub(crate) fn check(&self, address: u64, bytes: u64, intent: Intent) -> Outcome {
        if address.checked_add(bytes).is_none() {
            return Err(Code::INVALID_VALUE);
        }
        let pieces = self.emulator.resolve_range(Address::new(address), bytes);
        if !pieces.iter().all(|piece| piece.backing.is_some_and(|backing| backing.accessible)) {
            return Err(Code::INVALID_VALUE);
        }
        let needed = match intent {
            Intent::Read => Protection::Read,
            Intent::Write => Protection::ReadWrite,
        };
        if self.least_access(address, bytes) < needed {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }

    /// The host memory that the bytes lie in now.
    fn spans(&self, address: u64, bytes: u64, intent: Intent) -> Outcome<Vec<Span>> {
        let Backing::Software(window) = &self.backing else {
            return Ok(vec![Span { start: address as *mut u8, bytes: bytes as usize }]);
        };
        self.check(address, bytes, intent).map_err(|_| Code::ILLEGAL_ADDRESS)?;
        if intent == Intent::Write {
            self.touched.store(true, Ordering::Relaxed);
        }
        let mut spans: Vec<Span> = Vec::new();
        for piece in self.emulator.resolve_range(Address::new(address), bytes) {
            let start = piece.address.get();
            let offset = match piece.backing {
                Some(backing) if self.layout.reservations.contains(&start) => {
                    let frame = self.offset_of(backing.memory.to_raw()).ok_or(Code::ILLEGAL_ADDRESS)?;
                    frame + backing.offset_bytes
                }
                Some(_) => self.layout.malloc_offset(start),
                None => return Err(Code::ILLEGAL_ADDRESS),
            };
            spans.push(Span { start: window.at(offset), bytes: piece.bytes as usize });
        }
        Ok(spans)
    }

    /// Where the bytes are in host memory, if they are accessible and in one piece.
    pub(crate) fn locate(&self, address: u64, bytes: u64) -> Option<*mut u8> {
        let spans = self.spans(address, bytes, Intent::Write).ok()?;
        let (first, rest) = spans.split_first()?;
        let mut end = first.start.wrapping_add(first.bytes);
        for span in rest {
            if span.start != end {
                return None;
            }
            end = end.wrapping_add(span.bytes);
        }
        Some(first.start)
    }
}

impl Place {
    fn spans(&self, bytes: u64, intent: Intent) -> Outcome<Vec<Span>> {
        match self {
            Self::Device(memory, address) => memory.spans(*address, bytes, intent),
            Self::Host(address) => Ok(vec![Span { start: *address as *mut u8, bytes: bytes as usize }]),
        }
    }

    /// Whether the place can be used so now. Of the host's memory nothing is known.
    pub(crate) fn check(&self, bytes: u64, intent: Intent) -> Outcome {
        match self {
            Self::Device(memory, address) => memory.check(*address, bytes, intent),
            Self::Host(0) => Err(Code::INVALID_VALUE),
            Self::Host(_) => Ok(()),
        }
    }
}

/// Copies as a device does: no order within the copy is promised, overlap is none of its concern.
pub(crate) fn copy(to: &Place, from: &Place, bytes: u64) -> Outcome {
    let targets = to.spans(bytes, Intent::Write)?;
    let sources = from.spans(bytes, Intent::Read)?;
    copy_spans(&targets, &sources);
    Ok(())
}

/// Copies bytes that were set aside at the call.
pub(crate) fn write(to: &Place, bytes: &[u8]) -> Outcome {
    let targets = to.spans(bytes.len() as u64, Intent::Write)?;
    copy_spans(&targets, &[Span { start: bytes.as_ptr().cast_mut(), bytes: bytes.len() }]);
    Ok(())
}

fn copy_spans(targets: &[Span], sources: &[Span]) {
    let (mut targets, mut sources) = (targets.iter().copied(), sources.iter().copied());
    let (mut target, mut source) = (targets.next(), sources.next());
    while let (Some(to), Some(from)) = (target, source) {
        let bytes = to.bytes.min(from.bytes);
        // SAFETY: both pieces are at least that long. A piece of host memory is what the program gave, with CUDA's
        // contract that it stays until the copy is done; a piece of device memory is never part of a Rust object. If a
        // device page has lost its mapping since the call, the touch faults, which is what it is for.
        unsafe { core::ptr::copy(from.start, to.start, bytes) };
        let rest = |span: Span| {
            let left = span.bytes - bytes;
            (left > 0).then(|| Span { start: span.start.wrapping_add(bytes), bytes: left })
        };
        target = rest(to).or_else(|| targets.next());
        source = rest(from).or_else(|| sources.next());
    }
}

/// Fills `count` elements.
pub(crate) fn fill(to: &Place, pattern: Pattern, count: u64) -> Outcome {
    for span in to.spans(count * pattern.width(), Intent::Write)? {
        match pattern {
            // SAFETY: the piece is that long and of device memory, which no Rust object is part of. If its page has lost
            // its mapping since the call, the touch faults, which is what it is for.
            Pattern::Bytes(byte) => unsafe { span.start.write_bytes(byte, span.bytes) },
            Pattern::Pairs(pair) => fill_span(span, pair),
            Pattern::Quads(quad) => fill_span(span, quad),
        }
    }
    Ok(())
}

/// Pieces are whole granules or parts of them at multiples of the pattern, so none is cut.
fn fill_span<const WIDTH: usize>(span: Span, pattern: [u8; WIDTH]) {
    for index in 0..span.bytes / WIDTH {
        let place = span.start.wrapping_add(index * WIDTH).cast::<[u8; WIDTH]>();
        // SAFETY: as for single bytes; an array of bytes lies at any address.
        unsafe { place.write(pattern) };
    }
}

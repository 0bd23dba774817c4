//! Which rules the driver keeps: each is tried on a page or two, and what is found stands beside what was expected.
//!
//! Main types: [`Trial`]. Neighbours: the emulator enforces the same rules (`docs/emulator.md`); `report` has the findings.
//!
//! Nothing here can harm the context: memory is never touched without access, which is a fault, nor a handle released twice.

use concertina_cuda::Access;
use concertina_vmm::{Address, Driver as _, DriverError, DriverErrorKind};

use super::holdings::Holdings;
use super::report::{Expected, Found, RuleFinding};
use super::session::{Range, Session};

/// What a rule is tried with.
struct Trial<'h, 'a> {
    session: &'h Session<'a>,
    held: &'h mut Holdings<'a>,
    page: u64,
}

/// What was seen, in words where there are some.
type Seen = Result<(Found, String), DriverError>;

/// A rule: its name, what is expected by the CUDA manual's section on virtual memory or by public reports, and how it is
/// tried. A failure of the trial is one of a call that should be done.
type Rule = (&'static str, Expected, fn(&mut Trial<'_, '_>) -> Seen);

const RULES: &[Rule] = &[
    ("a reservation is aligned to a page", Expected::Done, |trial| {
        let address = trial.held.reserve(trial.page)?;
        Ok(is(address.is_aligned_to(trial.page), format!("at {address}")))
    }),
    ("a reservation is aligned as asked, to 1 GiB", Expected::Done, |trial| {
        let address = trial.held.reserve_aligned(trial.page, 1 << 30)?;
        Ok(is(address.is_aligned_to(1 << 30), format!("at {address}")))
    }),
    ("a reservation of half a page", Expected::Refused, |trial| {
        let bytes = trial.page / 2;
        seen(trial.held.reserve(bytes).map(drop))
    }),
    ("a frame of half a page", Expected::Refused, |trial| seen(trial.held.create(trial.page / 2).map(drop))),
    ("a frame of a page more than is free", Expected::Refused, |trial| {
        let free = trial.session.cuda.memory_info()?.free_bytes;
        let bytes = (free / trial.page + 1) * trial.page;
        seen(trial.held.create(bytes).map(drop))
    }),
    ("map at half a page", Expected::Refused, |trial| {
        let range = trial.reserved(2)?;
        let frame = trial.held.create(trial.page)?;
        seen(trial.held.map(range.start.add(trial.page / 2), trial.page, frame))
    }),
    ("map of the first half of a handle", Expected::NotKnown, |trial| {
        let range = trial.reserved(2)?;
        let frame = trial.held.create(2 * trial.page)?;
        seen(trial.held.map_part(range.start, trial.page, 0, frame))
    }),
    ("map of the second half of a handle", Expected::Refused, |trial| {
        let range = trial.reserved(2)?;
        let frame = trial.held.create(2 * trial.page)?;
        seen(trial.held.map_part(range.start, trial.page, trial.page, frame))
    }),
    ("map of more than a handle", Expected::Refused, |trial| {
        let range = trial.reserved(2)?;
        let frame = trial.held.create(trial.page)?;
        seen(trial.held.map_part(range.start, range.bytes, 0, frame))
    }),
    ("map over a mapping", Expected::Refused, |trial| {
        let range = trial.mapped(1, 1)?;
        let frame = trial.held.create(trial.page)?;
        seen(trial.held.map(range.start, trial.page, frame))
    }),
    ("a second mapping of a handle", Expected::Done, |trial| {
        let range = trial.reserved(2)?;
        let frame = trial.held.create(trial.page)?;
        trial.held.map(range.start, trial.page, frame)?;
        seen(trial.held.map(range.start.add(trial.page), trial.page, frame))
    }),
    ("map, and no access before it is set", Expected::Done, |trial| {
        let range = trial.mapped(1, 1)?;
        trial.has_access(range.start, Access::None)
    }),
    ("set access over two mappings", Expected::Done, |trial| {
        let range = trial.mapped(1, 2)?;
        seen(trial.held.set_access(range.start, range.bytes))
    }),
    ("set access over one of two mappings", Expected::Done, |trial| {
        let range = trial.mapped(1, 2)?;
        seen(trial.held.set_access(range.start, trial.page))
    }),
    ("set access to a part of a mapping", Expected::Refused, |trial| {
        let range = trial.mapped(2, 1)?;
        seen(trial.held.set_access(range.start, trial.page))
    }),
    ("set access where nothing is mapped", Expected::Refused, |trial| {
        let range = trial.reserved(1)?;
        seen(trial.held.set_access(range.start, trial.page))
    }),
    ("set access over a mapping and a gap", Expected::Refused, |trial| {
        let range = trial.reserved(2)?;
        let frame = trial.held.create(trial.page)?;
        trial.held.map(range.start, trial.page, frame)?;
        seen(trial.held.set_access(range.start, range.bytes))
    }),
    ("access ends with its mapping", Expected::Done, |trial| {
        let range = trial.reserved(1)?;
        let frame = trial.held.create(trial.page)?;
        trial.held.map(range.start, trial.page, frame)?;
        trial.held.set_access(range.start, trial.page)?;
        trial.held.unmap(range.start, trial.page)?;
        trial.held.map(range.start, trial.page, frame)?;
        trial.has_access(range.start, Access::None)
    }),
    ("unmap of two mappings", Expected::Done, |trial| {
        let range = trial.mapped(1, 2)?;
        seen(trial.held.unmap(range.start, range.bytes))
    }),
    ("unmap of a part of a mapping", Expected::Refused, |trial| {
        let range = trial.mapped(2, 1)?;
        seen(trial.held.unmap(range.start, trial.page))
    }),
    ("unmap of a mapping and a part of the next", Expected::Refused, |trial| {
        let range = trial.mapped(2, 2)?;
        seen(trial.held.unmap(range.start, 3 * trial.page))
    }),
    ("unmap where nothing is mapped", Expected::Refused, |trial| {
        let range = trial.reserved(1)?;
        seen(trial.held.unmap(range.start, trial.page))
    }),
    ("a released frame stays while it is mapped", Expected::Done, |trial| {
        let (range, before) = (trial.reserved(16)?, trial.free_bytes()?);
        let frame = trial.held.create(range.bytes)?;
        trial.held.map(range.start, range.bytes, frame)?;
        trial.held.release(frame)?;
        let mapped = trial.free_bytes()?;
        trial.held.unmap(range.start, range.bytes)?;
        let after = trial.free_bytes()?;
        let detail = format!("free bytes: {before}, released {mapped}, unmapped {after}");
        Ok(is(mapped + range.bytes <= before && after >= mapped + range.bytes, detail))
    }),
    ("unreserve of a part of a reservation", Expected::Refused, |trial| {
        let range = trial.reserved(2)?;
        seen(trial.held.unreserve(range.start, trial.page))
    }),
    ("unreserve with something mapped", Expected::Refused, |trial| {
        let range = trial.mapped(1, 1)?;
        seen(trial.held.unreserve(range.start, range.bytes))
    }),
    ("free of an address inside a malloc", Expected::Refused, |trial| {
        let address = trial.held.malloc(trial.page)?;
        seen(trial.held.free(address.add(256)))
    }),
];

pub(super) fn measure(session: &mut Session<'_>) -> Result<(), DriverError> {
    let page = session.page()?;
    for &(rule, expected, attempt) in RULES {
        if session.is_over() {
            break;
        }
        let mut held = session.holdings();
        let seen = attempt(&mut Trial { session, held: &mut held, page });
        let (found, detail) = match seen {
            Err(error) if error.kind == DriverErrorKind::Lost => return Err(error),
            Err(error) => (Found::NotTried, error.to_string()),
            Ok(seen) => seen,
        };
        session.report.rules.push(RuleFinding { rule, expected, found, detail });
        // What a driver took that should have refused it may not go back as it would elsewhere.
        if let Err(error) = held.give_back() {
            session.leave_out(format!("giving back after `{rule}`"), error.to_string());
        }
    }
    Ok(())
}

fn is(so: bool, detail: String) -> (Found, String) {
    (if so { Found::Done } else { Found::Refused }, detail)
}

/// A call that may be refused.
fn seen(result: Result<(), DriverError>) -> Seen {
    match result {
        Ok(()) => Ok((Found::Done, String::new())),
        Err(error) if error.kind == DriverErrorKind::Lost => Err(error),
        Err(error) => Ok((Found::Refused, error.to_string())),
    }
}

impl Trial<'_, '_> {
    fn free_bytes(&self) -> Result<u64, DriverError> {
        Ok(self.session.cuda.memory_info()?.free_bytes)
    }

    fn reserved(&mut self, pages: u64) -> Result<Range, DriverError> {
        let bytes = pages * self.page;
        Ok(Range { start: self.held.reserve(bytes)?, bytes })
    }

    /// Neighbouring mappings of frames of their own, of so many pages each, without access.
    fn mapped(&mut self, pages: u64, mappings: u64) -> Result<Range, DriverError> {
        let range = self.reserved(pages * mappings)?;
        let bytes = pages * self.page;
        for place in 0..mappings {
            let frame = self.held.create(bytes)?;
            self.held.map(range.start.add(place * bytes), bytes, frame)?;
        }
        Ok(range)
    }

    fn has_access(&self, address: Address, expected: Access) -> Seen {
        let access = self.session.cuda.raw_calls().access(address)?;
        Ok(is(access == expected, format!("access: {access:?}")))
    }
}

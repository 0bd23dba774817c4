//! Set access and unmap over many neighbouring mappings: by one call, and by one each.
//!
//! Main types: none. Neighbours: `cost_table` takes what one more mapping adds from the fits.

use concertina_cuda::Spin;
use concertina_vmm::{Address, Call, Driver as _, DriverError};

use super::clock::Times;
use super::holdings::{FrameNumber, Holdings};
use super::report::{Fit, Load};
use super::session::{Session, Subject};

pub(super) fn measure(session: &mut Session<'_>) -> Result<(), DriverError> {
    let bytes = session.page()?;
    for mappings in session.plan.batches.clone() {
        if session.is_over() || !batch(session, Load::Idle, bytes, mappings)? {
            break;
        }
    }
    for mappings in session.plan.batches.clone() {
        if session.is_over() || !batch(session, Load::UnderKernel, bytes, mappings)? {
            break;
        }
    }
    for load in [Load::Idle, Load::UnderKernel] {
        for call in [Call::SetAccess, Call::Unmap] {
            fit(session, load, call.name(), bytes);
        }
    }
    Ok(())
}

/// Neighbouring places for frames of their own.
struct Places<'h, 'a> {
    held: &'h mut Holdings<'a>,
    frames: Vec<FrameNumber>,
    start: Address,
    bytes: u64,
}

impl Places<'_, '_> {
    fn each(&self) -> impl Iterator<Item = Address> + use<> {
        let (start, bytes) = (self.start, self.bytes);
        (0..self.frames.len() as u64).map(move |place| start.add(place * bytes))
    }

    fn whole(&self) -> u64 {
        self.bytes * self.frames.len() as u64
    }

    fn map(&mut self) -> Result<(), DriverError> {
        for (address, frame) in self.each().zip(self.frames.clone()) {
            self.held.map(address, self.bytes, frame)?;
        }
        Ok(())
    }

    fn access_at_once(&mut self) -> Result<(), DriverError> {
        self.held.set_access(self.start, self.whole())
    }

    fn access_each(&mut self) -> Result<(), DriverError> {
        self.each().try_for_each(|address| self.held.set_access(address, self.bytes))
    }

    fn unmap_at_once(&mut self) -> Result<(), DriverError> {
        self.held.unmap(self.start, self.whole())
    }

    fn unmap_each(&mut self) -> Result<(), DriverError> {
        self.each().try_for_each(|address| self.held.unmap(address, self.bytes))
    }
}

/// Whether there was memory for so many frames, and a kernel if one was needed.
fn batch(session: &mut Session<'_>, load: Load, bytes: u64, mappings: u64) -> Result<bool, DriverError> {
    let raw = session.cuda.raw_calls();
    let mut kernels = match load {
        Load::Idle => None,
        Load::UnderKernel => match session.unless_missing("batches under a kernel", raw.kernels())? {
            Some(kernels) => Some(kernels),
            None => return Ok(false),
        },
    };
    let spin = kernels
        .as_mut()
        .map(|kernels| kernels.spin(session.streams[1], session.plan.kernel * 10))
        .transpose()?;
    let mut held = session.holdings();
    let created = (0..mappings).map(|_| held.create(bytes)).collect();
    let Some(frames) = session.unless_missing(format!("{mappings} frames of {bytes} bytes"), created)? else {
        return Ok(false);
    };
    let start = held.reserve(bytes * mappings)?;
    let spans = session.cuda.capabilities().unmap_spans_mappings;
    let [mut access, mut unmap, mut access_each, mut unmap_each] = Times::none();
    let mut places = Places { held: &mut held, frames, start, bytes };
    while session.goes_on(access.len()) {
        places.map()?;
        access.time(|| places.access_at_once())?;
        if spans {
            unmap.time(|| places.unmap_at_once())?;
        } else {
            places.unmap_each()?;
        }
        places.map()?;
        access_each.time(|| places.access_each())?;
        unmap_each.time(|| places.unmap_each())?;
        if !spin.as_ref().map_or(Ok(true), Spin::is_running)? {
            for times in [&mut access, &mut unmap, &mut access_each, &mut unmap_each] {
                times.forget_last();
            }
            session.leave_out(format!("{mappings} mappings under a kernel"), "the kernel ended before");
            break;
        }
    }
    held.give_back()?;
    spin.map(Spin::stop).transpose()?;
    let subject =
        |call: Call, driver_calls| Subject { call: call.name(), load, bytes, mappings, driver_calls };
    session.note(subject(Call::SetAccess, 1), access);
    session.note(subject(Call::Unmap, 1), unmap);
    if mappings > 1 {
        session.note(subject(Call::SetAccess, mappings), access_each);
        session.note(subject(Call::Unmap, mappings), unmap_each);
    }
    Ok(true)
}

/// The line through what one call took, if at least two numbers of mappings were measured.
fn fit(session: &mut Session<'_>, load: Load, call: &'static str, bytes: u64) {
    // The last that were measured of each: single mappings are in the frames' part, too.
    let of_call = session.report.timings.iter().filter(|timing| {
        timing.call == call && timing.load == load && timing.bytes == bytes && timing.driver_calls == 1
    });
    let points: Vec<(f64, f64)> =
        of_call.map(|timing| (timing.mappings as f64, timing.median_ns as f64)).collect();
    if let Some((base_ns, per_mapping_ns)) = line(&points) {
        session.report.fits.push(Fit { call, load, bytes, base_ns, per_mapping_ns });
    }
}

/// The line y = a + b x with the least sum of squared errors: a and b. Nothing unless there are two different x.
fn line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let count = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(x, y), point| (x + point.0 / count, y + point.1 / count));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let together: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (spread > 0.0).then(|| (y - together / spread * x, together / spread))
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn a_line_goes_through_points_that_lie_on_one() {
        let (base, slope) = line(&[(1.0, 25.0), (8.0, 60.0), (64.0, 340.0)]).expect("three points");
        assert!((base - 20.0).abs() < 1e-9 && (slope - 5.0).abs() < 1e-9, "{base} {slope}");
        // Worked out by hand: means 2 and 3, slope 1/2.
        let (base, slope) = line(&[(1.0, 2.0), (2.0, 4.0), (3.0, 3.0)]).expect("three points");
        assert!((base - 2.0).abs() < 1e-9 && (slope - 0.5).abs() < 1e-9, "{base} {slope}");
        assert_eq!(line(&[(4.0, 1.0), (4.0, 2.0)]), None);
        assert_eq!(line(&[]), None);
    }
}

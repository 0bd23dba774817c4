//! A trial with one page, since a device may claim virtual memory and still fail at it (as under WSL2).
//!
//! Main types: [`Trial`]. Neighbours: `cuda` runs it once, on itself; `touch` writes and reads. Generic over the driver, so
//! that the emulator can fail every step of it.

use concertina_vmm::{Accessor, Address, Driver, DriverError, DriverErrorKind, FrameProperties};

use crate::probe::{Missing, Support};

/// What the trial has taken so far, and gives back when it is dropped.
struct Trial<'a, D: Driver> {
    driver: &'a D,
    page: u64,
    reserved: Option<Address>,
    handle: Option<D::Handle>,
    // Of the two pages reserved: how many, from the first on, are mapped.
    mapped: u64,
}

/// Runs the trial on pages of `page` bytes: maps one frame at two neighbouring pages, gives access with one call, lets
/// `touch` write through the first address and read through the second, and unmaps both with one call.
///
/// Returns whether that last call worked; where it was refused, the two were unmapped one by one. Nothing is left behind,
/// except what the driver refuses to take back.
///
/// # Errors
/// What could not be done. Then Concertina can't run on this device.
pub(crate) fn run<D: Driver>(
    driver: &D,
    device: u32,
    page: u64,
    touch: impl FnOnce(Address, Address) -> Result<(), Missing>,
) -> Result<Support, Missing> {
    let mut trial = Trial { driver, page, reserved: None, handle: None, mapped: 0 };
    let first = step("reserve addresses", driver.reserve(2 * page, 0))?;
    trial.reserved = Some(first);
    let second = first.add(page);
    let handle = step("create a frame", driver.create(page, &FrameProperties { device }))?;
    let handle = trial.handle.insert(handle);
    step("map the frame", driver.map(first, page, handle))?;
    trial.mapped = 1;
    step("map the frame a second time", driver.map(second, page, handle))?;
    trial.mapped = 2;
    let accessors = [Accessor::Device(device)];
    step("give access to two mappings with one call", driver.set_access(first, 2 * page, &accessors))?;
    touch(first, second)?;
    match driver.unmap(first, 2 * page) {
        Ok(()) => {
            trial.mapped = 0;
            trial.finish()?;
            Ok(Support::Available)
        }
        Err(error) if error.kind == DriverErrorKind::Lost => {
            Err(Missing::Trial { step: "unmap two mappings with one call", error })
        }
        Err(error) => {
            trial.finish()?;
            Ok(Support::Missing(Missing::Trial { step: "unmap two mappings with one call", error }))
        }
    }
}

fn step<T>(step: &'static str, result: Result<T, DriverError>) -> Result<T, Missing> {
    result.map_err(|error| Missing::Trial { step, error })
}

impl<D: Driver> Trial<'_, D> {
    /// Gives everything back; stops at the first refusal, which [`Trial::drop`] then tries once more.
    fn finish(&mut self) -> Result<(), Missing> {
        let Some(first) = self.reserved else { return Ok(()) };
        while self.mapped > 0 {
            let last = first.add((self.mapped - 1) * self.page);
            step("unmap", self.driver.unmap(last, self.page))?;
            self.mapped -= 1;
        }
        if let Some(handle) = self.handle.take()
            && let Err(returned) = self.driver.release(handle)
        {
            self.handle = Some(returned.owner);
            return Err(Missing::Trial { step: "release the frame", error: returned.error });
        }
        step("give the addresses back", self.driver.unreserve(first, 2 * self.page))?;
        self.reserved = None;
        Ok(())
    }
}

impl<D: Driver> Drop for Trial<'_, D> {
    fn drop(&mut self) {
        if let Err(missing) = self.finish() {
            tracing::warn!(%missing, "what the trial of virtual memory took was not given back");
        }
    }
}

#[cfg(test)]
mod tests;

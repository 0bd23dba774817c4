//! The pool's frames: under which addresses they are mapped, and those in hand that are mapped nowhere.
//!
//! Main type: [`Frames`]. Neighbours: `grow` moves them; the `Frame` and `Mapping` of `concertina-vmm` are of one
//! granularity, which these frames are not, so the driver is called directly.

use std::collections::{BTreeMap, BTreeSet};

use concertina_vmm::{Accessor, Address, Driver, DriverError, FrameProperties};

#[derive(Debug)]
pub(crate) struct Frames<D: Driver> {
    pub(crate) frame_bytes: u64,
    /// By the address that it is mapped at.
    mapped: BTreeMap<u64, D::Handle>,
    /// Addresses at which one is mapped though nothing may lie there: an unmap failed on the way.
    stray: BTreeSet<u64>,
    spare: Vec<D::Handle>,
}

impl<D: Driver> Frames<D> {
    pub(crate) const fn new(frame_bytes: u64) -> Self {
        Self { frame_bytes, mapped: BTreeMap::new(), stray: BTreeSet::new(), spare: Vec::new() }
    }

    /// Bytes of all frames.
    pub(crate) fn held_bytes(&self) -> u64 {
        (self.mapped.len() + self.spare.len()) as u64 * self.frame_bytes
    }

    /// How many frames could be mapped anywhere.
    pub(crate) fn in_hand(&self) -> u64 {
        (self.spare.len() + self.stray.len()) as u64
    }

    /// Where the frames lie that are wholly inside a range: the first address, and how many they are. Addresses of
    /// reservations are multiples of the frame's size apart.
    pub(crate) fn inside(&self, base: u64, address: u64, bytes: u64) -> (u64, u64) {
        let first = base + (address - base).next_multiple_of(self.frame_bytes);
        (first, (address + bytes).saturating_sub(first) / self.frame_bytes)
    }

    /// Takes a new one in hand.
    pub(crate) fn create(&mut self, driver: &D) -> Result<(), DriverError> {
        self.spare.push(driver.create(self.frame_bytes, &FrameProperties::default())?);
        Ok(())
    }

    /// Gives one that is in hand back to the driver. False if none is.
    pub(crate) fn release(&mut self, driver: &D) -> Result<bool, DriverError> {
        self.collect_strays(driver)?;
        let Some(handle) = self.spare.pop() else { return Ok(false) };
        driver.release(handle).map_err(|returned| {
            self.spare.push(returned.owner);
            returned.error
        })?;
        Ok(true)
    }

    /// Takes the one that is mapped here in hand. The caller has seen its uses done.
    pub(crate) fn lift(&mut self, driver: &D, address: u64) -> Result<(), DriverError> {
        driver.unmap(Address::new(address), self.frame_bytes)?;
        self.stray.remove(&address);
        self.spare.extend(self.mapped.remove(&address));
        Ok(())
    }

    fn collect_strays(&mut self, driver: &D) -> Result<(), DriverError> {
        while let Some(&address) = self.stray.first() {
            self.lift(driver, address)?;
        }
        Ok(())
    }

    /// Maps frames in hand, of which there must be enough, under `count` places from `address` on: one call each, and one for
    /// the access to all.
    ///
    /// # Errors
    /// What the driver says. Then none of them is mapped there, or what is mapped is taken in hand before its next use.
    pub(crate) fn put(&mut self, driver: &D, address: u64, count: u64) -> Result<(), DriverError> {
        self.collect_strays(driver)?;
        let places: Vec<u64> = (0..count).map(|number| address + number * self.frame_bytes).collect();
        let put = places.iter().try_for_each(|&at| self.put_one(driver, at)).and_then(|()| {
            let accessors = [Accessor::Device(FrameProperties::default().device)];
            driver.set_access(Address::new(address), count * self.frame_bytes, &accessors)
        });
        if put.is_err() {
            for at in places {
                if self.mapped.contains_key(&at) && self.lift(driver, at).is_err() {
                    self.stray.insert(at);
                }
            }
        }
        put
    }

    fn put_one(&mut self, driver: &D, address: u64) -> Result<(), DriverError> {
        let handle = self.spare.pop().expect("as many in hand as there are places");
        match driver.map(Address::new(address), self.frame_bytes, &handle) {
            Ok(()) => {
                self.mapped.insert(address, handle);
                Ok(())
            }
            Err(error) => {
                self.spare.push(handle);
                Err(error)
            }
        }
    }

    /// Gives everything back, as far as the driver lets it. Nothing uses it any more.
    pub(crate) fn close(&mut self, driver: &D) {
        let mapped: Vec<u64> = self.mapped.keys().copied().collect();
        for address in mapped {
            let _ = self.lift(driver, address);
        }
        while let Some(handle) = self.spare.pop() {
            let _ = driver.release(handle);
        }
    }
}

//! What a device must be for allocators to be measured on it.
//!
//! Main types: [`BenchDevice`]. Neighbours: the emulator is one here; `cuda_device` has those behind the crate `cuda`;
//! `case` runs on any of them.

use concertina_emulator::{EmulatedStream, Emulator};
use concertina_trace::ReplayDevice;
use concertina_trace::target::TargetError;
use concertina_vmm::Driver;

/// A device with its driver, and what a program does on it besides allocating. One that was made for a run holds nothing.
pub trait BenchDevice: ReplayDevice {
    /// The driver that allocators get.
    type Driver: Driver + Clone;

    /// The driver that allocators get.
    fn driver(&self) -> &Self::Driver;

    /// The stream of the program's that has this number in the trace, asked for once.
    ///
    /// # Errors
    /// What the driver says.
    fn new_stream(&self, number: u32) -> Result<StreamOf<Self>, TargetError>;

    /// The program waits for a stream.
    ///
    /// # Errors
    /// What the driver says.
    fn synchronize_stream(&self, stream: &StreamOf<Self>) -> Result<(), TargetError>;

    /// The program waits for the whole device.
    ///
    /// # Errors
    /// What the driver says.
    fn synchronize_device(&self) -> Result<(), TargetError>;

    /// The emulator that takes the program's kernels, if this is one.
    fn emulator(&self) -> Option<&Emulator> {
        None
    }

    /// What is wrong after everything was dropped: rules of the driver that were broken, memory that was not given
    /// back, races.
    fn defect_at_end(&self) -> Option<String>;
}

/// The streams of a device's driver.
pub type StreamOf<D> = <<D as BenchDevice>::Driver as Driver>::Stream;

impl BenchDevice for Emulator {
    type Driver = Self;

    fn driver(&self) -> &Self {
        self
    }

    fn new_stream(&self, number: u32) -> Result<EmulatedStream, TargetError> {
        Ok(self.nth_stream(number))
    }

    fn synchronize_stream(&self, stream: &EmulatedStream) -> Result<(), TargetError> {
        Self::synchronize_stream(self, stream).map_err(|hang| TargetError::Failed(hang.into()))
    }

    fn synchronize_device(&self) -> Result<(), TargetError> {
        Self::synchronize_device(self).map_err(|hang| TargetError::Failed(hang.into()))
    }

    fn emulator(&self) -> Option<&Emulator> {
        Some(self)
    }

    fn defect_at_end(&self) -> Option<String> {
        if let Some(rule) = self.broken_rules().first() {
            return Some(broken_rule(rule));
        }
        if let Some(race) = self.races().first() {
            return Some(race.to_string());
        }
        let held = self.leaks();
        (!held.is_empty()).then(|| not_given_back(&held))
    }
}

pub(crate) fn broken_rule(rule: &impl std::fmt::Display) -> String {
    format!("a rule of the driver was broken: {rule}")
}

pub(crate) fn not_given_back(held: &impl std::fmt::Display) -> String {
    format!("not given back at drop: {held}")
}

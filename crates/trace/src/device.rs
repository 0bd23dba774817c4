//! What a replay asks of the device below the allocator.
//!
//! Main types: [`ReplayDevice`]. Neighbours: `replay` takes the figures from it, `checker` looks through its page tables;
//! the emulator is one, and the benches have others.

use std::fmt;

use concertina_emulator::{Counts, Emulator, Piece};
use concertina_vmm::Address;

/// The device that an allocator under replay was made on, as its observers see it.
pub trait ReplayDevice: fmt::Debug {
    /// The program queued so many further pieces of work.
    fn advance(&self, operations: u64);

    /// What was counted so far.
    fn counts(&self) -> Counts;

    /// Time that the host has spent in driver calls, in nanoseconds, with work also what it waited there. Read before and
    /// after every allocation, so it should take no longer than must be.
    fn ns_in_calls(&self) -> u64 {
        self.counts().modelled_ns
    }

    /// What is behind a range of addresses, in order and without holes, into a vector whose content goes.
    fn resolve_range_into(&self, address: Address, bytes: u64, pieces: &mut Vec<Piece>);
}

impl ReplayDevice for Emulator {
    fn advance(&self, operations: u64) {
        Emulator::advance(self, operations);
    }

    fn counts(&self) -> Counts {
        Emulator::counts(self)
    }

    fn ns_in_calls(&self) -> u64 {
        Emulator::ns_in_calls(self)
    }

    fn resolve_range_into(&self, address: Address, bytes: u64, pieces: &mut Vec<Piece>) {
        Emulator::resolve_range_into(self, address, bytes, pieces);
    }
}

//! Where in the host's address space the device addresses lie.
//!
//! Main types: [`Layout`]. Neighbours: `machine` gives each device its part; `host_pages` takes the addresses from the
//! host; the emulator hands them out.
//!
//! From 16 TiB to 64 TiB: below the place where Linux puts programs and their libraries, on x86-64 and on 64-bit Arm, and
//! above where anything else lies.

use core::ops::Range;

use concertina_emulator::AddressLayout;

const MALLOCS: u64 = 1 << 44;
const RESERVATIONS: u64 = 1 << 45;
const END: u64 = 1 << 46;
/// Most devices of one machine.
pub(crate) const MAX_DEVICES: u32 = 8;

/// The addresses of one device, and with them its part of the memory file: frames first, memory of mallocs behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) mallocs: Range<u64>,
    pub(crate) reservations: Range<u64>,
}

impl Layout {
    /// The part of the device with this ordinal, where there are `devices` (1 to 8): all get the same.
    pub(crate) fn of_device(ordinal: u32, devices: u32) -> Self {
        let devices = u64::from(devices.clamp(1, MAX_DEVICES).next_power_of_two());
        let part = |start: u64, end: u64| {
            let bytes = (end - start) / devices;
            let start = start + u64::from(ordinal) * bytes;
            start..start + bytes
        };
        Self { mallocs: part(MALLOCS, RESERVATIONS), reservations: part(RESERVATIONS, END) }
    }

    pub(crate) fn for_emulator(&self) -> AddressLayout {
        AddressLayout { mallocs: self.mallocs.start, reservations: self.reservations.start }
    }

    /// Whether the address is one of this device's.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.mallocs.contains(&address) || self.reservations.contains(&address)
    }

    /// Bytes of the file that frames may take.
    pub(crate) fn frame_bytes(&self) -> u64 {
        self.mallocs.end - self.mallocs.start
    }

    /// Where in the file the memory of a malloc lies: a fixed place for each address.
    pub(crate) fn malloc_offset(&self, address: u64) -> u64 {
        self.frame_bytes() + (address - self.mallocs.start)
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        2 * self.frame_bytes()
    }
}

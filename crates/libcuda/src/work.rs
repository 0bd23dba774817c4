//! A piece of work on a stream.
//!
//! Main types: [`Work`]. Neighbours: `stream` queues it and runs it in order.

use core::ffi::c_void;
use std::sync::Arc;

use concertina_emulator as emulated;
use concertina_vmm::Address;

use crate::code::Outcome;
use crate::kernel::Launch;
use crate::memory::DeviceMemory;
use crate::reach::{self, Pattern, Place};
use crate::record::Record;

/// A function of the host that the program queued.
pub(crate) type HostFunction = unsafe extern "C" fn(data: *mut c_void);

#[derive(Clone, Debug)]
pub(crate) enum Work {
    Copy {
        to: Place,
        from: Place,
        bytes: u64,
    },
    /// A copy whose source was read at the call.
    Write {
        to: Place,
        bytes: Box<[u8]>,
    },
    Fill {
        to: Place,
        pattern: Pattern,
        count: u64,
    },
    Launch(Launch),
    /// The data is a pointer of the program's, which only its function follows.
    Host {
        function: HostFunction,
        data: usize,
    },
    Record(Arc<Record>),
    Wait(Arc<Record>),
}

impl Work {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Self::Copy { to, from, bytes } => reach::copy(&to, &from, bytes),
            Self::Write { to, bytes } => reach::write(&to, &bytes),
            Self::Fill { to, pattern, count } => reach::fill(&to, pattern, count),
            Self::Launch(launch) => launch.run(),
            Self::Host { function, data } => {
                // SAFETY: the program gave both, to be called once with each other when the stream gets here.
                unsafe { function(data as *mut c_void) };
                Ok(())
            }
            Self::Record(record) => {
                record.pass();
                Ok(())
            }
            Self::Wait(record) => {
                record.wait();
                Ok(())
            }
        }
    }

    /// The same as the emulator of this device takes it: what it touches of the device's memory. None if that is nothing, or
    /// not known.
    pub(crate) fn emulated(&self, memory: &Arc<DeviceMemory>) -> Outcome<Option<emulated::Work>> {
        let of = |place: &Place| match place {
            Place::Device(of, address) if Arc::ptr_eq(of, memory) => Some(Address::new(*address)),
            _ => None,
        };
        let (name, accesses) = match self {
            Self::Copy { to, from, bytes } => {
                let read = of(from).map(|address| emulated::Access::read(address, *bytes));
                let written = of(to).map(|address| emulated::Access::write(address, *bytes));
                ("copy".to_owned(), read.into_iter().chain(written).collect())
            }
            Self::Write { to, bytes } => {
                let written = of(to).map(|address| emulated::Access::write(address, bytes.len() as u64));
                ("copy".to_owned(), written.into_iter().collect())
            }
            Self::Fill { to, pattern, count } => {
                let bytes = count.saturating_mul(pattern.width());
                let written = of(to).map(|address| emulated::Access::write(address, bytes));
                ("fill".to_owned(), written.into_iter().collect())
            }
            Self::Launch(launch) if Arc::ptr_eq(&launch.memory, memory) => {
                (launch.kernel.name().to_owned(), launch.accesses()?)
            }
            Self::Launch(_) | Self::Host { .. } | Self::Record(_) | Self::Wait(_) => return Ok(None),
        };
        let work = accesses.into_iter().fold(emulated::Work::new(name), emulated::Work::touching);
        Ok(Some(work))
    }

    /// Whether it must be done even after the device was lost, since others wait for it.
    pub(crate) const fn is_order(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Wait(_))
    }
}

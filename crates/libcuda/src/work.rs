//! A piece of work on a stream.
//!
//! Main types: [`Work`]. Neighbours: `stream` queues it and runs it in order.

use core::ffi::c_void;
use std::sync::Arc;

use crate::code::Outcome;
use crate::kernel::Launch;
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

    /// Whether it must be done even after the device was lost, since others wait for it.
    pub(crate) const fn is_order(&self) -> bool {
        matches!(self, Self::Record(_) | Self::Wait(_))
    }
}

//! A wait of the host that nothing can end, and why.
//!
//! Main types: [`Hang`], [`HangLink`], [`WaitOrigin`]. Neighbours: `timeline` finds it, `Emulator::hangs` lists it.

use core::fmt;

/// Who put a wait for another stream into a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitOrigin {
    /// A stream wait through the trait `Driver`: the allocator's.
    DriverCall,
    /// `Emulator::queue_wait`: the program's own.
    Program,
}

impl fmt::Display for WaitOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DriverCall => "a driver call of the allocator",
            Self::Program => "the program",
        })
    }
}

/// One thing that must happen before another can. Streams and signals by their numbers, from 0 in the order in which
/// they were made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HangLink {
    /// A stream has come to a wait for another stream.
    Wait {
        /// The stream that waits.
        stream: u32,
        /// The stream that it waits for.
        on: u32,
        /// Who queued the wait.
        origin: WaitOrigin,
    },
    /// A stream has come to a kernel that blocks until a signal is sent.
    Signal {
        /// The kernel's name.
        kernel: String,
        /// Its stream.
        stream: u32,
        /// The signal.
        signal: u32,
        /// The kernel that would send it, and its stream, if one is queued.
        sender: Option<(String, u32)>,
    },
}

impl fmt::Display for HangLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wait { stream, on, origin } => {
                write!(f, "stream {stream} waits for stream {on}, as queued by {origin}")
            }
            Self::Signal { kernel, stream, signal, sender } => {
                write!(f, "kernel `{kernel}` on stream {stream} blocks until signal {signal}, ")?;
                match sender {
                    Some((kernel, stream)) => {
                        write!(f, "which kernel `{kernel}` on stream {stream} would send")
                    }
                    None => f.write_str("which nothing that is queued sends"),
                }
            }
        }
    }
}

/// The host waits for something that can never be done, as far as everything that is queued tells.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Hang {
    /// The stream that the host waits for.
    pub stream: u32,
    /// What holds it up, what holds that up, and so on. It ends with a signal that nothing sends, or the last link is
    /// held up by one of those before it.
    pub links: Vec<HangLink>,
}

impl Hang {
    /// Whether the links close to a ring; otherwise nothing that is queued sends the last one's signal.
    pub fn is_cycle(&self) -> bool {
        !matches!(self.links.last(), Some(HangLink::Signal { sender: None, .. }))
    }
}

impl fmt::Display for Hang {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hang: the host waits for stream {} without end", self.stream)?;
        for link in &self.links {
            write!(f, "; {link}")?;
        }
        if self.is_cycle() {
            f.write_str(
                "; and that is held up by one of these. Let the allocator take only frames whose use is over",
            )
        } else {
            f.write_str(". Send it before the host waits")
        }
    }
}

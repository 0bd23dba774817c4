//! The device's memory: one sparse file without a name, which takes host memory only where it was written.
//!
//! Main types: [`MemoryFile`]. Neighbours: `host_pages` maps pieces of it at device addresses, `window` all of it at one
//! place.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// An anonymous file of the kernel (memfd).
#[derive(Debug)]
pub(crate) struct MemoryFile {
    file: OwnedFd,
}

impl MemoryFile {
    /// A file of `bytes` zeros.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        // SAFETY: the name is a C string; the call touches no other memory.
        let file = unsafe { libc::memfd_create(c"concertina-device-memory".as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made, and nobody else has it.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: a call on a descriptor that we own.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { file })
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Makes the bytes zeros and gives the host's memory behind them back.
    pub(crate) fn punch_hole(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let number = |value| libc::off_t::try_from(value).map_err(|_| io::ErrorKind::InvalidInput);
        let (offset, bytes) = (number(offset)?, number(bytes)?);
        // SAFETY: a call on a descriptor that we own. Whoever reads the bytes through a mapping sees zeros from then on,
        // as with memory that a device gave away.
        if unsafe { libc::fallocate(self.descriptor(), mode, offset, bytes) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

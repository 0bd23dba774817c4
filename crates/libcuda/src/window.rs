//! All of the memory file at one place, for devices without host pages at their addresses: copies and memsets look up
//! where in the file an address lies.
//!
//! Main types: [`Window`]. Neighbours: `memory` translates.

use std::io;
use std::ptr::NonNull;

use crate::memory_file::MemoryFile;

#[derive(Debug)]
pub(crate) struct Window {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the window is plain memory of the process, valid in every thread until it is dropped; who may touch which of its
// bytes when is the business of the program that runs on the device.
unsafe impl Send for Window {}
// SAFETY: as above; the window itself is never changed.
unsafe impl Sync for Window {}

impl Window {
    pub(crate) fn new(file: &MemoryFile, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: the kernel chooses addresses that nobody uses.
        let got = unsafe { libc::mmap(core::ptr::null_mut(), bytes, access, kind, file.descriptor(), 0) };
        if got == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(got.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, bytes })
    }

    /// Where the byte at `offset` of the file is.
    ///
    /// # Panics
    /// If the file is shorter.
    pub(crate) fn at(&self, offset: u64) -> *mut u8 {
        let offset = offset as usize;
        assert!(offset < self.bytes, "offset {offset} of a file of {} bytes", self.bytes);
        // SAFETY: the offset was checked to lie inside the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours; nothing that was given out of it outlives the device.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

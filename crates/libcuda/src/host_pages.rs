//! Host pages at device addresses: what is mapped on the device is mapped on the host, and nothing else is.
//!
//! Main types: [`HostPages`], [`Protection`]. Neighbours: `memory` says what to map, after the emulator has agreed;
//! `layout` which addresses are ours.
//!
//! The addresses are taken once, all of them, without access: no other part of the process ever gets one. A map puts a
//! piece of the memory file there, still without access; a set access protects; an unmap puts the empty mapping back. So a
//! touch of what is not mapped or not accessible is a fault of the processor.

use core::ffi::c_int;
use core::ops::Range;
use std::io;

use crate::layout::Layout;
use crate::memory_file::MemoryFile;

/// What may be done with a page, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protection {
    None,
    Read,
    ReadWrite,
}

impl Protection {
    const fn bits(self) -> c_int {
        match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        }
    }
}

/// All addresses of one device, owned from its making to its end.
#[derive(Debug)]
pub(crate) struct HostPages {
    mallocs: Range<u64>,
    reservations: Range<u64>,
}

const EMPTY: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const OF_FILE: c_int = libc::MAP_SHARED | libc::MAP_NORESERVE;

/// Maps without access at exactly these addresses; where `placement` says so only if nothing is there.
fn map_at(range: &Range<u64>, kind: c_int, placement: c_int, file: c_int, offset: u64) -> io::Result<()> {
    let wrong = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let length = usize::try_from(range.end - range.start).map_err(wrong)?;
    let offset = libc::off_t::try_from(offset).map_err(wrong)?;
    let address = range.start as *mut libc::c_void;
    // SAFETY: the range is either not in use yet (the kernel refuses it otherwise) or lies in the addresses that a
    // `HostPages` owns, where no Rust object lives: the callers see to that.
    let got = unsafe { libc::mmap(address, length, libc::PROT_NONE, kind | placement, file, offset) };
    if got == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if got != address {
        // A kernel before 4.17 takes the address for a wish.
        // SAFETY: this mapping was just made and nobody knows of it.
        unsafe { libc::munmap(got, length) };
        return Err(io::ErrorKind::AddrInUse.into());
    }
    Ok(())
}

impl HostPages {
    /// Takes the addresses of the layout from the host. Those of mallocs lie over their part of the file from now on.
    pub(crate) fn new(layout: &Layout, file: &MemoryFile) -> io::Result<Self> {
        let Layout { mallocs, reservations } = layout.clone();
        map_at(&reservations, EMPTY, libc::MAP_FIXED_NOREPLACE, -1, 0)?;
        // From here on, dropping it gives back what was taken.
        let mut pages = Self { mallocs: 0..0, reservations };
        let offset = layout.malloc_offset(mallocs.start);
        map_at(&mallocs, OF_FILE, libc::MAP_FIXED_NOREPLACE, file.descriptor(), offset)?;
        pages.mallocs = mallocs;
        Ok(pages)
    }

    fn own(&self, address: u64, bytes: u64) -> io::Result<Range<u64>> {
        let end = address.checked_add(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let inside = |whole: &Range<u64>| whole.start <= address && address < end && end <= whole.end;
        if !inside(&self.mallocs) && !inside(&self.reservations) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(address..end)
    }

    /// Puts a piece of the file at addresses of reservations, without access.
    pub(crate) fn map(&self, address: u64, bytes: u64, file: &MemoryFile, offset: u64) -> io::Result<()> {
        map_at(&self.own(address, bytes)?, OF_FILE, libc::MAP_FIXED, file.descriptor(), offset)
    }

    /// Takes away whatever is at addresses of reservations.
    pub(crate) fn unmap(&self, address: u64, bytes: u64) -> io::Result<()> {
        map_at(&self.own(address, bytes)?, EMPTY, libc::MAP_FIXED, -1, 0)
    }

    /// Says what may be done with pages.
    pub(crate) fn protect(&self, address: u64, bytes: u64, protection: Protection) -> io::Result<()> {
        let range = self.own(address, bytes)?;
        let length = usize::try_from(range.end - range.start).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the range is ours, and no Rust object lives there. Device memory is only reached through raw pointers;
        // whoever follows one that has no access any more gets the fault that the device would raise.
        if unsafe { libc::mprotect(range.start as *mut libc::c_void, length, protection.bits()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for HostPages {
    fn drop(&mut self) {
        for range in [&self.mallocs, &self.reservations] {
            if range.is_empty() {
                continue;
            }
            // SAFETY: the addresses are ours and no Rust object lives there.
            unsafe { libc::munmap(range.start as *mut libc::c_void, (range.end - range.start) as usize) };
        }
    }
}

//! The memory of one device: the emulator decides, counts and charges; what it agreed to is then done with host memory.
//!
//! Main types: [`DeviceMemory`], [`Backing`], [`MemoryConfig`]. Neighbours: `reach` finds the bytes behind addresses,
//! `exports` calls; `host_pages`, `window` and `memory_file` are the host's side.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use concertina_emulator::{Emulator, EmulatorConfig};
use concertina_vmm::{Accessor, Address, Driver, FrameProperties};

use crate::abi::AllocationProp;
use crate::budget::BEYOND_BUDGET;
use crate::code::{Code, Outcome};
use crate::file_space::FileSpace;
use crate::host_pages::{HostPages, Protection};
use crate::layout::Layout;
use crate::memory_file::MemoryFile;
use crate::restriction::Restrictions;
use crate::window::Window;

/// What is behind device addresses.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Pages of the host at the same addresses.
    Host(HostPages),
    /// Nothing; the emulator's page table says where in the window an address lies.
    Software(Window),
}

/// What the device's memory is made of.
#[derive(Debug)]
pub(crate) struct MemoryConfig {
    pub(crate) emulator: EmulatorConfig,
    pub(crate) layout: Layout,
    pub(crate) kind: crate::control::Backing,
}

/// A frame's bytes in the memory file, and what it was created with.
#[derive(Debug)]
struct Frame {
    offset: u64,
    bytes: u64,
    properties: AllocationProp,
}

/// The granules of mallocs that begin at one address: a run of one malloc, or one granule that small ones share.
#[derive(Debug)]
struct MallocRun {
    bytes: u64,
    blocks: u32,
}

/// Who made a malloc, and gives it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Program,
    Pool,
}

#[derive(Debug)]
pub(crate) struct Book {
    /// By the handle's number.
    frames: HashMap<u64, Frame>,
    space: FileSpace,
    runs: HashMap<u64, MallocRun>,
    /// Bytes of each live malloc and whose it is, by address.
    mallocs: BTreeMap<u64, (u64, Owner)>,
    restrictions: Restrictions,
}

#[derive(Debug)]
pub(crate) struct DeviceMemory {
    pub(crate) emulator: Emulator,
    pub(crate) layout: Layout,
    pub(crate) backing: Backing,
    pub(crate) granularity: u64,
    ordinal: u32,
    file: MemoryFile,
    /// Most mappings and runs of mallocs at once.
    host_limit: Option<u64>,
    /// Something was written: frames that go must be cleared. With host pages that can't be known.
    pub(crate) touched: AtomicBool,
    book: Mutex<Book>,
}

impl DeviceMemory {
    /// A device's memory with nothing in it. Fails if the host doesn't give the addresses or the file.
    pub(crate) fn new(config: MemoryConfig) -> io::Result<Self> {
        let MemoryConfig { emulator, layout, kind } = config;
        let (granularity, ordinal, budget) =
            (emulator.granularity_bytes, emulator.device, emulator.max_mappings);
        let wrong = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let emulator = Emulator::new(emulator).map_err(wrong)?;
        let file = MemoryFile::new(layout.file_bytes())?;
        let (backing, host_limit) = match kind {
            crate::control::Backing::HostPages => {
                let limit = budget.unwrap_or_else(crate::budget::host_budget);
                (Backing::Host(HostPages::new(&layout, &file)?), Some(limit + BEYOND_BUDGET))
            }
            crate::control::Backing::Software => {
                (Backing::Software(Window::new(&file, layout.file_bytes())?), None)
            }
        };
        let book = Mutex::new(Book {
            frames: HashMap::new(),
            space: FileSpace::new(layout.frame_bytes()),
            runs: HashMap::new(),
            mallocs: BTreeMap::new(),
            restrictions: Restrictions::default(),
        });
        let touched = AtomicBool::new(matches!(backing, Backing::Host(_)));
        Ok(Self { emulator, layout, backing, granularity, ordinal, file, host_limit, touched, book })
    }

    /// No code panics with the lock held and a change half done.
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn properties(&self) -> FrameProperties {
        FrameProperties { device: self.ordinal }
    }

    /// Out of memory if the host is near the end of its memory areas.
    fn check_host_budget(&self, book: &Book) -> Outcome {
        let Some(limit) = self.host_limit else { return Ok(()) };
        let taken = self.emulator.counts().mappings + book.runs.len() as u64;
        if taken < limit { Ok(()) } else { Err(Code::OUT_OF_MEMORY) }
    }

    pub(crate) fn reserve(&self, bytes: u64, alignment: u64) -> Outcome<u64> {
        Ok(self.emulator.reserve(bytes, alignment)?.get())
    }

    pub(crate) fn unreserve(&self, address: u64, bytes: u64) -> Outcome {
        Ok(self.emulator.unreserve(Address::new(address), bytes)?)
    }

    /// The number of a new frame's handle.
    pub(crate) fn create(&self, bytes: u64, properties: &AllocationProp) -> Outcome<u64> {
        let mut book = self.book();
        let number = self.emulator.create(bytes, &self.properties())?.into_raw();
        let Some(offset) = book.space.take(bytes) else {
            self.give_up_handle(number)?;
            return Err(Code::OUT_OF_MEMORY);
        };
        book.frames.insert(number, Frame { offset, bytes, properties: *properties });
        Ok(number)
    }

    fn give_up_handle(&self, number: u64) -> Outcome {
        let released = self.emulator.release(self.emulator.handle_from_raw(number));
        Ok(released.map_err(|returned| returned.error)?)
    }

    pub(crate) fn release(&self, number: u64) -> Outcome {
        let mut book = self.book();
        self.give_up_handle(number)?;
        self.clear_if_gone(&mut book, number)
    }

    /// The number of one more handle for the frame that is mapped at an address.
    pub(crate) fn retain(&self, address: u64) -> Outcome<u64> {
        let handle = self.emulator.retain(Address::new(address)).ok_or(Code::INVALID_VALUE)?;
        Ok(handle.into_raw())
    }

    /// What a frame was created with.
    pub(crate) fn properties_of(&self, number: u64) -> Outcome<AllocationProp> {
        self.book().frames.get(&number).map(|frame| frame.properties).ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn map(&self, address: u64, bytes: u64, number: u64) -> Outcome {
        let book = self.book();
        self.check_host_budget(&book)?;
        self.emulator.map(Address::new(address), bytes, &self.emulator.handle_from_raw(number))?;
        let Backing::Host(pages) = &self.backing else { return Ok(()) };
        let frame = book.frames.get(&number).ok_or(Code::UNKNOWN)?;
        if pages.map(address, bytes, &self.file, frame.offset).is_err() {
            self.emulator.unmap(Address::new(address), bytes)?;
            return Err(Code::OUT_OF_MEMORY);
        }
        Ok(())
    }

    pub(crate) fn unmap(&self, address: u64, bytes: u64) -> Outcome {
        let mut book = self.book();
        let pieces = self.emulator.resolve_range(Address::new(address), bytes);
        self.emulator.unmap(Address::new(address), bytes)?;
        if let Backing::Host(pages) = &self.backing {
            pages.unmap(address, bytes).map_err(|_| Code::OPERATING_SYSTEM)?;
        }
        let end = address.saturating_add(bytes);
        book.restrictions.forget(address, end);
        for backing in pieces.iter().filter_map(|piece| piece.backing) {
            self.clear_if_gone(&mut book, backing.memory.to_raw())?;
        }
        Ok(())
    }

    /// Gives a frame's bytes of the file back when its last handle and its last mapping have gone.
    fn clear_if_gone(&self, book: &mut Book, number: u64) -> Outcome {
        if self.emulator.holds(number) {
            return Ok(());
        }
        let Some(frame) = book.frames.remove(&number) else { return Ok(()) };
        self.clear(frame.offset, frame.bytes)?;
        book.space.give_back(frame.offset, frame.bytes);
        Ok(())
    }

    fn clear(&self, offset: u64, bytes: u64) -> Outcome {
        if !self.touched.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.file.punch_hole(offset, bytes).map_err(|_| Code::OPERATING_SYSTEM)
    }

    pub(crate) fn set_access(&self, address: u64, bytes: u64, protection: Protection) -> Outcome {
        let mut book = self.book();
        self.emulator.set_access(Address::new(address), bytes, &[Accessor::Device(self.ordinal)])?;
        let end = address + bytes;
        book.restrictions.set(address, end, protection);
        if let Backing::Host(pages) = &self.backing {
            // The kernel may have to split its areas for that, and has none left.
            pages.protect(address, bytes, protection).map_err(|_| Code::OUT_OF_MEMORY)?;
        }
        Ok(())
    }

    /// What the device may do at an address of a reservation.
    pub(crate) fn access(&self, address: u64) -> Outcome<Protection> {
        let book = self.book();
        let backing = self.emulator.resolve(Address::new(address)).ok_or(Code::INVALID_VALUE)?;
        if !backing.accessible {
            return Ok(Protection::None);
        }
        Ok(book.restrictions.least(address, address + 1))
    }

    /// Memory that is accessible at once.
    pub(crate) fn malloc(&self, bytes: u64, owner: Owner) -> Outcome<u64> {
        let mut book = self.book();
        self.check_host_budget(&book)?;
        let address = self.emulator.malloc(bytes)?.get();
        let start = address - address % self.granularity;
        let end = (address + bytes).next_multiple_of(self.granularity);
        let run = book.runs.entry(start).or_insert(MallocRun { bytes: end - start, blocks: 0 });
        run.blocks += 1;
        if let (1, Backing::Host(pages)) = (run.blocks, &self.backing)
            && pages.protect(start, end - start, Protection::ReadWrite).is_err()
        {
            book.runs.remove(&start);
            self.emulator.free(Address::new(address))?;
            return Err(Code::OUT_OF_MEMORY);
        }
        book.mallocs.insert(address, (bytes, owner));
        Ok(address)
    }

    /// Gives back a malloc of this owner's. The caller has waited for the device.
    pub(crate) fn free(&self, address: u64, owner: Owner) -> Outcome {
        let mut book = self.book();
        if book.mallocs.get(&address).is_some_and(|&(_, of)| of != owner) {
            return Err(Code::INVALID_VALUE);
        }
        self.emulator.free(Address::new(address))?;
        book.mallocs.remove(&address);
        let start = address - address % self.granularity;
        let Some(run) = book.runs.get_mut(&start) else { return Ok(()) };
        run.blocks -= 1;
        if run.blocks > 0 {
            return Ok(());
        }
        let bytes = run.bytes;
        book.runs.remove(&start);
        if let Backing::Host(pages) = &self.backing {
            pages.protect(start, bytes, Protection::None).map_err(|_| Code::OPERATING_SYSTEM)?;
        }
        self.clear(self.layout.malloc_offset(start), bytes)
    }

    /// Start, bytes and owner of the malloc that an address lies in.
    pub(crate) fn malloc_of(&self, address: u64) -> Option<(u64, u64, Owner)> {
        let book = self.book();
        let (&start, &(bytes, owner)) = book.mallocs.range(..=address).next_back()?;
        (address - start < bytes).then_some((start, bytes, owner))
    }

    /// The offset in the memory file of a frame.
    pub(crate) fn offset_of(&self, number: u64) -> Option<u64> {
        self.book().frames.get(&number).map(|frame| frame.offset)
    }

    /// The least that the device may do anywhere in a range of accessible addresses.
    pub(crate) fn least_access(&self, address: u64, bytes: u64) -> Protection {
        self.book().restrictions.least(address, address.saturating_add(bytes))
    }
}

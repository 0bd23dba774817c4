//! An allocator of whole pages that can be told to be wrong in one way.

use std::collections::HashMap;

use concertina_emulator::{EmulatedEvent, EmulatedHandle, EmulatedStream, Emulator, EmulatorConfig};
use concertina_vmm::{Accessor, Address, Driver, DriverError, FrameProperties};

use crate::loaded::LoadedTrace;
use crate::reader::TraceReader;
use crate::target::{ReplayTarget, TargetError};

/// What the toy does wrong, if anything; most of it at its second allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// Blocks begin 256 bytes into their page.
    OffBy256,
    /// The last page of a block is left unmapped.
    LeavesLastUnmapped,
    /// Nobody gets access.
    GrantsNothing,
    /// The second block gets the first one's address.
    RepeatsAddress,
    /// The second block's first page is mapped to the first one's first frame.
    RepeatsFrame,
    /// Both pages of a block are mapped to one frame.
    MapsItselfTwice,
    /// While the second block is allocated, another frame is mapped under the first one.
    SwapsFrame,
    /// While the second block is allocated, the first one's first page is unmapped.
    UnmapsFrame,
    /// The second allocation is refused.
    Refuses,
    /// The second free is.
    KeepsBlock,
}

/// Whole pages, each with a frame of its own; addresses are never used again. Notes what it hears; at an `e` also how
/// many of the events that it recorded, one at each `u`, are done.
pub(crate) struct Toy {
    emulator: Emulator,
    defect: Defect,
    base: Address,
    next_page: u64,
    page_bytes: u64,
    /// By page.
    frames: HashMap<u64, EmulatedHandle>,
    pub(crate) streams: Vec<EmulatedStream>,
    events: Vec<EmulatedEvent>,
    pub(crate) heard: Vec<String>,
    allocations: u32,
    frees: u32,
}

pub(crate) struct ToyBlock {
    address: Address,
    first_page: u64,
    pages: u64,
}

pub(crate) const PAGE: u64 = 64 << 10;

/// A device of 64 pages.
pub(crate) fn small_device() -> Emulator {
    let config = EmulatorConfig::default().with_granularity(PAGE).with_capacity(64 * PAGE).unwrap();
    Emulator::new(config).unwrap()
}

/// The events in `text`, which begin at line 2.
pub(crate) fn load(text: &str) -> LoadedTrace {
    let text = format!("alloc-trace 1\n{text}");
    LoadedTrace::read(TraceReader::new(text.as_bytes(), "test").unwrap()).unwrap()
}

impl Toy {
    pub(crate) fn new(emulator: &Emulator, defect: Defect) -> Self {
        Self {
            base: emulator.reserve(1024 * PAGE, 0).unwrap(),
            emulator: emulator.clone(),
            defect,
            next_page: 0,
            page_bytes: PAGE,
            frames: HashMap::new(),
            streams: (0..4).map(|_| emulator.stream()).collect(),
            events: Vec::new(),
            heard: Vec::new(),
            allocations: 0,
            frees: 0,
        }
    }

    fn page(&self, page: u64) -> Address {
        self.base.add(page * self.page_bytes)
    }

    fn map_new(&mut self, page: u64) -> Result<(), DriverError> {
        let frame = self.emulator.create(self.page_bytes, &FrameProperties::default())?;
        self.emulator.map(self.page(page), self.page_bytes, &frame)?;
        self.frames.insert(page, frame);
        Ok(())
    }

    fn back(&mut self, first: u64, pages: u64) -> Result<(), DriverError> {
        for page in first..first + pages {
            let second = self.allocations == 2;
            let reused = match self.defect {
                Defect::RepeatsFrame if second && page == first => Some(0),
                Defect::MapsItselfTwice if page > first => Some(first),
                _ => None,
            };
            if self.defect == Defect::LeavesLastUnmapped && page + 1 == first + pages {
                continue;
            }
            match reused {
                Some(other) => {
                    let frame = &self.frames[&other];
                    self.emulator.map(self.page(page), self.page_bytes, frame)?;
                }
                None => self.map_new(page)?,
            }
            if self.defect != Defect::GrantsNothing {
                self.emulator.set_access(self.page(page), self.page_bytes, &[Accessor::Device(0)])?;
            }
        }
        if self.allocations == 2 && matches!(self.defect, Defect::SwapsFrame | Defect::UnmapsFrame) {
            self.emulator.unmap(self.base, self.page_bytes)?;
            if self.defect == Defect::SwapsFrame {
                self.map_new(0)?;
                self.emulator.set_access(self.base, self.page_bytes, &[Accessor::Device(0)])?;
            }
        }
        Ok(())
    }
}

impl ReplayTarget for Toy {
    type Block = ToyBlock;

    fn allocate(&mut self, bytes: u64, stream: u32) -> Result<ToyBlock, TargetError> {
        self.heard.push(format!("a {bytes} {stream}"));
        self.allocations += 1;
        if self.defect == Defect::Refuses && self.allocations == 2 {
            return Err(TargetError::Failed("told to refuse".into()));
        }
        let (first_page, pages) = (self.next_page, bytes.div_ceil(self.page_bytes));
        self.next_page += pages;
        self.back(first_page, pages)?;
        let address = match self.defect {
            Defect::OffBy256 => self.page(first_page).add(256),
            Defect::RepeatsAddress => self.base,
            _ => self.page(first_page),
        };
        Ok(ToyBlock { address, first_page, pages })
    }

    fn address(&self, block: &ToyBlock) -> Address {
        block.address
    }

    fn block_bytes(&self, block: &ToyBlock) -> Option<u64> {
        Some(block.pages * self.page_bytes)
    }

    fn free(&mut self, block: ToyBlock) -> Result<(), TargetError> {
        self.heard.push(format!("f page {}", block.first_page));
        self.frees += 1;
        if self.defect == Defect::KeepsBlock && self.frees == 2 {
            return Err(TargetError::Failed("told to keep it".into()));
        }
        for page in block.first_page..block.first_page + block.pages {
            if let Some(frame) = self.frames.remove(&page) {
                self.emulator.unmap(self.page(page), self.page_bytes)?;
                self.emulator.release(frame).map_err(|returned| returned.error)?;
            }
        }
        Ok(())
    }

    fn record_stream(&mut self, block: &mut ToyBlock, stream: u32) -> Result<(), TargetError> {
        self.heard.push(format!("u page {} {stream}", block.first_page));
        let event = self.emulator.event_create()?;
        self.emulator.event_record(&event, &self.streams[stream as usize])?;
        self.events.push(event);
        Ok(())
    }

    fn stream_wait(&mut self, stream: u32, on: u32) -> Result<(), TargetError> {
        self.heard.push(format!("w {stream} {on}"));
        Ok(())
    }

    fn synchronize(&mut self, stream: Option<u32>) -> Result<(), TargetError> {
        self.heard.push(format!("y {stream:?}"));
        match stream {
            Some(stream) => self.emulator.synchronize_stream(&self.streams[stream as usize]),
            None => self.emulator.synchronize_device(),
        }
        .map_err(|hang| TargetError::Failed(hang.into()))
    }

    fn release_cached(&mut self) -> Result<(), TargetError> {
        let mut done = 0;
        for event in &self.events {
            done += u32::from(self.emulator.event_query(event)?);
        }
        self.heard.push(format!("e {done} of {}", self.events.len()));
        Ok(())
    }

    fn address_peak_bytes(&self) -> u64 {
        self.next_page * self.page_bytes
    }
}

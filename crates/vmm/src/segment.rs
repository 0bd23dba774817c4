//! A segment: a reservation, and the mappings in it, page by page; or, without virtual memory, one malloc.
//!
//! Main type: [`Segment`]. Neighbours: a heap owns segments and decides which page needs what; the `FrameStore` keeps
//! the book of who holds each frame; placement never comes down here.
//!
//! A page is unmapped, held or stale ([`PageState`]). Held means that the frame is in this page's slot and access is
//! granted: usable with no driver call, which one bit of a bitmap says. A page mapped without access counts as stale:
//! its frame is elsewhere until access is granted, so a failure half-way leaves nothing that looks usable.
//!
//! Of a malloc segment every page is held for as long as the malloc is there, and none has a frame or a mapping: nothing can
//! be taken from it but the whole.

use core::fmt;

use bitvec::vec::BitVec;

use crate::driver::Driver;
use crate::error::{Call, DriverError, DriverErrorKind, Returned};
use crate::fence::{Use, Uses};
use crate::frame::Frame;
use crate::frame_store::{FrameStore, Holder};
use crate::malloc::Malloc;
use crate::mapping::{Access, Mapping};
use crate::page_bits;
use crate::reservation::{PageState, Place, Reservation};
use crate::sync::{Arc, CACHE_LINES_BYTES};
use crate::units::{Address, FrameId, PageRange, SegmentId};

struct Slot<D: Driver> {
    // Before the frame, so that it is unmapped before the handle goes when both are dropped.
    mapping: Option<Mapping<D>>,
    frame: Option<Frame<D>>,
}

enum Memory<D: Driver> {
    Reserved(Reservation<D>),
    Malloc(Malloc<D>),
    // It has given its addresses, or its malloc, up: it has no pages.
    Gone,
}

/// A reservation and the mappings in it, or a malloc. Pages are numbered from its start.
pub struct Segment<D: Driver> {
    id: SegmentId,
    store: Arc<FrameStore<D>>,
    // Grows with the highest page ever mapped.
    slots: Vec<Slot<D>>,
    // In whole words, as `mapped`.
    held: Vec<u64>,
    mapped: BitVec<u64>,
    // Pins of all frames here.
    pins: u32,
    // That of `memory`, where a hit reads it.
    address: Address,
    // Last, so that everything is unmapped before it goes.
    memory: Memory<D>,
}

impl<D: Driver> fmt::Debug for Segment<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Segment")
            .field("id", &self.id)
            .field("address", &self.address())
            .field("bytes", &self.bytes())
            .field("held", &self.held_pages())
            .field("mapped", &self.mapped.count_ones())
            .finish_non_exhaustive()
    }
}

impl<D: Driver> Segment<D> {
    /// Reserves `bytes` of addresses (a multiple of the granularity) aligned to `alignment` bytes.
    ///
    /// # Errors
    /// What the driver says to the reservation.
    pub fn new(
        id: SegmentId,
        store: &Arc<FrameStore<D>>,
        bytes: u64,
        alignment: u64,
    ) -> Result<Self, DriverError> {
        let reservation = Reservation::new(store.device(), bytes, alignment)?;
        Ok(Self {
            id,
            store: Arc::clone(store),
            slots: Vec::new(),
            // Read on every hit: nothing of another heap on its first cache line.
            held: Vec::with_capacity(CACHE_LINES_BYTES / size_of::<u64>()),
            mapped: BitVec::new(),
            pins: 0,
            address: reservation.address(),
            memory: Memory::Reserved(reservation),
        })
    }

    /// A segment that is this malloc, a whole number of pages.
    pub fn of_malloc(id: SegmentId, store: &Arc<FrameStore<D>>, malloc: Malloc<D>) -> Self {
        let mut segment = Self {
            id,
            store: Arc::clone(store),
            slots: Vec::new(),
            held: Vec::new(),
            mapped: BitVec::new(),
            pins: 0,
            address: Address::default(),
            memory: Memory::Gone,
        };
        segment.put_malloc(malloc);
        segment
    }

    /// Gives a malloc segment that has none a malloc again.
    ///
    /// # Panics
    /// If it has one, or has addresses.
    pub fn put_malloc(&mut self, malloc: Malloc<D>) {
        assert!(matches!(self.memory, Memory::Gone), "{:?} has its memory", self.id);
        self.address = malloc.address();
        self.memory = Memory::Malloc(malloc);
        let pages = self.pages();
        self.held.resize(page_bits::words_for(pages), 0);
        page_bits::set(&mut self.held, PageRange::between(0, pages));
    }

    /// Takes the malloc out of a malloc segment, which has no pages from then on. The caller knows that no block lives
    /// there, and says so to who gets it with [`Malloc::set_uses`].
    pub fn take_malloc(&mut self) -> Option<Malloc<D>> {
        match std::mem::replace(&mut self.memory, Memory::Gone) {
            Memory::Malloc(malloc) => {
                self.held.clear();
                self.address = Address::default();
                Some(malloc)
            }
            other => {
                self.memory = other;
                None
            }
        }
    }

    /// Its number.
    pub fn id(&self) -> SegmentId {
        self.id
    }

    /// Its first address; 0 while it has none.
    #[inline]
    pub fn address(&self) -> Address {
        self.address
    }

    /// Bytes of addresses.
    pub fn bytes(&self) -> u64 {
        match &self.memory {
            Memory::Reserved(reservation) => reservation.bytes(),
            Memory::Malloc(malloc) => malloc.bytes(),
            Memory::Gone => 0,
        }
    }

    /// Number of pages.
    pub fn pages(&self) -> u32 {
        u32::try_from(self.bytes() / self.page_bytes()).unwrap_or(u32::MAX)
    }

    fn page_bytes(&self) -> u64 {
        self.store.frame_bytes()
    }

    fn place(&self, page: u32) -> Place {
        Place { segment: self.id, page }
    }

    /// What the page is.
    pub fn state(&self, page: u32) -> PageState {
        match self.slots.get(page as usize) {
            Some(Slot { frame: Some(frame), .. }) => PageState::Held(frame.id()),
            Some(Slot { mapping: Some(mapping), .. }) => PageState::Stale(mapping.frame()),
            _ => PageState::Unmapped,
        }
    }

    /// Whether the page is held.
    #[inline]
    pub fn is_held(&self, page: u32) -> bool {
        page_bits::get(&self.held, page) == Some(true)
    }

    /// Whether every page of the range is held: checked a word at a time.
    #[inline]
    pub fn all_held(&self, pages: PageRange) -> bool {
        page_bits::all(&self.held, pages)
    }

    /// The pages of the range that are not held, in order.
    pub fn not_held(&self, pages: PageRange) -> impl DoubleEndedIterator<Item = u32> + '_ {
        page_bits::zeros(&self.held, pages)
    }

    /// Number of held pages.
    pub fn held_pages(&self) -> u32 {
        page_bits::count(&self.held)
    }

    /// Number of held pages that have their bit in `pages`, word by word ([`page_bits`]), or lie behind its end.
    pub fn held_among(&self, pages: impl Iterator<Item = u64>) -> u64 {
        page_bits::count_both(&self.held, pages)
    }

    /// Number of mapped pages, held and stale.
    pub fn mapped_pages(&self) -> u32 {
        self.mapped.count_ones() as u32
    }

    /// The frame that the page holds.
    pub fn frame(&self, page: u32) -> Option<&Frame<D>> {
        self.slots.get(page as usize).and_then(|slot| slot.frame.as_ref())
    }

    /// Pins the frame that the page holds, if it holds one.
    pub fn pin(&mut self, page: u32) {
        if let Some(frame) = self.slots.get_mut(page as usize).and_then(|slot| slot.frame.as_mut()) {
            frame.pin();
            self.pins += 1;
        }
    }

    /// Takes one pin of the page's frame back, if it has any.
    pub fn unpin(&mut self, page: u32) {
        let frame = self.slots.get_mut(page as usize).and_then(|slot| slot.frame.as_mut());
        if let Some(frame) = frame.filter(|frame| frame.pins() > 0) {
            frame.unpin();
            self.pins -= 1;
        }
    }

    /// Whether the page holds a frame that is not pinned. Reads no more than a bit where nothing is.
    #[inline]
    pub fn is_takeable(&self, page: u32) -> bool {
        let is_pinned = || self.frame(page).is_none_or(|frame| frame.pins() > 0);
        self.is_held(page) && matches!(self.memory, Memory::Reserved(_)) && !(self.pins > 0 && is_pinned())
    }

    /// The page's mapping, held or stale.
    #[inline]
    pub fn mapping(&self, page: u32) -> Option<&Mapping<D>> {
        self.slots.get(page as usize).and_then(|slot| slot.mapping.as_ref())
    }

    fn grow_to(&mut self, page: u32) {
        let len = page as usize + 1;
        if self.slots.len() < len {
            self.slots.resize_with(len, || Slot { mapping: None, frame: None });
            let words = page_bits::words_for(len as u32);
            self.held.resize(words, 0);
            self.mapped.resize(words * page_bits::WORD_PAGES as usize, false);
        }
    }

    fn is_malloc(&self, call: Call) -> DriverError {
        let detail = format!("{:?} is a malloc segment: its memory comes and goes as a whole", self.id);
        DriverError::new(DriverErrorKind::Invalid, call, detail)
    }

    /// Maps the frame at an unmapped page. The page is stale until access is granted and the frame moves in
    /// ([`Segment::grant`], [`Segment::hold`]).
    ///
    /// # Errors
    /// What the driver says, or that the segment is a malloc; nothing has changed then.
    ///
    /// # Panics
    /// If the page is mapped: the caller unmaps first.
    pub fn map(&mut self, page: u32, frame: &Frame<D>) -> Result<(), DriverError> {
        assert!(self.mapping(page).is_none(), "page {page} of {:?} is mapped already", self.id);
        let offset_bytes = u64::from(page) * self.page_bytes();
        let Memory::Reserved(reservation) = &self.memory else { return Err(self.is_malloc(Call::Map)) };
        let mapping = reservation.map(offset_bytes, frame)?;
        self.grow_to(page);
        self.store.note_mapped(frame.id(), self.place(page));
        self.slots[page as usize].mapping = Some(mapping);
        self.mapped.set(page as usize, true);
        Ok(())
    }

    /// Grants access over the range with one call. Every page of it must be mapped.
    ///
    /// # Errors
    /// What the driver says; no access has changed then.
    pub fn grant(&mut self, pages: PageRange) -> Result<(), DriverError> {
        if pages.is_empty() {
            return Ok(());
        }
        let page_bytes = self.page_bytes();
        let address = self.address().add(u64::from(pages.first) * page_bytes);
        self.store.device().set_access(address, u64::from(pages.count) * page_bytes)?;
        for slot in &mut self.slots[pages.indices()] {
            if let Some(mapping) = &mut slot.mapping {
                mapping.set_access(Access::Granted);
            }
        }
        Ok(())
    }

    /// Moves the frame into a page that is mapped to it with access: the page is held from now on. With a frame that
    /// was here before, this is the second half of a revival.
    ///
    /// # Panics
    /// If the page is not mapped to this very frame, with access.
    pub fn hold(&mut self, page: u32, frame: Frame<D>) {
        let slot = &mut self.slots[page as usize];
        let fits = slot
            .mapping
            .as_ref()
            .is_some_and(|mapping| mapping.frame() == frame.id() && mapping.access() == Access::Granted);
        assert!(fits && slot.frame.is_none(), "page {page} of {:?} can't hold {:?}", self.id, frame.id());
        self.store.note_holder(frame.id(), Holder::Page(Place { segment: self.id, page }));
        self.pins += frame.pins();
        slot.frame = Some(frame);
        page_bits::set(&mut self.held, PageRange { first: page, count: 1 });
    }

    /// Takes the frame out of a held page, which is stale from now on. `last_use` is the last use through this page;
    /// it goes with the frame as its only unordered use, and stays with the mapping.
    ///
    /// Returns `None` if the page is not held, or its frame is pinned.
    pub fn take(&mut self, page: u32, last_use: Option<Use>) -> Option<Frame<D>> {
        let slot = self.slots.get_mut(page as usize)?;
        let mut frame = slot.frame.take_if(|frame| frame.pins() == 0)?;
        frame.set_uses(last_use.into_iter().collect::<Uses>());
        if let Some(mapping) = &mut slot.mapping {
            mapping.set_last_use(last_use);
        }
        page_bits::clear(&mut self.held, PageRange { first: page, count: 1 });
        self.store.note_holder(frame.id(), Holder::Thief);
        Some(frame)
    }

    /// Unmaps stale pages, given in ascending order: with one call for each run of neighbours where the device allows
    /// that. The caller has seen their last uses done.
    ///
    /// # Errors
    /// The first failure; the pages that were not reached, or whose unmap failed, are stale as before.
    ///
    /// # Panics
    /// If a page is not stale.
    pub fn unmap_stale(&mut self, pages: &[u32]) -> Result<(), DriverError> {
        let longest = if self.store.device().capabilities().unmap_spans_mappings { usize::MAX } else { 1 };
        let mut rest = pages;
        while let Some(&first) = rest.first() {
            let run = rest.iter().zip(first..).take_while(|(page, at)| **page == *at).count().min(longest);
            let (now, later) = rest.split_at(run);
            rest = later;
            self.unmap_run(now)?;
        }
        Ok(())
    }

    fn unmap_run(&mut self, pages: &[u32]) -> Result<(), DriverError> {
        for &page in pages {
            assert!(
                self.mapped[page as usize] && !self.is_held(page),
                "page {page} of {:?} is not stale",
                self.id
            );
        }
        let address = self.address().add(u64::from(pages[0]) * self.page_bytes());
        let count = pages.len() as u64;
        self.store.device().unmap(address, count * self.page_bytes(), count)?;
        for &page in pages {
            if let Some(mapping) = self.slots[page as usize].mapping.take() {
                self.store.note_unmapped(mapping.frame(), self.place(page));
                mapping.forget_unmapped();
            }
            self.mapped.set(page as usize, false);
        }
        Ok(())
    }

    /// The stale pages, in order.
    pub fn stale_pages(&self) -> impl Iterator<Item = u32> + '_ {
        page_bits::ones_except(self.mapped.as_raw_slice(), &self.held)
    }

    /// Unmaps everything, as few calls as can be, and puts the frames into the store. For the end of a heap: no block
    /// lives here and all uses are done.
    ///
    /// # Errors
    /// The first failure. All frames are in the store by then; what could not be unmapped is stale.
    pub fn clear(&mut self) -> Result<(), DriverError> {
        let pages: Vec<u32> = self.mapped.iter_ones().map(|at| at as u32).collect();
        let frames: Vec<Frame<D>> = pages.iter().filter_map(|&page| self.take(page, None)).collect();
        self.store.put(frames);
        let stale: Vec<u32> = self.stale_pages().collect();
        self.unmap_stale(&stale)
    }

    /// Gives the addresses back: the segment has no pages from then on.
    ///
    /// # Errors
    /// When the driver refuses, and, without a call, while a page is mapped or if it is a malloc segment. It is as before
    /// then.
    pub fn unreserve(&mut self) -> Result<(), DriverError> {
        if self.mapped.any() {
            let pages = self.mapped_pages();
            let detail = format!("{pages} pages of {:?} are mapped: unmap them first", self.id);
            return Err(DriverError::new(DriverErrorKind::Invalid, Call::Unreserve, detail));
        }
        match std::mem::replace(&mut self.memory, Memory::Gone) {
            Memory::Reserved(reservation) => {
                if let Err(Returned { owner: reservation, error }) = reservation.unreserve() {
                    self.memory = Memory::Reserved(reservation);
                    return Err(error);
                }
            }
            Memory::Malloc(malloc) => {
                self.memory = Memory::Malloc(malloc);
                return Err(self.is_malloc(Call::Unreserve));
            }
            Memory::Gone => {}
        }
        self.slots.clear();
        self.held.clear();
        self.mapped.clear();
        self.address = Address::default();
        Ok(())
    }

    /// The frame that a stale page is still mapped to, and the last use through the page.
    pub fn stale(&self, page: u32) -> Option<(FrameId, Option<Use>)> {
        let mapping = self.mapping(page).filter(|_| !self.is_held(page))?;
        Some((mapping.frame(), mapping.last_use()))
    }
}

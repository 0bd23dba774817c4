//! Addresses: reservations, and the mappings in them.
//!
//! Main types: [`AddressSpace`], [`Mapping`]. Neighbours: `page_table` says what is behind each page, `physical` has
//! the frames, `device` joins the two.

use crate::cost::CallCost;
use crate::page_table::PageTable;
use crate::rule::{Refusal, Rule};
use crate::slab::Slab;

/// One frame bound to a run of pages of one reservation.
#[derive(Debug)]
pub(crate) struct Mapping {
    /// The frame's slot.
    pub(crate) frame: u32,
    first_page: u64,
    pages: u64,
    pub(crate) accessible: bool,
}

impl Mapping {
    fn end_page(&self) -> u64 {
        self.first_page + self.pages
    }
}

#[derive(Debug)]
struct Reservation {
    start: u64,
    bytes: u64,
    mapped_pages: u64,
    pages: PageTable,
}

impl Reservation {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// Pages `first..end` of the reservation with this index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    reservation: usize,
    first: u64,
    end: u64,
}

/// What lies at some addresses of a reservation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Behind<'a> {
    /// A mapping, its slot, and how many bytes into it.
    Mapping(&'a Mapping, u32, u64),
    /// Nothing.
    Nothing,
}

#[derive(Debug)]
pub(crate) struct AddressSpace {
    granularity: u64,
    /// Where reservations begin: above all addresses of mallocs.
    base: u64,
    limit: u64,
    /// Sorted by address.
    reservations: Vec<Reservation>,
    /// Index of the reservation used last: most calls use it again.
    recent: usize,
    reserved_bytes: u64,
    mappings: Slab<Mapping>,
}

impl AddressSpace {
    pub(crate) const fn new(granularity: u64, base: u64, bytes: u64) -> Self {
        Self {
            granularity,
            base,
            limit: base + bytes,
            reservations: Vec::new(),
            recent: 0,
            reserved_bytes: 0,
            mappings: Slab::new(),
        }
    }

    pub(crate) const fn base(&self) -> u64 {
        self.base
    }

    pub(crate) const fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    pub(crate) fn reservation_count(&self) -> u64 {
        self.reservations.len() as u64
    }

    pub(crate) fn mapping_count(&self) -> u64 {
        self.mappings.len() as u64
    }

    /// Takes the lowest gap that fits. `bytes` is granular and above 0, `alignment` a power of two or 0.
    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64) -> Result<u64, Refusal> {
        let alignment = alignment.max(self.granularity);
        let align = |address: u64| address.checked_next_multiple_of(alignment);
        let mut index = 0;
        let mut start = align(self.base);
        for (next, reservation) in self.reservations.iter().enumerate() {
            let end = start.and_then(|start| start.checked_add(bytes));
            if end.is_some_and(|end| end <= reservation.start) {
                break;
            }
            index = next + 1;
            start = align(reservation.end());
        }
        let fits = |start: &u64| start.checked_add(bytes).is_some_and(|end| end <= self.limit);
        let Some(start) = start.filter(fits) else {
            return Err(Refusal::Full(format!(
                "no {bytes} bytes of addresses aligned to {alignment} are free; {} are reserved",
                self.reserved_bytes
            )));
        };
        let pages = PageTable::new(bytes / self.granularity);
        self.reservations.insert(index, Reservation { start, bytes, mapped_pages: 0, pages });
        self.recent = index;
        self.reserved_bytes += bytes;
        Ok(start)
    }

    pub(crate) fn unreserve(&mut self, address: u64, bytes: u64) -> Result<(), Refusal> {
        let Some(index) = self.find(address) else {
            return Rule::OutsideReservation.broken(|| format!("{address:#x} is not reserved"));
        };
        let reservation = &self.reservations[index];
        if reservation.start != address || reservation.bytes != bytes {
            let (start, size) = (reservation.start, reservation.bytes);
            return Rule::UnreserveNotExact.broken(|| {
                format!("{bytes} bytes at {address:#x} of a reservation of {size} at {start:#x}")
            });
        }
        if reservation.mapped_pages != 0 {
            let pages = reservation.mapped_pages;
            return Rule::UnreserveMapped
                .broken(|| format!("{pages} pages of the {bytes} bytes at {address:#x} are mapped"));
        }
        self.reservations.remove(index);
        self.reserved_bytes -= bytes;
        Ok(())
    }

    fn find(&mut self, address: u64) -> Option<usize> {
        let hit = |reservation: &Reservation| address >= reservation.start && address < reservation.end();
        if self.reservations.get(self.recent).is_some_and(hit) {
            return Some(self.recent);
        }
        let after = self.reservations.partition_point(|reservation| reservation.start <= address);
        let index = after.checked_sub(1)?;
        if !hit(&self.reservations[index]) {
            return None;
        }
        self.recent = index;
        Some(index)
    }

    /// The pages of a granular range inside one reservation.
    pub(crate) fn place(&mut self, address: u64, bytes: u64) -> Result<Place, Refusal> {
        let granularity = self.granularity;
        if bytes == 0 {
            return Rule::SizeZero.broken(|| format!("0 bytes at {address:#x}"));
        }
        if !bytes.is_multiple_of(granularity) {
            return Rule::SizeNotGranular
                .broken(|| format!("{bytes} bytes; the granularity is {granularity}"));
        }
        if !address.is_multiple_of(granularity) {
            return Rule::AddressNotGranular
                .broken(|| format!("address {address:#x}; the granularity is {granularity}"));
        }
        let place = self.find(address).and_then(|index| {
            let reservation = &self.reservations[index];
            let end = address.checked_add(bytes).filter(|&end| end <= reservation.end())?;
            let page = |address: u64| (address - reservation.start) / granularity;
            Some(Place { reservation: index, first: page(address), end: page(end) })
        });
        let Some(place) = place else {
            return Rule::OutsideReservation
                .broken(|| format!("{bytes} bytes at {address:#x} are not inside one reservation"));
        };
        Ok(place)
    }

    pub(crate) fn check_unmapped(&self, place: Place) -> Result<(), Refusal> {
        let reservation = &self.reservations[place.reservation];
        match reservation.pages.first_mapped(place.first, place.end) {
            None => Ok(()),
            Some(page) => {
                let address = reservation.start + page * self.granularity;
                Rule::MapOverMapped.broken(|| format!("the page at {address:#x} is mapped"))
            }
        }
    }

    pub(crate) fn map(&mut self, place: Place, frame: u32) {
        let pages = place.end - place.first;
        let mapping = Mapping { frame, first_page: place.first, pages, accessible: false };
        let slot = self.mappings.insert(mapping).slot;
        let reservation = &mut self.reservations[place.reservation];
        reservation.pages.set(place.first, place.end, slot);
        reservation.mapped_pages += pages;
    }

    /// Checks that the place is made of whole mappings. Their number, and what a call on them costs.
    pub(crate) fn check_whole(
        &self,
        place: Place,
        rules: WholeRules,
        cost: &CallCost,
    ) -> Result<(u64, u64), Refusal> {
        let reservation = &self.reservations[place.reservation];
        let address = |page: u64| reservation.start + page * self.granularity;
        let (mut count, mut ns) = (0, cost.base_ns);
        let mut page = place.first;
        while page < place.end {
            let Some(slot) = reservation.pages.get(page) else {
                return rules.unmapped.broken(|| format!("the page at {:#x} is not mapped", address(page)));
            };
            let mapping = self.mappings.at(slot);
            if mapping.first_page < place.first || mapping.end_page() > place.end {
                return rules.part.broken(|| {
                    let (start, end) = (address(mapping.first_page), address(mapping.end_page()));
                    let (first, last) = (address(place.first), address(place.end));
                    format!("{first:#x}..{last:#x} cuts the mapping at {start:#x}..{end:#x}")
                });
            }
            ns = ns.saturating_add(cost.beyond_base(mapping.pages * self.granularity));
            count += 1;
            page = mapping.end_page();
        }
        Ok((count, ns.saturating_add(cost.per_mapping_ns.saturating_mul(count - 1))))
    }

    /// Removes all mappings of a place that was checked, and tells the slot and the frame of each.
    pub(crate) fn unmap(&mut self, place: Place, mut gone: impl FnMut(u32, u32)) {
        let reservation = &mut self.reservations[place.reservation];
        let mut page = place.first;
        while let Some(slot) = (page < place.end).then(|| reservation.pages.get(page)).flatten() {
            let mapping = self.mappings.remove(slot);
            page = mapping.end_page();
            gone(slot, mapping.frame);
        }
        reservation.pages.clear(place.first, place.end);
        reservation.mapped_pages -= place.end - place.first;
    }

    /// Gives access to all mappings of a place that was checked.
    pub(crate) fn give_access(&mut self, place: Place) {
        let reservation = &self.reservations[place.reservation];
        let mut page = place.first;
        while let Some(slot) = (page < place.end).then(|| reservation.pages.get(page)).flatten() {
            let mapping = self.mappings.at_mut(slot);
            mapping.accessible = true;
            page = mapping.end_page();
        }
    }

    /// What is behind an address, and for how many bytes from there the answer holds.
    pub(crate) fn behind(&mut self, address: u64) -> (Behind<'_>, u64) {
        let Some(index) = self.find(address) else {
            let after = self.reservations.partition_point(|reservation| reservation.start <= address);
            let next = self.reservations.get(after).map_or(u64::MAX, |reservation| reservation.start);
            return (Behind::Nothing, next - address);
        };
        let reservation = &self.reservations[index];
        let offset = address - reservation.start;
        let page = offset / self.granularity;
        match reservation.pages.get(page) {
            Some(slot) => {
                let mapping = self.mappings.at(slot);
                let into = offset - mapping.first_page * self.granularity;
                (Behind::Mapping(mapping, slot, into), mapping.pages * self.granularity - into)
            }
            None => {
                let last = reservation.bytes / self.granularity;
                let next = reservation.pages.first_mapped(page, last).unwrap_or(last);
                (Behind::Nothing, next * self.granularity - offset)
            }
        }
    }

    /// Reservations, their bytes, and mappings, counted page by page.
    pub(crate) fn recount(&self) -> (u64, u64, u64) {
        let bytes = self.reservations.iter().map(|reservation| reservation.bytes).sum();
        let mut mappings = 0;
        for reservation in &self.reservations {
            let end = reservation.bytes / self.granularity;
            let mut page = 0;
            while let Some(mapped) = reservation.pages.first_mapped(page, end) {
                let slot = reservation.pages.get(mapped).expect("the page was found mapped");
                mappings += 1;
                page = self.mappings.at(slot).end_page();
            }
        }
        (self.reservations.len() as u64, bytes, mappings)
    }
}

/// The names of the two rules about whole mappings, which an unmap and a set access share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeRules {
    pub(crate) unmapped: Rule,
    pub(crate) part: Rule,
}

//! Values under small numbers that are given again: no allocation once the slab has grown to its peak.
//!
//! Main types: [`Slab`], [`Key`]. Neighbours: `physical` keeps frames in one, `address_space` mappings, `timeline`
//! events.

/// A value's number, and how often that number had been given before: a key of a removed value is never mistaken for
/// the value that took its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl Key {
    /// The key as one number that is never 0.
    pub(crate) const fn to_raw(self) -> u64 {
        ((self.generation as u64) << 32 | self.slot as u64).wrapping_add(1)
    }

    /// The key that `raw` stands for. Any number gives one; whether it is of a value is asked when it is used.
    pub(crate) const fn from_raw(raw: u64) -> Self {
        let raw = raw.wrapping_sub(1);
        Self { slot: raw as u32, generation: (raw >> 32) as u32 }
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// Slots without a value; the last one is given next.
    vacant: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), vacant: Vec::new() }
    }

    /// # Panics
    /// With 2^32 values at once.
    pub(crate) fn insert(&mut self, value: T) -> Key {
        if let Some(slot) = self.vacant.pop() {
            let place = &mut self.slots[slot as usize];
            place.value = Some(value);
            return Key { slot, generation: place.generation };
        }
        let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 values are held at once");
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Key { slot, generation: 0 }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.slots.get(key.slot as usize)?;
        if place.generation == key.generation { place.value.as_ref() } else { None }
    }

    /// The value in a slot that the caller knows to be taken.
    pub(crate) fn at(&self, slot: u32) -> &T {
        self.slots[slot as usize].value.as_ref().expect("the slot is taken")
    }

    /// The same, to be changed.
    pub(crate) fn at_mut(&mut self, slot: u32) -> &mut T {
        self.slots[slot as usize].value.as_mut().expect("the slot is taken")
    }

    /// The key of a slot as it is now.
    pub(crate) fn key_of(&self, slot: u32) -> Key {
        Key { slot, generation: self.slots[slot as usize].generation }
    }

    pub(crate) fn remove(&mut self, slot: u32) -> T {
        let place = &mut self.slots[slot as usize];
        let value = place.value.take().expect("the slot is taken");
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(slot);
        value
    }

    /// Removes all values whose slots are not to be kept.
    pub(crate) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].value.is_some() && !keep(slot) {
                self.remove(slot);
            }
        }
    }

    /// One more than the largest slot ever given.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.vacant.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.value.as_ref())
    }
}

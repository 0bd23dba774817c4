//! The name of a block in its heap.
//!
//! Main type: [`BlockId`]. Neighbours: `block` has the blocks by their numbers; handles name theirs with an id.

use core::fmt;
use core::num::NonZeroU64;

/// A block's number, and which use of the number it is: no other block that is or ever was in the heap has the same, but for
/// generations that come back after 2^32 uses. One word, and an optional one as well, so that it goes from hand to hand in
/// a register.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
// The generation, above the number and 1.
pub struct BlockId(NonZeroU64);

const GENERATION_SHIFT: u32 = 32;

impl BlockId {
    /// The id of a block with this number, of fewer than `u32::MAX`, in this use of the number.
    #[inline]
    pub fn new(number: u32, generation: u32) -> Self {
        let word = u64::from(generation) << GENERATION_SHIFT | u64::from(number.wrapping_add(1));
        // Never the other one, by the number's limit.
        Self(NonZeroU64::new(word).unwrap_or(NonZeroU64::MIN))
    }

    /// The id in this word, if it has one: not 0.
    #[inline]
    pub fn from_word(word: u64) -> Option<Self> {
        NonZeroU64::new(word).map(Self)
    }

    /// The id in one word, not 0.
    #[inline]
    pub fn word(self) -> u64 {
        self.0.get()
    }

    /// The block's number in its heap.
    #[inline]
    pub fn number(self) -> u32 {
        (self.word() as u32).wrapping_sub(1)
    }

    /// Which use of the number it is.
    #[inline]
    pub fn generation(self) -> u32 {
        (self.word() >> GENERATION_SHIFT) as u32
    }

    /// The id of the next block with this number.
    #[inline]
    pub(crate) fn next(self) -> Self {
        let word = self.word().wrapping_add(1 << GENERATION_SHIFT);
        // Never the other one: the number is in it as before.
        Self(NonZeroU64::new(word).unwrap_or(NonZeroU64::MIN))
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockId({}, generation {})", self.number(), self.generation())
    }
}

#[cfg(test)]
mod tests {
    use super::BlockId;

    #[test]
    fn an_id_is_its_two_numbers_and_one_word() {
        for number in [0, 1, 7, u32::MAX - 1] {
            for generation in [0, 1, u32::MAX] {
                let id = BlockId::new(number, generation);
                assert_eq!((id.number(), id.generation()), (number, generation));
                assert_eq!(BlockId::from_word(id.word()), Some(id));
                assert_eq!(id.next(), BlockId::new(number, generation.wrapping_add(1)));
            }
        }
        assert_eq!(BlockId::from_word(0), None);
        assert_eq!(size_of::<Option<BlockId>>(), 8);
    }
}

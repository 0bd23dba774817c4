//! Runs of bits in a bitmap of pages, a word at a time.
//!
//! Main functions: [`all`], [`set`], [`clear`]. Neighbours: `segment` has the bitmap "held", the heap's `idle` another;
//! both use `bitvec` for all that is not on the way of a hit.
//!
//! `bitvec` has slices that begin at any bit of a word, and pays for that with some 80 instructions a call. The bitmaps
//! here begin at a whole word, and most runs lie in one.

use bitvec::vec::BitVec;

use crate::units::PageRange;

/// The words that the run touches, each with the bits of it that belong to the run.
#[inline]
fn masks(pages: PageRange) -> impl Iterator<Item = (usize, u64)> {
    let (first, end) = (pages.indices().start, pages.indices().end);
    (first / 64..end.div_ceil(64)).map(move |word| {
        let from = first.saturating_sub(word * 64);
        let behind = ((word + 1) * 64).saturating_sub(end);
        (word, (u64::MAX << from) & (u64::MAX >> behind))
    })
}

/// Whether every page of the run has its bit set. A page behind the end of the bitmap has none.
#[inline]
pub fn all(bits: &BitVec<u64>, pages: PageRange) -> bool {
    let words = bits.as_raw_slice();
    pages.end() as usize <= bits.len() && masks(pages).all(|(word, mask)| words[word] & mask == mask)
}

/// Sets the bit of every page of the run.
///
/// # Panics
/// If the bitmap ends before the run does.
#[inline]
pub fn set(bits: &mut BitVec<u64>, pages: PageRange) {
    assert!(pages.end() as usize <= bits.len(), "the bitmap has a bit for each page");
    let words = bits.as_raw_mut_slice();
    masks(pages).for_each(|(word, mask)| words[word] |= mask);
}

/// Clears the bit of every page of the run.
///
/// # Panics
/// If the bitmap ends before the run does.
#[inline]
pub fn clear(bits: &mut BitVec<u64>, pages: PageRange) {
    assert!(pages.end() as usize <= bits.len(), "the bitmap has a bit for each page");
    let words = bits.as_raw_mut_slice();
    masks(pages).for_each(|(word, mask)| words[word] &= !mask);
}

#[cfg(test)]
mod tests {
    use bitvec::bitvec;
    use bitvec::order::Lsb0;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// `bitvec`'s own slices are the model.
        #[test]
        fn agrees_with_slices_of_bits(
            len in 0u32..300,
            runs in prop::collection::vec((any::<u32>(), any::<u32>(), 0u8..3), 1..50),
        ) {
            let mut bits = bitvec![u64, Lsb0; 0; len as usize];
            let mut model = bits.clone();
            for (first, count, what) in runs {
                let first = first % (len + 1);
                let pages = PageRange::between(first, first + count % (len + 1 - first));
                match what {
                    0 => {
                        set(&mut bits, pages);
                        model[pages.indices()].fill(true);
                    }
                    1 => {
                        clear(&mut bits, pages);
                        model[pages.indices()].fill(false);
                    }
                    _ => prop_assert_eq!(all(&bits, pages), model[pages.indices()].all()),
                }
                prop_assert_eq!(&bits, &model);
            }
        }
    }

    #[test]
    fn no_page_behind_the_end_is_set() {
        let bits = bitvec![u64, Lsb0; 1; 70];
        assert!(all(&bits, PageRange::between(3, 70)));
        assert!(!all(&bits, PageRange::between(3, 71)));
        assert!(!all(&bits, PageRange::between(69, 200)));
    }
}

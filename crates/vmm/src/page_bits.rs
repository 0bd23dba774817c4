//! Runs of bits in a bitmap of pages, a word at a time.
//!
//! Main functions: [`get`], [`all`], [`set`], [`clear`]. Neighbours: `segment` has the bitmap "held", the heap's `idle` another;
//! both use `bitvec` for all that is not on the way of a hit.
//!
//! `bitvec` has slices that begin at any bit of a word, and pays for that with some 80 instructions a call. The bitmaps
//! here begin at a whole word, and most runs lie in one.

use bitvec::vec::BitVec;

use crate::units::PageRange;

/// The bits of the run's first word from its first page on, and of its last word up to its last page.
#[inline]
fn ends(pages: PageRange) -> (u64, u64) {
    (u64::MAX << (pages.first % 64), u64::MAX >> (pages.end().wrapping_neg() % 64))
}

/// Calls `visit` with each word that the run touches and a mask of the bits in it that belong to the run, as long as it
/// agrees. Returns whether it always did.
#[inline]
fn visit(pages: PageRange, mut visit: impl FnMut(usize, u64) -> bool) -> bool {
    if pages.is_empty() {
        return true;
    }
    let (first, last) = (pages.first as usize / 64, (pages.end() - 1) as usize / 64);
    let (from, to) = ends(pages);
    if first == last {
        return visit(first, from & to);
    }
    visit(first, from) && (first + 1..last).all(|word| visit(word, u64::MAX)) && visit(last, to)
}

/// Whether the page has its bit set; `None` behind the end of the bitmap.
#[inline]
pub fn get(bits: &BitVec<u64>, page: u32) -> Option<bool> {
    let word = bits.as_raw_slice().get(page as usize / 64).filter(|_| (page as usize) < bits.len())?;
    Some(word >> (page % 64) & 1 == 1)
}

/// Whether every page of the run has its bit set. A page behind the end of the bitmap has none.
#[inline]
pub fn all(bits: &BitVec<u64>, pages: PageRange) -> bool {
    let words = bits.as_raw_slice();
    pages.end() as usize <= bits.len() && visit(pages, |word, mask| words[word] & mask == mask)
}

/// Sets the bit of every page of the run.
///
/// # Panics
/// If the bitmap ends before the run does.
#[inline]
pub fn set(bits: &mut BitVec<u64>, pages: PageRange) {
    change(bits, pages, |word, mask| *word |= mask);
}

/// Clears the bit of every page of the run.
///
/// # Panics
/// If the bitmap ends before the run does.
#[inline]
pub fn clear(bits: &mut BitVec<u64>, pages: PageRange) {
    change(bits, pages, |word, mask| *word &= !mask);
}

#[inline]
fn change(bits: &mut BitVec<u64>, pages: PageRange, change: impl Fn(&mut u64, u64)) {
    assert!(pages.end() as usize <= bits.len(), "the bitmap has a bit for each page");
    let words = bits.as_raw_mut_slice();
    visit(pages, |word, mask| {
        change(&mut words[word], mask);
        true
    });
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
                let known = |page: u32| model.get(page as usize).map(|bit| *bit);
                for page in [pages.first, pages.end(), len + 64] {
                    prop_assert_eq!(get(&bits, page), known(page));
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

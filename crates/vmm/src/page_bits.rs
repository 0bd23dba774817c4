//! Bitmaps of pages, a word at a time: slices of whole words, page by page from bit 0 of the first one on.
//!
//! Main functions: [`get`], [`all`], [`set`], [`clear`], [`count`], [`count_both`], [`ones_except`], [`zeros`]; of one word,
//! [`bits_of`]; of a run, [`words_of`], [`bits_by_word`], [`change`]. Neighbours: `segment` has the bitmap "held", the heap's
//! `idle` another: both are read and written by each hit.
//!
//! `bitvec`, which serves for what is not on the way of a hit, has slices that begin at any bit of a word, and pays for that
//! with 80 instructions a run and 25 a bit. Most runs here lie in one word.

use core::ops::Range;

use crate::units::PageRange;

/// Pages in one word.
pub const WORD_PAGES: u32 = u64::BITS;

/// Number of words that so many pages take.
#[inline]
pub const fn words_for(pages: u32) -> usize {
    pages.div_ceil(WORD_PAGES) as usize
}

/// The words that the bits of a run of pages, not empty, are in.
#[inline]
pub fn words_of(pages: PageRange) -> Range<usize> {
    (pages.first / WORD_PAGES) as usize..((pages.end() - 1) / WORD_PAGES + 1) as usize
}

/// The bits of a run of pages, not empty, in each of [`words_of`] it.
#[inline]
pub fn bits_by_word(pages: PageRange) -> impl Iterator<Item = u64> {
    let (mut from, to) = ends(pages);
    let Range { start, end } = words_of(pages);
    (start..end).map(move |word| {
        let bits = if word + 1 == end { from & to } else { from };
        from = u64::MAX;
        bits
    })
}

/// The numbers of the bits that are set, ascending.
#[inline]
pub fn bits_of(bits: u64) -> impl DoubleEndedIterator<Item = u32> {
    Bits(bits)
}

/// The bits that are still to come.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        let bit = self.0.trailing_zeros();
        (self.0 != 0).then(|| self.0 &= self.0 - 1).map(|()| bit)
    }
}

impl DoubleEndedIterator for Bits {
    #[inline]
    fn next_back(&mut self) -> Option<u32> {
        let bit = self.0.checked_ilog2()?;
        self.0 ^= 1 << bit;
        Some(bit)
    }
}

/// The bits of the run's first word from its first page on, and of its last word up to its last page.
#[inline]
fn ends(pages: PageRange) -> (u64, u64) {
    (u64::MAX << (pages.first % WORD_PAGES), u64::MAX >> (pages.end().wrapping_neg() % WORD_PAGES))
}

/// Whether the page has its bit set; `None` behind the end of the bitmap.
#[inline]
pub fn get(words: &[u64], page: u32) -> Option<bool> {
    words.get((page / WORD_PAGES) as usize).map(|word| word >> (page % WORD_PAGES) & 1 == 1)
}

/// Whether every page of the run has its bit set. A page behind the end of the bitmap has none.
#[inline]
pub fn all(words: &[u64], pages: PageRange) -> bool {
    if pages.is_empty() {
        return true;
    }
    let (from, to) = ends(pages);
    let run = (pages.first / WORD_PAGES) as usize..=((pages.end() - 1) / WORD_PAGES) as usize;
    match words.get(run) {
        Some([word]) => word & from & to == from & to,
        Some([first, between @ .., last]) => {
            first & from == from && last & to == to && between.iter().all(|word| *word == u64::MAX)
        }
        _ => false,
    }
}

/// Number of pages that have their bit set.
pub fn count(words: &[u64]) -> u32 {
    words.iter().map(|word| word.count_ones()).sum()
}

/// Number of pages that have their bit in both. In `b` a page behind the end has it.
pub fn count_both(a: &[u64], b: impl Iterator<Item = u64>) -> u64 {
    let in_b = b.chain(std::iter::repeat(u64::MAX));
    a.iter().zip(in_b).map(|(a, b)| u64::from((a & b).count_ones())).sum()
}

/// The pages that have their bit in `a` and not in `b`, in order. A page behind the end of either has none there.
pub fn ones_except<'a>(a: &'a [u64], b: &'a [u64]) -> impl Iterator<Item = u32> + 'a {
    let in_b = b.iter().copied().chain(std::iter::repeat(0));
    let words = (0..).zip(a.iter().zip(in_b).map(|(a, b)| a & !b));
    words.flat_map(|(at, word)| bits_of(word).map(move |bit| WORD_PAGES * at + bit))
}

/// The pages of the run that don't have their bit set, in order; those behind the end of the bitmap are among them.
pub fn zeros(words: &[u64], pages: PageRange) -> impl DoubleEndedIterator<Item = u32> + '_ {
    let (from, to) = ends(pages);
    let first = pages.first / WORD_PAGES;
    let end = if pages.is_empty() { first } else { (pages.end() - 1) / WORD_PAGES + 1 };
    (first..end).flat_map(move |at| {
        let from = if at == first { from } else { u64::MAX };
        let to = if at + 1 == end { to } else { u64::MAX };
        let set = words.get(at as usize).copied().unwrap_or(0);
        bits_of(!set & from & to).map(move |bit| WORD_PAGES * at + bit)
    })
}

/// Sets the bit of every page of the run.
///
/// # Panics
/// If the bitmap ends before the run does.
#[inline]
pub fn set(words: &mut [u64], pages: PageRange) {
    change(words, pages, |word, mask| *word |= mask);
}

/// Clears the bit of every page of the run.
///
/// # Panics
/// If the bitmap ends before the run does.
#[inline]
pub fn clear(words: &mut [u64], pages: PageRange) {
    change(words, pages, |word, mask| *word &= !mask);
}

/// Changes every word that has bits of the run, which the change is told.
///
/// # Panics
/// If the bitmap ends before the run does.
#[inline]
pub fn change<T>(words: &mut [T], pages: PageRange, change: impl Fn(&mut T, u64)) {
    if pages.is_empty() {
        return;
    }
    let (from, to) = ends(pages);
    let run = (pages.first / WORD_PAGES) as usize..=((pages.end() - 1) / WORD_PAGES) as usize;
    match &mut words[run] {
        [word] => change(word, from & to),
        [first, between @ .., last] => {
            change(first, from);
            between.iter_mut().for_each(|word| change(word, u64::MAX));
            change(last, to);
        }
        [] => {}
    }
}

#[cfg(test)]
mod tests {
    use bitvec::order::Lsb0;
    use bitvec::vec::BitVec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// `bitvec`'s own slices are the model.
        #[test]
        fn agrees_with_slices_of_bits(
            len in 0u32..5,
            runs in prop::collection::vec((any::<u32>(), any::<u32>(), 0u8..3), 1..50),
        ) {
            let mut words = vec![0; len as usize];
            let mut model: BitVec<u64, Lsb0> = BitVec::from_vec(words.clone());
            let len = WORD_PAGES * len;
            for (first, count, what) in runs {
                let first = first % (len + 1);
                let pages = PageRange::between(first, first + count % (len + 1 - first));
                match what {
                    0 => {
                        set(&mut words, pages);
                        model[pages.indices()].fill(true);
                    }
                    1 => {
                        clear(&mut words, pages);
                        model[pages.indices()].fill(false);
                    }
                    _ => prop_assert_eq!(all(&words, pages), model[pages.indices()].all()),
                }
                let known = |page: u32| model.get(page as usize).map(|bit| *bit);
                let beyond = PageRange::between(pages.first, pages.end() + 70);
                let model_zeros = beyond.iter().filter(|page| known(*page) != Some(true));
                let model_zeros: Vec<u32> = model_zeros.collect();
                prop_assert_eq!(&zeros(&words, beyond).collect::<Vec<_>>(), &model_zeros);
                prop_assert!(zeros(&words, beyond).rev().eq(model_zeros.into_iter().rev()));
                for page in [pages.first, pages.end(), len + 64] {
                    prop_assert_eq!(get(&words, page), known(page));
                }
                prop_assert_eq!(super::count(&words) as usize, model.count_ones());
                prop_assert_eq!(&words, model.as_raw_slice());
                prop_assert_eq!(words_for(len), words.len());
            }
        }

        /// Page by page is the model.
        #[test]
        fn bits_by_word_agree_with_the_pages(first in 0u32..200, count in 1u32..200) {
            let run = PageRange { first, count };
            let words = words_of(run).zip(bits_by_word(run));
            let pages = words.flat_map(|(word, bits)| bits_of(bits).map(move |bit| word as u32 * WORD_PAGES + bit));
            prop_assert_eq!(pages.collect::<Vec<_>>(), run.iter().collect::<Vec<_>>());
            prop_assert_eq!(bits_by_word(run).count(), words_of(run).len());
        }

        /// Page by page is the model.
        #[test]
        fn two_bitmaps_agree_with_their_pages(
            a in prop::collection::vec(any::<u64>(), 0..5),
            b in prop::collection::vec(any::<u64>(), 0..5),
        ) {
            let bits = |words: &[u64]| BitVec::<u64, Lsb0>::from_slice(words);
            let (model_a, model_b) = (bits(&a), bits(&b));
            let in_a: Vec<usize> = model_a.iter_ones().collect();
            let in_b = |page: usize| model_b.get(page).map(|bit| *bit);
            let both = in_a.iter().filter(|&&page| in_b(page) != Some(false)).count();
            prop_assert_eq!(count_both(&a, b.iter().copied()), both as u64);
            let except: Vec<u32> =
                in_a.iter().filter(|&&page| in_b(page) != Some(true)).map(|&page| page as u32).collect();
            prop_assert_eq!(ones_except(&a, &b).collect::<Vec<_>>(), except);
        }
    }

    #[test]
    fn no_page_behind_the_end_is_set() {
        let words = [u64::MAX; 2];
        assert!(all(&words, PageRange::between(3, 128)));
        assert!(!all(&words, PageRange::between(3, 129)));
        assert!(!all(&words, PageRange::between(127, 300)));
        assert!(!all(&words, PageRange::between(200, 300)));
    }
}

//! Runs of bits in a bitmap of pages, a word at a time.
//!
//! Main functions: [`get`], [`all`], [`set`], [`clear`], [`count_both`], [`ones_except`], [`zeros`]. Neighbours: `segment` has the bitmap
//! "held", the heap's `idle` another; both use `bitvec` for all that is not on the way of a hit.
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

/// Words of both bitmaps, as far as either goes: beyond its end a bitmap has the bit `beyond`.
fn words<'a>(
    (a, beyond_a): (&'a BitVec<u64>, bool),
    (b, beyond_b): (&'a BitVec<u64>, bool),
) -> impl Iterator<Item = (u64, u64)> + 'a {
    let word = |bits: &'a BitVec<u64>, beyond: bool, at: usize| {
        let filling = if beyond { u64::MAX } else { 0 };
        let known = bits.len().saturating_sub(64 * at).min(64);
        // The bits behind the end of a bitmap are of no meaning.
        let mask = if known == 64 { u64::MAX } else { (1 << known) - 1 };
        bits.as_raw_slice().get(at).map_or(filling, |word| word & mask | filling & !mask)
    };
    let count = a.len().max(b.len()).div_ceil(64);
    (0..count).map(move |at| (word(a, beyond_a, at), word(b, beyond_b, at)))
}

/// Number of pages that have their bit in both. In `b` a page behind the end has it.
pub fn count_both(a: &BitVec<u64>, b: &BitVec<u64>) -> u64 {
    words((a, false), (b, true)).map(|(a, b)| u64::from((a & b).count_ones())).sum()
}

/// The pages that have their bit in `a` and not in `b`, in order. A page behind the end of either has none there.
pub fn ones_except<'a>(a: &'a BitVec<u64>, b: &'a BitVec<u64>) -> impl Iterator<Item = u32> + 'a {
    let found = (0..).zip(words((a, false), (b, false))).map(|(at, (a, b))| (64 * at, a & !b));
    found.filter(|(_, word)| *word != 0).flat_map(|(first, mut word)| {
        std::iter::from_fn(move || {
            let bit = word.trailing_zeros();
            (word != 0).then(|| {
                word &= word - 1;
                first + bit
            })
        })
    })
}

/// The pages of the run that don't have their bit set, in order; those behind the end of the bitmap are among them.
pub fn zeros(bits: &BitVec<u64>, pages: PageRange) -> impl Iterator<Item = u32> + '_ {
    let (words, len) = (bits.as_raw_slice(), bits.len());
    let end = if pages.is_empty() { pages.first / 64 } else { (pages.end() - 1) / 64 + 1 };
    let (from, to) = ends(pages);
    let zeros_of = move |word: u32| {
        let at = word as usize;
        // What a word has behind the end of the bitmap means nothing.
        let known = if 64 * (at + 1) <= len { u64::MAX } else { !(u64::MAX << (len % 64)) };
        let set = words.get(at).map_or(0, |word| word & known);
        let first = if word == pages.first / 64 { from } else { u64::MAX };
        let last = if word + 1 == end { to } else { u64::MAX };
        !set & first & last
    };
    let mut word = pages.first / 64;
    let mut rest = if word < end { zeros_of(word) } else { 0 };
    std::iter::from_fn(move || {
        while rest == 0 {
            word += 1;
            if word >= end {
                return None;
            }
            rest = zeros_of(word);
        }
        let bit = rest.trailing_zeros();
        rest &= rest - 1;
        Some(64 * word + bit)
    })
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
                let beyond = PageRange::between(pages.first, pages.end() + 70);
                let model_zeros = beyond.iter().filter(|page| known(*page) != Some(true));
                prop_assert_eq!(zeros(&bits, beyond).collect::<Vec<_>>(), model_zeros.collect::<Vec<_>>());
                for page in [pages.first, pages.end(), len + 64] {
                    prop_assert_eq!(get(&bits, page), known(page));
                }
                prop_assert_eq!(&bits, &model);
            }
        }
    }

    proptest! {
        /// Page by page is the model.
        #[test]
        fn two_bitmaps_agree_with_their_pages(
            a in prop::collection::vec(any::<bool>(), 0..300),
            b in prop::collection::vec(any::<bool>(), 0..300),
            cut in 0..64usize,
        ) {
            // Cut at the end, so that something lies behind it.
            let bits = |pages: &[bool]| {
                let mut bits: BitVec<u64> = pages.iter().chain(&[true; 64]).collect();
                bits.truncate(pages.len().saturating_sub(cut));
                bits
            };
            let (a, b) = (bits(&a), bits(&b));
            let in_a: Vec<usize> = (0..a.len()).filter(|&page| a[page]).collect();
            let both = in_a.iter().filter(|&&page| b.get(page).is_none_or(|bit| *bit)).count();
            prop_assert_eq!(count_both(&a, &b), both as u64);
            let except: Vec<u32> =
                in_a.iter().filter(|&&page| !b.get(page).is_some_and(|bit| *bit)).map(|&page| page as u32).collect();
            prop_assert_eq!(ones_except(&a, &b).collect::<Vec<_>>(), except);
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

//! The cells of the memory map: pages in the order of their addresses, some of them together in one cell.
//!
//! Main types: [`Cells`], [`Cell`], [`MapFigures`]. Neighbours: `concertina_trace::Picture` has the pages; `map_chart`
//! draws the cells.

use concertina_trace::{PageState, PicturePage};

/// Cells that a gap, or a run of stale pages, takes at most: how long it is, says the number.
const LONGEST_GAP: u64 = 4;

/// A cell of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    /// Pages that are held.
    Held(HeldCell),
    /// A run of stale pages.
    Stale {
        /// Pages in it.
        pages: u64,
    },
    /// A run of addresses with nothing behind them.
    Gap {
        /// Pages in it.
        pages: u64,
    },
}

/// Held pages that follow one another, but for what is too short for a cell of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HeldCell {
    /// Pages with live bytes.
    pub(super) live_pages: u64,
    /// Pages without.
    pub(super) idle_pages: u64,
    /// Live bytes.
    pub(super) live_bytes: u64,
}

impl HeldCell {
    /// Pages that count for physical memory.
    pub(super) const fn pages(&self) -> u64 {
        self.live_pages + self.idle_pages
    }

    fn add(&mut self, page: &PicturePage) {
        match page.state {
            PageState::Live => self.live_pages += 1,
            PageState::Idle | PageState::Stale => self.idle_pages += 1,
        }
        self.live_bytes += page.live_bytes;
    }
}

/// All cells of one picture.
#[derive(Debug)]
pub(super) struct Cells {
    pages_each: u64,
    cells: Vec<Cell>,
    open: HeldCell,
    /// Length of the run of stale pages, and of the run of gaps, that has not become cells yet.
    stale: u64,
    gap: u64,
}

impl Cells {
    /// The cells of these pages, with so many held pages in each.
    pub(super) fn of(pages: &[PicturePage], pages_each: u64) -> Vec<Cell> {
        let mut cells = Self {
            pages_each: pages_each.max(1),
            cells: Vec::new(),
            open: HeldCell::default(),
            stale: 0,
            gap: 0,
        };
        let mut next = pages.first().map_or(0, |page| page.number);
        for page in pages {
            if page.number > next {
                cells.end_stale();
                cells.gap = page.number - next;
                cells.end_gap();
            }
            next = page.number + 1;
            if page.state == PageState::Stale {
                cells.stale += 1;
                continue;
            }
            cells.end_stale();
            cells.open.add(page);
            if cells.open.pages() == cells.pages_each {
                cells.close();
            }
        }
        cells.end_stale();
        cells.close();
        cells.cells
    }

    fn close(&mut self) {
        let open = std::mem::take(&mut self.open);
        if open.pages() > 0 {
            self.cells.push(Cell::Held(open));
        }
    }

    fn end_stale(&mut self) {
        let pages = std::mem::take(&mut self.stale);
        self.run(pages, |pages| Cell::Stale { pages });
    }

    fn end_gap(&mut self) {
        let pages = std::mem::take(&mut self.gap);
        self.run(pages, |pages| Cell::Gap { pages });
    }

    fn run(&mut self, pages: u64, cell: impl Fn(u64) -> Cell) {
        let count = (pages / self.pages_each).min(LONGEST_GAP);
        if count > 0 {
            self.close();
            self.cells.extend((0..count).map(|_| cell(pages)));
        }
    }
}

/// What a picture has in numbers. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MapFigures {
    /// Live bytes, as asked.
    pub(super) live: u64,
    /// Pages with live bytes.
    pub(super) in_live_pages: u64,
    /// Pages without, each memory once.
    pub(super) idle: u64,
    /// The longest run of idle pages.
    pub(super) longest_idle: u64,
    /// Second mappings.
    pub(super) stale: u64,
    /// Physical memory that no address leads to.
    pub(super) unmapped: u64,
}

impl MapFigures {
    /// Of these pages, where so much is mapped in all.
    pub(super) fn of(pages: &[PicturePage], page_bytes: u64, mapped_bytes: u64) -> Self {
        let mut figures = Self::default();
        let mut run = (0, u64::MAX);
        for page in pages {
            figures.live += page.live_bytes;
            match page.state {
                PageState::Live => figures.in_live_pages += page_bytes,
                PageState::Stale => figures.stale += page_bytes,
                PageState::Idle => {
                    figures.idle += page_bytes;
                    run = if run.1 == page.number {
                        (run.0, page.number + 1)
                    } else {
                        (page.number, page.number + 1)
                    };
                    figures.longest_idle = figures.longest_idle.max((run.1 - run.0) * page_bytes);
                }
            }
        }
        figures.unmapped = mapped_bytes.saturating_sub(figures.in_live_pages + figures.idle);
        figures
    }
}

#[cfg(test)]
mod tests {
    use concertina_trace::{PageState, PicturePage};

    use super::{Cell, Cells, HeldCell, MapFigures};

    /// Pages by letters: `L` live, `i` idle, `s` stale, `.` not mapped. Live pages have 10 bytes.
    fn pages(letters: &str) -> Vec<PicturePage> {
        let page = |(number, letter)| {
            let (state, live_bytes) = match letter {
                'L' => (PageState::Live, 10),
                'i' => (PageState::Idle, 0),
                's' => (PageState::Stale, 0),
                _ => return None,
            };
            Some(PicturePage { number: 100 + number, live_bytes, state })
        };
        (0_u64..).zip(letters.chars()).filter_map(page).collect()
    }

    /// Cells by letters: held ones as live pages and idle pages, others as signs with the length of their run.
    fn told(letters: &str, pages_each: u64) -> String {
        let cell = |cell: &Cell| match cell {
            Cell::Held(HeldCell { live_pages, idle_pages, live_bytes }) => {
                assert_eq!(*live_bytes, 10 * live_pages);
                format!("{live_pages}{idle_pages}")
            }
            Cell::Stale { pages } => format!("s{pages}"),
            Cell::Gap { pages } => format!("g{pages}"),
        };
        Cells::of(&pages(letters), pages_each).iter().map(cell).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn one_page_a_cell_shows_everything_but_long_gaps() {
        assert_eq!(told("Lis..L", 1), "10 01 s1 g2 g2 10");
        assert_eq!(told("L.........i", 1), "10 g9 g9 g9 g9 01");
        assert_eq!(told("", 1), "");
    }

    #[test]
    fn several_pages_a_cell_keep_the_held_ones_together() {
        // Runs shorter than a cell are not shown, and don't part a cell; longer ones do.
        assert_eq!(told("LsiL.LLiss.L", 2), "11 20 11 s2 10");
        assert_eq!(told("LssL", 2), "10 s2 10");
        assert_eq!(told("LLL", 2), "20 10");
    }

    #[test]
    fn figures_add_up_to_what_is_mapped() {
        let figures = MapFigures::of(&pages("iiLs.iiiL"), 8, 8 * 9);
        let expected =
            MapFigures { live: 20, in_live_pages: 16, idle: 40, longest_idle: 24, stale: 8, unmapped: 16 };
        assert_eq!(figures, expected);
        assert_eq!(figures.in_live_pages + figures.idle + figures.unmapped, 72);
    }
}

//! Figures of a small trace, counted by hand.

use super::{Lifetimes, LiveAt, SizeClass, StreamStat, TraceStat};
use crate::event::Letter;
use crate::loaded::LoadedTrace;
use crate::reader::TraceReader;

fn stat(text: &str) -> TraceStat {
    TraceStat::of(&LoadedTrace::read(TraceReader::new(text.as_bytes(), "test").unwrap()).unwrap())
}

#[test]
fn figures_of_a_small_trace() {
    let stat = stat(
        "alloc-trace 1\n# events: 11\n# peak_live: 1545\n\
         a 1 8 0\na 2 15 0\nu 1 5\ni one\na 3 1024 5\nf 2\na 2 512 0\nf 1\nw 5 0\ny *\na 9 8 0\n",
    );
    assert_eq!(stat.events.of(Letter::A), 5);
    assert_eq!(stat.events.of(Letter::F), 2);
    assert_eq!(stat.events.of(Letter::E), 0);
    assert_eq!(stat.events.total(), 11);
    assert_eq!(
        stat.streams,
        [
            StreamStat { stream: 0, allocations: 4, bytes: 543, uses: 0 },
            StreamStat { stream: 5, allocations: 1, bytes: 1024, uses: 1 },
        ]
    );
    assert_eq!(
        stat.sizes,
        [
            SizeClass { from_bytes: 8, allocations: 3, bytes: 31 },
            SizeClass { from_bytes: 512, allocations: 1, bytes: 512 },
            SizeClass { from_bytes: 1024, allocations: 1, bytes: 1024 },
        ]
    );
    assert_eq!((stat.smallest_bytes, stat.largest_bytes, stat.distinct_sizes), (8, 1024, 4));
    assert_eq!(stat.allocated_bytes, 1567);
    // 8 + 1024 + 512, at the seventh event; line 10, since three lines stand before the events.
    assert_eq!(stat.live_peak, LiveAt { bytes: 1544, blocks: 3, event: 6, line: 10 });
    assert_eq!(stat.live_at_end, LiveAt { bytes: 1544, blocks: 3, event: 10, line: 14 });
    assert_eq!(stat.marks.len(), 1);
    assert_eq!((&*stat.marks[0].label, stat.marks[0].live.bytes), ("one", 23));
    // ID 2 lives from event 1 to 5, ID 1 from 0 to 7.
    assert_eq!(stat.lifetimes, Lifetimes { freed: 2, never_freed: 3, median: 4, p90: 7, p99: 7, most: 7 });
    // The header is one byte off.
    assert_eq!(stat.disagreements.len(), 1);
    assert_eq!((stat.disagreements[0].key, stat.disagreements[0].found), ("peak_live", 1544));
    assert_eq!(stat.disagreements[0].declared, "1545");
}

#[test]
fn nothing_has_figures_too() {
    let stat = stat("alloc-trace 1\n");
    assert_eq!(stat.events.total(), 0);
    assert_eq!(stat.lifetimes, Lifetimes::default());
    assert_eq!(stat.live_peak, LiveAt::default());
    assert!(stat.sizes.is_empty() && stat.disagreements.is_empty());
}

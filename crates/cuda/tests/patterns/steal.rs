//! A steal by hand: what was written through one address is read through another, once the stream is there.
//!
//! Main types: none. Neighbours: `run` has steals at random.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use concertina::{Allocator, Config, Layout, Policy};

use crate::device::{PAGE, PatternDevice, word};

/// What holds a kernel up until the host lets it go.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.opened.wait_while(open, |open| !*open).unwrap_or_else(PoisonError::into_inner));
    }
}

/// Pages of the block: most of the device, so that the second block can only have stolen frames.
const PAGES: u64 = 100;

/// Which page of the pattern each page of the block has.
type Found = Arc<Mutex<Vec<Option<u64>>>>;

#[test]
fn a_thief_reads_what_was_written_before_as_ordered() {
    let device = PatternDevice::new();
    let gate = Arc::new(Gate::default());
    let at_gate = Arc::clone(&gate);
    let wait = device.kernel("wait", move |_| at_gate.pass());
    let found = Found::default();
    let sink = Arc::clone(&found);
    let look = device.kernel("look", move |launch| {
        let [address, bytes, pattern] = [0, 1, 2].map(|index| launch.parameter::<u64>(index));
        let words = PAGE / 8;
        let pages = (0..bytes / PAGE).map(|page| {
            let at = launch.pointer::<u64>(address + page * PAGE, words as usize);
            // SAFETY: the block is live, and its pages are mapped; else this faults, which is what is tested.
            let read = |index: u64| unsafe { at.wrapping_add(index as usize).read() };
            let has = |of: &u64| (0..words).all(|index| read(index) == word(pattern, of * words + index));
            (0..bytes / PAGE).find(has)
        });
        *sink.lock().unwrap_or_else(PoisonError::into_inner) = pages.collect();
    });

    let config = Config::builder().policy(Policy::Lean).limit_bytes(PAGES * PAGE).build();
    let allocator = Allocator::new(device.cuda.clone(), config).expect("an allocator");
    let streams = [(); 2].map(|()| device.context.new_stream().expect("a stream"));
    let [owner, thief] = [0, 1].map(|index| allocator.register_stream((&streams[index]).into()));
    let layout = Layout::new(PAGES * PAGE);

    let mine = allocator.allocate(layout, &owner).expect("room");
    let first = mine.address();
    // The write is queued, and can't have happened when the frames go.
    device.launch(wait, &streams[0], first, 0, 0);
    device.fill(&streams[0], first, PAGES * PAGE, 1);
    drop(mine);
    let stolen = allocator.allocate(layout, &thief).expect("the frames of the first");
    assert_ne!(stolen.address(), first);
    assert_eq!(allocator.stats().stolen_frames, PAGES);
    device.launch(look, &streams[1], stolen.address(), PAGES * PAGE, 1);
    gate.open();
    streams[1].synchronize().expect("a wait");
    let mut pages = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
    pages.sort_unstable();
    assert_eq!(pages, (0..PAGES).map(Some).collect::<Vec<_>>(), "every page of the first, once");

    // And back: revived where they were mapped first, with what the thief wrote.
    device.fill(&streams[1], stolen.address(), PAGES * PAGE, 2);
    drop(stolen);
    let again = allocator.allocate(layout, &owner).expect("the same frames");
    assert_eq!((again.address(), allocator.stats().revived_pages), (first, PAGES));
    device.launch(look, &streams[0], first, PAGES * PAGE, 2);
    streams[0].synchronize().expect("a wait");
    let mut pages = found.lock().unwrap_or_else(PoisonError::into_inner).clone();
    pages.sort_unstable();
    assert_eq!(pages, (0..PAGES).map(Some).collect::<Vec<_>>());

    drop((again, owner, thief));
    allocator.close().expect("everything is given back");
    drop(streams);
    device.end();
}

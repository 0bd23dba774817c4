//! Threads that share an allocator: the locking protocol of `docs/locking.md`, under random schedules and for real.
//!
//! Main types: none. Neighbours: `schedules/world.rs` has what must hold, `schedules/frees.rs` and
//! `schedules/captures.rs` single races; the emulator finds work that nothing orders.
//!
//! The same programs run twice. A plain build runs them on threads of the system, many times. With
//! `RUSTFLAGS="--cfg shuttle"` all locks and atomics of the library are shuttle's, and each program runs under some
//! thousands of schedules: random ones, and those of probabilistic concurrency testing (Burckhardt et al., ASPLOS 2010),
//! which finds orderings that need few preemptions. `cargo xtask test` does both.
//!
//! To replay a failure: shuttle prints the failing schedule, some lines of digits. Run that one test again with the
//! environment variable `REPLAY_SCHEDULE` set to them, line breaks or not. Only this schedule runs then; the first panic
//! is the one, others may follow where unwinding goes on behind the end of the schedule.
//!
//! ```text
//! REPLAY_SCHEDULE=9102bd03... RUSTFLAGS="--cfg shuttle" \
//!     cargo test -p concertina --target-dir target/shuttle --test schedules a_limit
//! ```
//!
//! `SHUTTLE_RANDOM_SEED`, a number, makes all tests begin with other schedules.

#[path = "schedules/captures.rs"]
mod captures;
#[path = "schedules/frees.rs"]
mod frees;
// Thousands of steps: too many for schedules.
#[cfg(not(shuttle))]
#[path = "schedules/rounds.rs"]
mod rounds;
#[path = "schedules/world.rs"]
mod world;

#[cfg(shuttle)]
use shuttle::thread;
#[cfg(not(shuttle))]
use std::thread;

use std::sync::{Arc, Mutex};

use concertina::{CrossStream, Policy, SegmentKind, StaleRule};
use concertina_emulator::EventCompletion;
use world::{Block, Dice, Home, PAGE, Settings, World};

/// What programs and schedules begin with.
const SEED: u64 = 20_260_801;

/// Runs the program under many schedules.
#[cfg(shuttle)]
fn explore(program: fn(&mut Dice)) {
    use shuttle::rand::{Rng, thread_rng};
    use shuttle::scheduler::{PctScheduler, RandomScheduler, ReplayScheduler};

    let run = move || program(&mut Dice::new(thread_rng().r#gen()));
    let mut config = shuttle::Config::new();
    // Out of memory writes a report, which needs more than the 32 KiB that a thread has by default.
    config.stack_size = 256 << 10;
    if let Ok(schedule) = std::env::var("REPLAY_SCHEDULE") {
        let schedule: String = schedule.split_whitespace().collect();
        shuttle::Runner::new(ReplayScheduler::new_from_encoded(&schedule), config).run(run);
        return;
    }
    shuttle::Runner::new(RandomScheduler::new_from_seed(SEED, 4_000), config.clone()).run(run);
    shuttle::Runner::new(PctScheduler::new_from_seed(SEED, 3, 4_000), config).run(run);
}

/// Runs the program many times on threads of the system.
#[cfg(not(shuttle))]
fn explore(program: fn(&mut Dice)) {
    for number in 0..200 {
        program(&mut Dice::new(SEED + number));
    }
}

type Program = Box<dyn FnOnce() + Send>;

/// Runs the programs side by side, one a thread, and waits for all.
fn side_by_side(programs: Vec<Program>) {
    let threads: Vec<_> = programs.into_iter().map(thread::spawn).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Blocks of `1..=most_pages` whole pages or, for each third, less than one: allocated, used, freed in any order.
struct Churn {
    operations: u64,
    most_pages: u64,
}

impl Churn {
    fn run(&self, world: &Arc<World>, home: &Home, other: &Home, dice: &mut Dice) {
        let mut blocks: Vec<Block> = Vec::new();
        for _ in 0..self.operations {
            let nth = dice.below(blocks.len().max(1) as u64) as usize;
            match dice.below(8) {
                0..5 => {
                    let pages = 1 + dice.below(self.most_pages);
                    let bytes = if dice.below(3) == 0 { pages * PAGE / 5 } else { pages * PAGE };
                    match world.allocate(home, bytes) {
                        Some(block) => blocks.push(block),
                        None => blocks.clear(),
                    }
                }
                5..7 if !blocks.is_empty() => drop(blocks.swap_remove(nth)),
                7 if !blocks.is_empty() => world.work_elsewhere(&blocks[nth], home, other),
                _ => {}
            }
        }
    }

    fn program(self, world: &Arc<World>, home: &Home, other: &Home, dice: &mut Dice) -> Program {
        let (world, home, other, mut dice) = (Arc::clone(world), home.clone(), other.clone(), dice.split());
        Box::new(move || self.run(&world, &home, &other, &mut dice))
    }
}

fn blocks(world: &Arc<World>, home: &Home, count: u64, pages: u64) -> Vec<Block> {
    (0..count).map_while(|_| world.allocate(home, pages * PAGE)).collect()
}

fn drop_one_by_one(blocks: Vec<Block>) -> Program {
    Box::new(move || blocks.into_iter().for_each(drop))
}

/// Two threads, each with a stream of its own, on a device with too few frames for both.
#[test]
fn two_heaps_steal_from_each_other() {
    explore(|dice| {
        let world = World::new(Settings::by_dice(6, dice));
        let homes = vec![world.home(), world.home()];
        let churn = || Churn { operations: 8, most_pages: 4 };
        side_by_side(vec![
            churn().program(&world, &homes[0], &homes[1], dice),
            churn().program(&world, &homes[1], &homes[0], dice),
        ]);
        world.finish(homes);
    });
}

/// Three threads allocate on one stream.
#[test]
fn three_threads_share_a_heap() {
    explore(|dice| {
        let world = World::new(Settings::by_dice(5, dice));
        let homes = vec![world.home(), world.home()];
        let churn = || Churn { operations: 5, most_pages: 3 };
        side_by_side((0..3).map(|_| churn().program(&world, &homes[0], &homes[1], dice)).collect());
        world.finish(homes);
    });
}

/// Blocks of a stream are freed by another thread while their owner steals for more.
#[test]
fn freed_elsewhere_while_the_owner_steals() {
    explore(|dice| {
        let world = World::new(Settings::by_dice(6, dice));
        let homes = vec![world.home(), world.home()];
        let (own, others) = (blocks(&world, &homes[0], 2, 1), blocks(&world, &homes[1], 2, 2));
        let churn = || Churn { operations: 6, most_pages: 3 };
        side_by_side(vec![
            churn().program(&world, &homes[0], &homes[1], dice),
            drop_one_by_one(own.into_iter().chain(others).collect()),
            churn().program(&world, &homes[1], &homes[0], dice),
        ]);
        world.finish(homes);
    });
}

/// A thread gives memory back to the driver while others take it, and looks at the figures.
#[test]
fn trims_while_others_allocate() {
    explore(|dice| {
        let world = World::new(Settings::by_dice(6, dice));
        let homes = vec![world.home(), world.home()];
        let churn = || Churn { operations: 6, most_pages: 3 };
        let trimmer = Arc::clone(&world);
        let trim: Program = Box::new(move || {
            for pages in [0, 2, 0] {
                assert_eq!(trimmer.allocator.trim_to(pages * PAGE).failed, None);
                trimmer.allocator.stats();
            }
        });
        side_by_side(vec![
            churn().program(&world, &homes[0], &homes[1], dice),
            trim,
            churn().program(&world, &homes[1], &homes[0], dice),
        ]);
        world.finish(homes);
    });
}

/// A stream is retired while another thread frees its last blocks, and a third wants their frames.
#[test]
fn a_stream_retires_while_its_last_block_is_freed() {
    explore(|dice| {
        let world = World::new(Settings::by_dice(6, dice));
        let mut homes = vec![world.home(), world.home()];
        let leaving = homes.remove(0);
        let last = blocks(&world, &leaving, 1 + dice.below(3), 1);
        let small = world.allocate(&leaving, PAGE / 8);
        let handle = leaving.clone();
        side_by_side(vec![
            Box::new(move || drop(handle)),
            drop_one_by_one(last.into_iter().chain(small).collect()),
            Churn { operations: 6, most_pages: 4 }.program(&world, &homes[0], &homes[0], dice),
            Box::new(move || drop(leaving)),
        ]);
        world.finish(homes);
    });
}

/// A stream is retired while blocks of another stream that it worked on are still pending.
#[test]
fn a_stream_retires_while_others_wait_for_its_work() {
    explore(|dice| {
        let world = World::new(Settings::by_dice(5, dice));
        let mut homes = vec![world.home(), world.home()];
        let leaving = homes.remove(0);
        let used = blocks(&world, &homes[0], 2, 1);
        used.iter().for_each(|block| world.work_elsewhere(block, &homes[0], &leaving));
        side_by_side(vec![
            Box::new(move || drop(leaving)),
            drop_one_by_one(used),
            Churn { operations: 6, most_pages: 3 }.program(&world, &homes[0], &homes[0], dice),
        ]);
        world.finish(homes);
    });
}

/// A device of so many frames that is infinitely fast, and an allocator that steals first.
fn eager_to_steal(frames: u64) -> Settings {
    Settings {
        frames,
        limit_frames: None,
        max_mappings: None,
        completion: EventCompletion::AtOnce,
        cross_stream: CrossStream::DeviceWait,
        policy: Policy::Lean,
        stale: StaleRule::Keep,
        segments: SegmentKind::Reserved,
    }
}

/// Puts another frame under the first free page of the stream: a small block takes the one that is there.
fn change_the_frame(world: &Arc<World>, home: &Home) -> Program {
    let (world, home) = (Arc::clone(world), home.clone());
    Box::new(move || {
        let small = world.allocate(&home, PAGE / 4);
        drop(world.allocate(&home, PAGE));
        drop(small);
    })
}

fn allocate_and_free(world: &Arc<World>, home: &Home, pages: u64) -> Program {
    let (world, home) = (Arc::clone(world), home.clone());
    Box::new(move || drop(world.allocate(&home, pages * PAGE)))
}

/// One stream asks for the very frame that a page of another holds, while that page changes its frame.
#[test]
fn a_frame_moves_before_it_can_be_revived() {
    explore(|_| {
        let world = World::new(eager_to_steal(3));
        let homes = vec![world.home(), world.home()];
        // The frame of the first stream's page goes to the second's, where it is free: the first can revive its page.
        drop(world.allocate(&homes[0], PAGE));
        drop(world.allocate(&homes[1], 3 * PAGE));
        side_by_side(vec![allocate_and_free(&world, &homes[0], 1), change_the_frame(&world, &homes[1])]);
        world.finish(homes);
    });
}

/// The best fit for two pages of the first stream can be revived: one frame is free in a page of the second stream, the
/// other in a page of the first, further on. A request lets go of its own heap while it asks for the first of them;
/// `meanwhile` is what another thread does with the own heap then.
/// Once both are done, `after` is.
fn revive_from_both(meanwhile: impl FnOnce(&Arc<World>, &Home) -> Program, after: impl FnOnce()) {
    let world = World::new(eager_to_steal(5));
    let homes = vec![world.home(), world.home()];
    let (place, wall) = (world.allocate(&homes[0], 2 * PAGE), world.allocate(&homes[0], PAGE));
    drop(place);
    let elsewhere = world.allocate(&homes[1], PAGE);
    drop(world.allocate(&homes[0], 3 * PAGE));
    drop(elsewhere);
    side_by_side(vec![allocate_and_free(&world, &homes[0], 2), meanwhile(&world, &homes[0])]);
    after();
    drop(wall);
    world.finish(homes);
}

#[test]
fn an_own_frame_is_used_before_it_can_be_revived() {
    explore(|_| {
        // In use until the end: whoever took it for free would be given memory that is live.
        let kept = Arc::new(Mutex::new(Vec::new()));
        let keeper = Arc::clone(&kept);
        revive_from_both(
            move |world, home| {
                let (world, home) = (Arc::clone(world), home.clone());
                Box::new(move || {
                    let block = world.allocate(&home, PAGE);
                    keeper.lock().unwrap().extend(block);
                })
            },
            || kept.lock().unwrap().clear(),
        );
    });
}

#[test]
fn an_own_frame_moves_before_it_can_be_revived() {
    explore(|_| revive_from_both(change_the_frame, || {}));
}

/// Two threads at a limit that is far under the device.
#[test]
fn a_limit_is_reached_from_two_threads() {
    explore(|dice| {
        let world = World::new(Settings { limit_frames: Some(4), ..Settings::by_dice(64, dice) });
        let homes = vec![world.home(), world.home()];
        let churn = || Churn { operations: 7, most_pages: 3 };
        side_by_side(vec![
            churn().program(&world, &homes[0], &homes[1], dice),
            churn().program(&world, &homes[1], &homes[0], dice),
        ]);
        world.finish(homes);
    });
}

/// Two threads on a device that holds few mappings: each makes room for its own while the other maps and unmaps.
#[test]
fn mappings_run_short_between_threads() {
    explore(|dice| {
        let settings = Settings::by_dice(6, dice);
        let cross_stream = CrossStream::DeviceWait;
        let world = World::new(Settings { max_mappings: Some(8), cross_stream, ..settings });
        let homes = vec![world.home(), world.home()];
        let churn = || Churn { operations: 8, most_pages: 3 };
        side_by_side(vec![
            churn().program(&world, &homes[0], &homes[1], dice),
            churn().program(&world, &homes[1], &homes[0], dice),
        ]);
        world.finish(homes);
    });
}

/// Without virtual memory: segments go from heap to heap, to the driver and back, while a third thread trims.
#[test]
fn malloc_segments_move_between_threads() {
    explore(|dice| {
        let limit_frames = (dice.below(2) == 0).then_some(13);
        let settings = Settings { segments: SegmentKind::Malloc, ..Settings::by_dice(16, dice) };
        let world = World::new(Settings { limit_frames, ..settings });
        let homes = vec![world.home(), world.home()];
        let churn = || Churn { operations: 7, most_pages: 6 };
        let trimmer = Arc::clone(&world);
        let trim: Program = Box::new(move || {
            for pages in [8, 0] {
                assert_eq!(trimmer.allocator.trim_to(pages * PAGE).failed, None);
                trimmer.allocator.stats();
            }
        });
        side_by_side(vec![
            churn().program(&world, &homes[0], &homes[1], dice),
            trim,
            churn().program(&world, &homes[1], &homes[0], dice),
        ]);
        world.finish(homes);
    });
}

/// The same when the stream that had a segment retires while another one wants it.
#[test]
fn the_malloc_segments_of_a_retired_stream_are_taken() {
    explore(|dice| {
        let settings = Settings { segments: SegmentKind::Malloc, ..Settings::by_dice(16, dice) };
        let world = World::new(settings);
        let mut homes = vec![world.home(), world.home()];
        let leaving = homes.remove(0);
        let last = blocks(&world, &leaving, 2, 1 + dice.below(3));
        let small = world.allocate(&leaving, PAGE / 8);
        last.iter().for_each(|block| world.work_elsewhere(block, &leaving, &homes[0]));
        side_by_side(vec![
            drop_one_by_one(last.into_iter().chain(small).collect()),
            Churn { operations: 6, most_pages: 6 }.program(&world, &homes[0], &homes[0], dice),
            Box::new(move || drop(leaving)),
        ]);
        world.finish(homes);
    });
}

/// The same for longer, on threads of the system only: what thousands of operations pile up.
#[cfg(not(shuttle))]
#[test]
fn four_threads_for_long() {
    for number in 0..8 {
        let dice = &mut Dice::new(SEED + 1_000 + number);
        let limit_frames = (number % 2 == 0).then_some(20);
        let segments = if number % 4 < 2 { SegmentKind::Reserved } else { SegmentKind::Malloc };
        let world = World::new(Settings { limit_frames, segments, ..Settings::by_dice(24, dice) });
        let homes: Vec<Home> = (0..3).map(|_| world.home()).collect();
        let churn = || Churn { operations: 5_000, most_pages: 6 };
        let trimmer = Arc::clone(&world);
        let trim: Program = Box::new(move || {
            for pages in (0..24).cycle().take(500) {
                assert_eq!(trimmer.allocator.trim_to(pages * PAGE).failed, None);
            }
        });
        side_by_side(vec![
            churn().program(&world, &homes[0], &homes[1], dice),
            churn().program(&world, &homes[1], &homes[2], dice),
            churn().program(&world, &homes[2], &homes[0], dice),
            // A second thread on a stream that another one uses.
            churn().program(&world, &homes[0], &homes[2], dice),
            trim,
        ]);
        world.finish(homes);
    }
}

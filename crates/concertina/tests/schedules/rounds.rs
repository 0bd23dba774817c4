//! Random programs on threads of the system, in rounds: after each, all threads stand still and everything is counted.
//!
//! Main types: [`Member`]. Neighbours: `schedules/world.rs` checks every block as long as it lives.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};

use crate::world::{Block, Dice, Home, PAGE, Settings, World};
use crate::{Program, SEED, side_by_side};

const THREADS: usize = 4;
const ROUNDS: u64 = 6;
const STEPS: u64 = 400;

/// What all threads count together, apart from the allocator.
#[derive(Default)]
struct Model {
    /// Bytes and number of blocks that each thread has at the end of a round.
    held: Mutex<[(u64, u64); THREADS]>,
    /// Bytes that may be live now: from before they are asked for until after they are freed. And most of them.
    most: AtomicU64,
    peak: AtomicU64,
}

impl Model {
    fn about_to_allocate(&self, bytes: u64) {
        let most = self.most.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.peak.fetch_max(most, Ordering::SeqCst);
    }

    fn gone(&self, bytes: u64) {
        self.most.fetch_sub(bytes, Ordering::SeqCst);
    }
}

/// A block with its stream; `None` once nobody has a handle of that.
type Held = (Block, Option<Home>);

/// One of the threads.
struct Member {
    number: usize,
    world: Arc<World>,
    model: Arc<Model>,
    barrier: Arc<Barrier>,
    homes: Vec<Home>,
    dice: Dice,
    blocks: Vec<Held>,
    inbox: Receiver<Held>,
    outboxes: Vec<Sender<Held>>,
}

impl Member {
    fn run(mut self) {
        for _ in 0..ROUNDS {
            for _ in 0..STEPS {
                self.step();
            }
            self.count();
        }
        self.blocks.drain(..).for_each(|block| free(&self.model, block));
        // Blocks may come as long as another one sends.
        self.outboxes.clear();
        self.inbox.iter().for_each(|block| free(&self.model, block));
    }

    fn below(&mut self, most: usize) -> usize {
        self.dice.below(most.max(1) as u64) as usize
    }

    fn step(&mut self) {
        let (nth, home) = (self.below(self.blocks.len()), self.below(THREADS));
        let is_empty = self.blocks.is_empty();
        match self.dice.below(16) {
            // Mostly on its own stream.
            0..6 => self.allocate(self.number),
            6 => self.allocate(home),
            7..10 if !is_empty => free(&self.model, self.blocks.swap_remove(nth)),
            10..12 if !is_empty => {
                let block = self.blocks.swap_remove(nth);
                self.outboxes[home].send(block).expect("all receivers are there till the end");
            }
            12 if !is_empty => {
                if let (block, Some(own)) = &self.blocks[nth] {
                    self.world.work_elsewhere(block, own, &self.homes[home]);
                }
            }
            13 => drop(self.world.allocator.trim_to(self.dice.below(32) * PAGE)),
            // Whatever came is freed here.
            14 => self.inbox.try_iter().for_each(|block| free(&self.model, block)),
            // A stream that retires before its block is freed.
            15 if nth.is_multiple_of(4) => {
                let home = self.world.home();
                self.allocate_on(&home, None);
            }
            _ => {}
        }
    }

    fn allocate(&mut self, home: usize) {
        let home = self.homes[home].clone();
        self.allocate_on(&home, Some(home.clone()));
    }

    fn allocate_on(&mut self, home: &Home, kept: Option<Home>) {
        let bytes = 1 + self.dice.below(1 << (8 + self.dice.clone().below(16)));
        self.model.about_to_allocate(bytes);
        match self.world.allocate(home, bytes) {
            Some(block) => self.blocks.push((block, kept)),
            None => {
                self.model.gone(bytes);
                self.blocks.drain(..).for_each(|block| free(&self.model, block));
            }
        }
    }

    /// All threads stand still: the figures are those of the blocks that they have.
    fn count(&mut self) {
        self.barrier.wait();
        self.blocks.extend(self.inbox.try_iter());
        let bytes = self.blocks.iter().map(|(block, _)| block.bytes()).sum();
        self.model.held.lock().unwrap()[self.number] = (bytes, self.blocks.len() as u64);
        if self.barrier.wait().is_leader() {
            let held = *self.model.held.lock().unwrap();
            let model = held.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            let stats = self.world.allocator.stats();
            assert_eq!((stats.live_bytes, stats.live_blocks), model);
            let most = self.model.peak.load(Ordering::SeqCst);
            assert!((stats.live_bytes..=most).contains(&stats.live_peak_bytes), "{stats:?}, at most {most}");
            assert_eq!(self.world.allocator.audit(), Vec::<String>::new());
        }
        self.barrier.wait();
    }
}

fn free(model: &Model, (block, _): Held) {
    let bytes = block.bytes();
    drop(block);
    model.gone(bytes);
}

#[test]
fn everything_is_counted_between_rounds() {
    for number in 0..12 {
        let mut dice = Dice::new(SEED + 2_000 + number);
        let limit_frames = (number % 3 == 0).then_some(24);
        let world = World::new(Settings { limit_frames, ..Settings::by_dice(32, &mut dice) });
        let homes: Vec<Home> = (0..THREADS).map(|_| world.home()).collect();
        let (model, barrier) = (Arc::new(Model::default()), Arc::new(Barrier::new(THREADS)));
        let (outboxes, inboxes): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
        let members = inboxes.into_iter().enumerate().map(|(number, inbox)| Member {
            number,
            world: Arc::clone(&world),
            model: Arc::clone(&model),
            barrier: Arc::clone(&barrier),
            homes: homes.clone(),
            dice: dice.split(),
            blocks: Vec::new(),
            inbox,
            outboxes: outboxes.clone(),
        });
        let programs = members.map(|member| -> Program { Box::new(move || member.run()) }).collect();
        drop(outboxes);
        side_by_side(programs);
        assert_eq!(model.most.load(Ordering::SeqCst), 0);
        world.finish(homes);
    }
}

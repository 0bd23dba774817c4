//! Programs by seed, and how one that fails is made short.
//!
//! Main types: [`Program`], [`Step`], [`Failure`]. Neighbours: `random` and `mutants` run them.

use core::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use concertina_emulator::Race;

use crate::actor::Actor;
use crate::coverage::Coverage;
use crate::dice::Dice;
use crate::mutation::Mutation;
use crate::op::{Likings, Op};
use crate::setup::Setup;
use crate::site::{Site, Together};

/// Steps between two audits, which look at everything.
const AUDIT_EVERY: usize = 100;
/// Most runs that making a program short may take.
const MOST_TRIES: usize = 3_000;

/// What one of the program's threads does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) thread: usize,
    pub(crate) op: Op,
}

#[derive(Clone)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) setup: Setup,
    pub(crate) threads: usize,
    pub(crate) steps: Vec<Step>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, setup, threads, steps } = self;
        writeln!(f, "seed {seed}, {threads} threads, {} steps; {setup:?}", steps.len())?;
        steps.iter().try_for_each(|Step { thread, op }| writeln!(f, "    thread {thread}: {op:?}"))
    }
}

/// A program that went wrong.
pub(crate) struct Failure {
    pub(crate) program: Program,
    pub(crate) why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{:?}", self.why, self.program)
    }
}

/// What a panic said.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}

impl Program {
    /// The program of a seed, with so many threads.
    pub(crate) fn new(seed: u64, threads: usize, steps: usize) -> Self {
        let mut dice = Dice::new(seed);
        let setup = Setup::draw(&mut dice);
        let likings = Likings::draw(&mut dice);
        let mut step = || Step { thread: dice.index(threads), op: likings.step(&setup, &mut dice) };
        let steps = (0..steps).map(|_| step()).collect();
        Self { seed, setup, threads, steps }
    }

    fn actors(&self, site: &Arc<Site>) -> Vec<Actor> {
        (0..self.threads).map(|_| Actor::new(site)).collect()
    }

    /// Runs it a step at a time, and checks everything.
    ///
    /// # Panics
    /// If anything is wrong.
    fn run_in_turn(&self) -> Coverage {
        let site = Site::new(&self.setup, Mutation::None, Together::InTurn);
        let mut actors = self.actors(&site);
        for (number, Step { thread, op }) in self.steps.iter().enumerate() {
            actors[*thread].step(op);
            site.check_reports();
            if number % 8 == 0 {
                site.check_figures();
            }
            if number % AUDIT_EVERY == 0 {
                site.audit();
            }
        }
        site.finish(actors)
    }

    /// Runs it on threads of the system, and checks everything at the end.
    ///
    /// # Panics
    /// If anything is wrong.
    fn run_at_once(&self) -> Coverage {
        let site = Site::new(&self.setup, Mutation::None, Together::AtOnce);
        let actors = self.actors(&site);
        let ends: Vec<_> = std::thread::scope(|scope| {
            let run = |(thread, mut actor): (usize, Actor)| {
                let steps = self.steps.iter().filter(move |step| step.thread == thread);
                scope.spawn(move || {
                    steps.for_each(|step| actor.step(&step.op));
                    actor
                })
            };
            let threads: Vec<_> = actors.into_iter().enumerate().map(run).collect();
            threads.into_iter().map(|thread| thread.join()).collect()
        });
        let actors = ends.into_iter().map(|end| end.unwrap_or_else(|panic| panic::resume_unwind(panic)));
        let actors = actors.collect();
        site.check_reports();
        site.check_figures();
        site.audit();
        site.finish(actors)
    }

    /// Runs it, and says what went wrong if anything did.
    pub(crate) fn run(&self, together: Together) -> Result<Coverage, String> {
        let run = || match together {
            Together::InTurn => self.run_in_turn(),
            Together::AtOnce => self.run_at_once(),
        };
        panic::catch_unwind(AssertUnwindSafe(run)).map_err(|panic| message(&*panic))
    }

    /// Runs it on an allocator that forgot something, in which no call fails, and returns what the detector reports.
    pub(crate) fn reports_of(&self, mutation: Mutation) -> Vec<Race> {
        let site = Site::new(&self.setup, mutation, Together::InTurn);
        let mut actors = self.actors(&site);
        for Step { thread, op } in self.steps.iter().filter(|step| !matches!(step.op, Op::Fail { .. })) {
            actors[*thread].step(op);
        }
        let emulator = site.emulator.clone();
        site.finish(actors);
        emulator.races()
    }

    /// The same without most of the steps that are not needed for it to fail: runs of steps are left out, shorter and shorter
    /// ones, as long as it still does.
    pub(crate) fn shortened(mut self, mut why: String, fails: impl Fn(&Self) -> Option<String>) -> Failure {
        let mut tries = 0;
        let mut length = self.steps.len().div_ceil(2);
        while length > 0 {
            let mut at = 0;
            while at < self.steps.len() && tries < MOST_TRIES {
                let end = (at + length).min(self.steps.len());
                let steps = [&self.steps[..at], &self.steps[end..]].concat();
                let shorter = Self { steps, ..self.clone() };
                tries += 1;
                match fails(&shorter) {
                    Some(now) => (self, why) = (shorter, now),
                    None => at = end,
                }
            }
            length /= 2;
        }
        Failure { program: self, why }
    }
}

//! What the storm would find: each rule that an allocator may forget is forgotten once, and reported as what it is.
//!
//! Main type: [`Kind`]. Neighbours: `mutation` has the lies, `random` the same programs with none of them.

use std::collections::BTreeSet;

use concertina_emulator::{Race, TracedAccess};

use crate::mutation::Mutation;
use crate::program::Program;

/// Programs that a forgotten rule must be found by.
const SEEDS: u64 = 24;
const STEPS: usize = 400;

/// What a report is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// Memory of one stream's block served another stream's before its work was over.
    Steal,
    /// Memory of a block served its own stream before the work of another stream on it was over.
    Pending,
    /// A page was unmapped under work that the host has not seen done.
    Unmap,
    /// Memory was handed out without access.
    NoAccess,
    Other,
}

/// The stream that the block of an access belongs to, by its name.
fn home(access: &TracedAccess) -> Option<u32> {
    access.block.as_ref()?.rsplit(' ').next()?.parse().ok()
}

fn kind(race: &Race) -> Kind {
    match race {
        Race::Unordered { first, second, .. } => match (home(first), home(second)) {
            (Some(before), Some(after)) if before != after => Kind::Steal,
            (Some(before), Some(after)) if before == after && first.stream != before => Kind::Pending,
            _ => Kind::Other,
        },
        Race::Unmapped { .. } => Kind::Unmap,
        Race::NoAccess { .. } => Kind::NoAccess,
        _ => Kind::Other,
    }
}

/// What the programs of the first seeds are reported for.
fn kinds(mutation: Mutation) -> BTreeSet<Kind> {
    let programs = (0..SEEDS).map(|seed| Program::new(seed, 3, STEPS));
    programs.flat_map(|program| program.reports_of(mutation)).map(|race| kind(&race)).collect()
}

/// All of these are among the reports, and nothing that is no kind of its own. (One rule that is forgotten breaks others: a
/// use that nobody waits for is none that an unmap waits for, either.)
fn assert_found(mutation: Mutation, expected: &[Kind]) {
    let found = kinds(mutation);
    assert!(
        expected.iter().all(|kind| found.contains(kind)),
        "{mutation:?}: {found:?}, not all of {expected:?}"
    );
    assert!(!found.contains(&Kind::Other), "{mutation:?}: {found:?}");
}

#[test]
fn with_nothing_forgotten_there_is_no_report() {
    assert_eq!(kinds(Mutation::None), BTreeSet::new());
}

#[test]
fn a_steal_without_its_wait_is_found() {
    assert_found(Mutation::DropStreamWaits, &[Kind::Steal, Kind::Pending]);
}

#[test]
fn an_unmap_without_a_fence_is_found() {
    assert_found(Mutation::SayDone, &[Kind::Unmap]);
}

#[test]
fn a_pending_block_that_is_used_again_is_found() {
    // Whether its uses elsewhere are thought done, or were never known.
    assert_found(Mutation::SayDone, &[Kind::Pending]);
    assert_found(Mutation::ForgetUses, &[Kind::Pending]);
}

#[test]
fn events_that_are_not_recorded_are_found() {
    assert_found(Mutation::DropRecords, &[Kind::Steal, Kind::Pending, Kind::Unmap]);
}

#[test]
fn a_host_that_does_not_wait_is_found() {
    assert_found(Mutation::DropHostWaits, &[Kind::Steal, Kind::Pending, Kind::Unmap]);
}

#[test]
fn memory_without_access_is_found() {
    assert_found(Mutation::DropSetAccess, &[Kind::NoAccess]);
}

/// The storm prints short programs: two blocks, and what lies between them.
#[test]
fn a_program_that_fails_is_made_short() {
    let steal = |program: &Program| {
        let races = program.reports_of(Mutation::DropStreamWaits);
        races.iter().find(|race| kind(race) == Kind::Steal).map(ToString::to_string)
    };
    let mut programs = (0..SEEDS).map(|seed| Program::new(seed, 3, STEPS));
    let (why, program) = programs.find_map(|program| Some((steal(&program)?, program))).unwrap();
    let failure = program.shortened(why, steal);
    assert_eq!(steal(&failure.program).as_ref(), Some(&failure.why));
    assert!(failure.program.steps.len() <= 12, "{failure}");
}

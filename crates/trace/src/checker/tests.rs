//! One broken allocator for each thing that the checker finds.

use super::{Violation, ViolationKind};
use crate::loaded::LoadedTrace;
use crate::replay::Replay;
use crate::replay::toy::{Defect, PAGE, Toy, load, small_device};
use crate::report::FailureCause;

/// Two blocks of one and a half pages and some frees, from line 2 on.
fn two_blocks() -> LoadedTrace {
    load("a 1 98304 0\na 2 98304 3\nf 2\nf 1\n")
}

/// What the checker finds with an allocator that has this defect.
fn found(trace: &LoadedTrace, defect: Defect) -> Option<Violation> {
    let emulator = small_device();
    let report = Replay::new(trace, &emulator).checked(512).run(&mut Toy::new(&emulator, defect));
    report.failure.map(|failure| match failure.cause {
        FailureCause::Violation(violation) => {
            assert_eq!((failure.event, failure.line), (violation.event, violation.line));
            *violation
        }
        other => panic!("{other}"),
    })
}

#[test]
fn a_right_allocator_passes() {
    assert_eq!(found(&two_blocks(), Defect::None), None);
}

#[test]
fn alignment_is_checked() {
    let violation = found(&two_blocks(), Defect::OffBy256).expect("256 is no multiple of 512");
    assert_eq!(violation.kind, ViolationKind::Misaligned { alignment_bytes: 512 });
    assert_eq!((violation.event, violation.line), (0, 2));
    let emulator = small_device();
    let mut toy = Toy::new(&emulator, Defect::OffBy256);
    // Half a page, so that it stays on its own page.
    let report = Replay::new(&load("a 1 32768 0\n"), &emulator).checked(256).run(&mut toy);
    assert!(report.completed(), "{:?}", report.failure);
}

#[test]
fn every_page_must_be_mapped() {
    let violation = found(&two_blocks(), Defect::LeavesLastUnmapped).expect("its second page is not mapped");
    let address = violation.block.address.add(PAGE);
    assert_eq!(violation.kind, ViolationKind::NotMapped { address });
    assert_eq!((violation.event, violation.block.line, violation.block.bytes), (0, 2, 98_304));
}

#[test]
fn every_page_must_be_accessible() {
    let violation = found(&two_blocks(), Defect::GrantsNothing).expect("nobody has access");
    assert_eq!(violation.kind, ViolationKind::NoAccess { address: violation.block.address });
}

#[test]
fn live_blocks_share_no_addresses() {
    let violation = found(&two_blocks(), Defect::RepeatsAddress).expect("both are at the same address");
    let ViolationKind::SharesAddresses { other, address } = violation.kind else { panic!("{violation}") };
    assert_eq!((violation.event, violation.line, violation.block.stream), (1, 3, 1));
    assert_eq!((other.line, other.stream, other.address), (2, 0, address));
    let text = violation.to_string();
    let expected = format!(
        "line 3: the block of line 3 (98304 bytes at {address} on stream 1) shares addresses from {address} on with \
         the block of line 2 (98304 bytes at {address} on stream 0)"
    );
    assert_eq!(text, expected);
}

#[test]
fn live_blocks_share_no_frame_bytes_under_other_addresses() {
    let violation = found(&two_blocks(), Defect::RepeatsFrame).expect("both have the first frame");
    let ViolationKind::SharesMemory { other, offset_bytes, .. } = violation.kind else {
        panic!("{violation}")
    };
    assert_eq!((violation.event, offset_bytes, other.line), (1, 0, 2));
    assert_ne!(other.address, violation.block.address);
}

#[test]
fn a_block_does_not_share_bytes_with_itself() {
    let violation = found(&two_blocks(), Defect::MapsItselfTwice).expect("two pages have one frame");
    let ViolationKind::SharesMemory { other, .. } = violation.kind else { panic!("{violation}") };
    assert_eq!(other, violation.block);
}

#[test]
fn a_frame_swapped_under_a_live_block_is_found_at_its_free() {
    let violation = found(&two_blocks(), Defect::SwapsFrame).expect("the first block has another frame");
    let ViolationKind::BackingChanged { address, before, now } = violation.kind else {
        panic!("{violation}")
    };
    assert_eq!((violation.event, violation.line, violation.block.line), (3, 5, 2));
    assert_eq!(address, violation.block.address);
    assert!(before.is_some() && now.is_some() && before != now);
}

#[test]
fn a_live_block_that_loses_its_frame_is_found_at_the_end() {
    let trace = load("a 1 98304 0\na 2 98304 0\ni end\n");
    let violation = found(&trace, Defect::UnmapsFrame).expect("the first block has nothing behind it");
    let ViolationKind::BackingChanged { now, .. } = violation.kind else { panic!("{violation}") };
    assert_eq!(now, None);
    assert_eq!((violation.event, violation.block.line), (3, 2), "one event after the last");
}

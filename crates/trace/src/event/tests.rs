//! Every line of the format, and every way to get one wrong.

use super::{Event, Letter};
use crate::mistake::{Field, Mistake};

fn mark(label: &str) -> Event {
    Event::Mark { label: label.into() }
}

#[test]
fn every_kind_of_line_reads_and_prints() {
    let lines = [
        ("a 0 1 0", Event::Allocate { id: 0, bytes: 1, stream: 0 }),
        (
            "a 18446744073709551615 18446744073709551615 4294967295",
            Event::Allocate { id: u64::MAX, bytes: u64::MAX, stream: u32::MAX },
        ),
        ("f 7", Event::Free { id: 7 }),
        ("u 7 2", Event::RecordStream { id: 7, stream: 2 }),
        ("w 1 0", Event::StreamWait { stream: 1, on: 0 }),
        ("y 3", Event::Synchronize { stream: Some(3) }),
        ("y *", Event::Synchronize { stream: None }),
        ("e", Event::ReleaseCached),
        ("i step 7: loss  ", mark("step 7: loss  ")),
        ("i # é\r", mark("# é\r")),
    ];
    for (line, event) in lines {
        assert_eq!(line.parse().as_ref(), Ok(&event), "{line}");
        assert_eq!(event.to_string(), line);
    }
}

#[test]
fn what_is_wrong_is_named_with_its_value() {
    let missing = |letter, field| Mistake::MissingField { letter, field };
    let malformed = |field, found: &str| Mistake::MalformedField { field, found: found.into() };
    let extra = |letter, found: &str| Mistake::ExtraField { letter, found: found.into() };
    let large = |field, found: &str, most| Mistake::TooLarge { field, found: found.into(), most };
    let letter = |found: &str| Mistake::UnknownLetter { found: found.into() };
    let lines = [
        ("", Mistake::EmptyLine),
        ("x 1", letter("x")),
        ("A 1 2 0", letter("A")),
        (" a 1 2 0", letter("")),
        ("a\t1 2 0", letter("a\t1")),
        ("# late: header", Mistake::LateHeader { found: "# late: header".into() }),
        ("a", missing(Letter::A, Field::Id)),
        ("a 1", missing(Letter::A, Field::Size)),
        ("a 1 2", missing(Letter::A, Field::Stream)),
        ("a 1  2 0", malformed(Field::Size, "")),
        ("a 1 2 0 ", extra(Letter::A, "")),
        ("a 1 2 0 3 4", extra(Letter::A, "3 4")),
        ("a -1 2 0", malformed(Field::Id, "-1")),
        ("a 1 +2 0", malformed(Field::Size, "+2")),
        ("a 1 2.5 0", malformed(Field::Size, "2.5")),
        ("a 1 0x10 0", malformed(Field::Size, "0x10")),
        ("a 1 2 0\r", malformed(Field::Stream, "0\r")),
        ("a 1 0 0", Mistake::SizeZero { id: 1 }),
        ("a 1 18446744073709551616 0", large(Field::Size, "18446744073709551616", u64::MAX)),
        ("a 1 2 4294967296", large(Field::Stream, "4294967296", u64::from(u32::MAX))),
        ("f", missing(Letter::F, Field::Id)),
        ("f 1 2", extra(Letter::F, "2")),
        ("u 1", missing(Letter::U, Field::Stream)),
        ("u 1 *", malformed(Field::Stream, "*")),
        ("w 1", missing(Letter::W, Field::On)),
        ("w * 1", malformed(Field::Stream, "*")),
        ("y", missing(Letter::Y, Field::Stream)),
        ("y **", malformed(Field::Stream, "**")),
        ("y * 1", malformed(Field::Stream, "*")),
        ("e 1", extra(Letter::E, "1")),
        ("i", missing(Letter::I, Field::Label)),
        ("i ", missing(Letter::I, Field::Label)),
    ];
    for (line, mistake) in lines {
        assert_eq!(line.parse::<Event>(), Err(mistake), "{line:?}");
    }
}

#[test]
fn errors_show_at_most_eighty_bytes_of_a_value() {
    let long = "9".repeat(5_000);
    let error = format!("f {long}").parse::<Event>().unwrap_err().to_string();
    assert!(error.contains(&"9".repeat(80)) && !error.contains(&"9".repeat(81)), "{error}");
}

#[test]
fn letters_are_in_the_order_of_their_discriminants() {
    for (at, letter) in Letter::ALL.into_iter().enumerate() {
        assert_eq!(letter as usize, at);
    }
}

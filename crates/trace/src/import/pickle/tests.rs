//! Pickles made by hand and by the writer, whole, damaged and hostile.
//!
//! Main types: none. Neighbours: `pickle`, `writer`.

use proptest::prelude::*;

use super::decoder::MOST_KEYS;
use super::value::Value;
use super::writer::Data;
use super::{MOST_TEXT_BYTES, Pickle, PickleMistake};
use crate::import::error::{ImportErrorKind, Place};

/// The mistake in a pickle, and the byte where it is.
fn mistake(bytes: &[u8]) -> (usize, PickleMistake) {
    let error = Pickle::decode(bytes).expect_err("it is wrong");
    match (error.place, error.kind) {
        (Place::Byte(at), ImportErrorKind::Pickle(mistake)) => (at, mistake),
        (place, kind) => panic!("{place}: {kind}"),
    }
}

/// What Python prints for the value.
fn printed(pickle: &Pickle<'_>, value: Value) -> String {
    match value {
        Value::None => "None".to_owned(),
        Value::Bool(value) => if value { "True" } else { "False" }.to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Large(number) => number.to_string(),
        Value::Huge => "huge".to_owned(),
        Value::Float(number) => format!("{number:?}"),
        Value::Text(text) => format!("'{}'", pickle.text(text)),
        Value::List(_) | Value::Tuple(_) => {
            let values = pickle.list(value).expect("a list");
            let values: Vec<_> = values.iter().map(|value| printed(pickle, *value)).collect();
            let (open, close) = if matches!(value, Value::List(_)) { ('[', ']') } else { ('(', ')') };
            format!("{open}{}{close}", values.join(", "))
        }
        Value::Dict(number) => {
            let pairs = pickle.dicts[number as usize].iter();
            let pairs: Vec<_> = pairs
                .map(|(key, value)| format!("{}: {}", printed(pickle, *key), printed(pickle, *value)))
                .collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

#[test]
fn every_opcode_does_what_pickletools_says() {
    // Each made by hand from the descriptions in `pickletools`.
    for (bytes, value) in [
        (&b"\x80\x04N."[..], "None"),
        (b"\x80\x02\x88.", "True"),
        (b"\x89.", "False"),
        (b"K\xff.", "255"),
        (b"M\x34\x12.", "4660"),
        (b"J\xfe\xff\xff\xff.", "-2"),
        (b"\x8a\x02\x00\x80.", "-32768"),
        (b"\x8a\x00.", "0"),
        (b"\x8a\x06\x00\x00\x00\x04\x00\x7f.", "139638043836416"),
        (b"\x8a\x09\0\0\0\0\0\0\0\0\x01.", "huge"),
        (b"G\x3f\xf8\0\0\0\0\0\0.", "1.5"),
        (b"\x8c\x02hi.", "'hi'"),
        (b"X\x02\0\0\0\xc3\xa9.", "'é'"),
        (b"\x8d\x01\0\0\0\0\0\0\0x.", "'x'"),
        (b"].", "[]"),
        (b").", "()"),
        (b"}.", "{}"),
        (b"]K\x01a.", "[1]"),
        (b"](K\x01K\x02e.", "[1, 2]"),
        (b"(K\x01K\x02l.", "[1, 2]"),
        (b"(K\x01K\x02t.", "(1, 2)"),
        (b"K\x01\x85.", "(1)"),
        (b"K\x01K\x02\x86.", "(1, 2)"),
        (b"K\x01K\x02K\x03\x87.", "(1, 2, 3)"),
        (b"}\x8c\x01aK\x01s.", "{'a': 1}"),
        (b"}(\x8c\x01aK\x01\x8c\x01bNu.", "{'a': 1, 'b': None}"),
        (b"(\x8c\x01aK\x01d.", "{'a': 1}"),
        // Memo: by order, by byte, by four bytes; what is referred to is the same list.
        (b"](]\x94h\x00e.", "[[], []]"),
        (b"](]q\x00h\x00h\x00K\x07ae.", "[[7], [7], [7]]"),
        (b"](]r\0\0\0\0j\0\0\0\0e.", "[[], []]"),
        (b"](K\x01q\x00K\x02q\x00h\x00e.", "[1, 2, 2]"),
        (b"\x80\x05\x95\x02\0\0\0\0\0\0\0N.", "None"),
    ] {
        let pickle = Pickle::decode(bytes).unwrap_or_else(|error| panic!("{value}: {}", error.kind));
        assert_eq!(printed(&pickle, pickle.root()), value, "{bytes:02x?}");
    }
}

#[test]
fn what_would_run_code_is_named_and_not_run() {
    for (bytes, at, opcode) in [
        (&b"cos\nsystem\n(\x8c\x02lstR."[..], 0, "GLOBAL"),
        (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02ls\x85R.", 14, "STACK_GLOBAL"),
        (b"\x80\x04NN\x85R.", 5, "REDUCE"),
        (b"N}b.", 2, "BUILD"),
        (b"(ios\nsystem\n.", 1, "INST"),
        (b"(NNo.", 3, "OBJ"),
        (b"N)\x81.", 2, "NEWOBJ"),
        (b"N)}\x92.", 3, "NEWOBJ_EX"),
        (b"\x82\x01.", 0, "EXT1"),
        (b"NQ.", 1, "BINPERSID"),
        (b"Pid\n.", 0, "PERSID"),
    ] {
        assert_eq!(mistake(bytes), (at, PickleMistake::RunsCode { opcode }), "{bytes:02x?}");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (bytes, text) in [
        (&b"\x80\x04"[..], "2: the pickle ends without STOP: the file is cut off"),
        (b"N", "1: the pickle ends without STOP: the file is cut off"),
        (b"NJ\x01\x02", "1: BININT needs 4 bytes and 2 are left: the file is cut off or damaged"),
        (
            b"X\xff\xff\xff\xffab",
            "0: BINUNICODE needs 4294967295 bytes and 2 are left: the file is cut off or damaged",
        ),
        (
            b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffab",
            "0: BINUNICODE8 needs 18446744073709551615 bytes and 2 are left: the file is cut off or damaged",
        ),
        (b"\x8a\xff\x01.", "0: LONG1 needs 255 bytes and 2 are left: the file is cut off or damaged"),
        (
            b"\x95\xff\xff\xff\xff\xff\xff\xff\xff.",
            "0: FRAME of 18446744073709551615 bytes, and 1 are left: the file is cut off or damaged",
        ),
        (b"N.N", "1: 1 bytes follow the end of the pickle: one snapshot a file, and nothing else"),
        (b"NN.", "2: STOP needs exactly one value, and no open MARK, before it, which is not there"),
        (b"(N.", "2: STOP needs exactly one value, and no open MARK, before it, which is not there"),
        (b".", "0: STOP needs exactly one value, and no open MARK, before it, which is not there"),
        (b"\x80\x06N.", "0: pickle protocol 6: 2 to 5 are known"),
        (b"I1\n.", "0: INT (0x49) is no opcode that a memory snapshot is made of"),
        (b"\xff.", "0: an unknown opcode (0xff) is no opcode that a memory snapshot is made of"),
        (b"\x8c\x02\xff\xfe.", "0: SHORT_BINUNICODE with text that is not UTF-8"),
        (b"]a.", "1: APPEND needs a list before it, which is not there"),
        (b"NNa.", "2: APPEND on None"),
        (b"e.", "0: APPENDS needs a MARK before it, which is not there"),
        (b"](a.", "2: APPEND needs a list and a value before it, which is not there"),
        (b"N(Ne.", "3: APPENDS on None"),
        (b"}(Nu.", "3: SETITEMS with 1 values, which are no pairs"),
        (b"](NNu.", "4: SETITEMS on a list"),
        (b"K\x01\x86.", "2: TUPLE2 needs two values before it, which is not there"),
        (b"(\x94.", "1: MEMOIZE needs a value before it, which is not there"),
        (b"h\x00.", "0: BINGET of entry 0: 0 entries were made"),
        (b"Nj\xff\xff\xff\xff.", "1: LONG_BINGET of entry 4294967295: 0 entries were made"),
        (b"Nr\xff\xff\xff\xff.", "1: LONG_BINPUT of entry 4294967295: 0 entries were made"),
    ] {
        let (at, mistake) = mistake(bytes);
        assert_eq!(format!("{at}: {mistake}"), text, "{bytes:02x?}");
    }
}

#[test]
fn a_million_references_are_a_million_values_and_no_copies() {
    let frames = Data::List(vec![Data::from("frame"); 1_000]).shared();
    let bytes = Data::List(vec![frames; 1_000_000]).pickle();
    let pickle = Pickle::decode(&bytes).expect("it is sound");
    assert_eq!(pickle.len(), 1_000_000 + 1_000);
    assert_eq!(pickle.lists.len(), 2);
}

#[test]
fn nesting_and_cycles_cost_nothing() {
    let depth = 1_000_000;
    let mut bytes = vec![b']'; depth];
    bytes.extend(vec![b'a'; depth - 1]);
    bytes.push(b'.');
    let pickle = Pickle::decode(&bytes).expect("it is sound");
    assert_eq!(pickle.lists.len(), depth);

    let mut marks = vec![b'('; depth];
    marks.extend(vec![b't'; depth]);
    marks.push(b'.');
    assert_eq!(Pickle::decode(&marks).expect("it is sound").lists.len(), depth);

    // A list in itself, and a dict that is its own value.
    let pickle = Pickle::decode(b"]\x94h\x00a.").expect("it is sound");
    assert_eq!(pickle.list(pickle.root()), Some(&[pickle.root()][..]));
    let pickle = Pickle::decode(b"}\x94\x8c\x01ah\x00s.").expect("it is sound");
    assert_eq!(pickle.get(pickle.root(), "a"), Some(pickle.root()));
}

#[test]
fn the_last_value_of_a_key_counts() {
    let pickle = Pickle::decode(b"}(\x8c\x01aK\x01\x8c\x01aK\x02u.").expect("it is sound");
    assert_eq!(pickle.get(pickle.root(), "a"), Some(Value::Int(2)));
    assert_eq!(pickle.get(pickle.root(), "b"), None);
    assert_eq!(pickle.get(Value::None, "a"), None);
}

#[test]
fn a_dict_has_a_bounded_number_of_keys() {
    let keys = |count: usize| Data::Dict(vec![("a", Data::None); count]).pickle();
    assert!(Pickle::decode(&keys(MOST_KEYS)).is_ok());
    let (_, found) = mistake(&keys(MOST_KEYS + 1));
    assert_eq!(found, PickleMistake::TooManyKeys { keys: MOST_KEYS + 1, most: MOST_KEYS });
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let long = format!("x{}", "é".repeat(MOST_TEXT_BYTES));
    let bytes = Data::from(&long[..]).pickle();
    let pickle = Pickle::decode(&bytes).expect("it is sound");
    let Value::Text(text) = pickle.root() else { panic!("{:?}", pickle.root()) };
    assert_eq!(pickle.text(text), &long[..MOST_TEXT_BYTES - 1]);
}

#[test]
fn values_are_counted_before_they_are_kept() {
    let bytes = b"](K\x01K\x02K\x03e."; // a list with its container, a MARK, three numbers
    assert!(Pickle::decode_at_most(bytes, 6).is_ok());
    let error = Pickle::decode_at_most(bytes, 5).expect_err("one more");
    assert_eq!(error.place, Place::Byte(6));
    assert!(matches!(error.kind, ImportErrorKind::Pickle(PickleMistake::TooManyValues { most: 5 })));
}

/// Opcodes that keep something, and some of the others.
fn opcodes() -> impl Strategy<Value = u8> {
    prop::sample::select(&b"]}()NK\x94\x88al(t\x85\x86\x87desuhqj\x8c\x80\x95."[..])
}

proptest! {
    /// No bytes make it panic, and each makes at most two values: with a limit of two a byte, that limit is never met.
    #[test]
    fn memory_is_bounded_by_the_bytes(bytes in prop::collection::vec(prop_oneof![opcodes(), any::<u8>()], 0..300)) {
        if let Err(error) = Pickle::decode_at_most(&bytes, 2 * bytes.len()) {
            let is_limit = matches!(error.kind, ImportErrorKind::Pickle(PickleMistake::TooManyValues { .. }));
            prop_assert!(!is_limit, "{bytes:02x?}");
            prop_assert!(matches!(error.place, Place::Byte(at) if at <= bytes.len()), "{}", error.place);
        }
    }
}

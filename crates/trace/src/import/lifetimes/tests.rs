//! Small tables made by hand, and random ones against a count at each moment.
//!
//! Main types: none. Neighbours: `lifetimes`.

use proptest::prelude::*;

use crate::event::Event;
use crate::import::{ImportError, ImportFormat, Imported, Importer, NoteKind};

fn import(text: &str) -> Result<Imported, ImportError> {
    Importer::default().read(text.into(), "plan.csv")
}

fn lines(imported: &Imported) -> Vec<String> {
    imported.trace.events.iter().map(ToString::to_string).collect()
}

#[test]
fn a_buffer_is_gone_at_its_upper_end() {
    let imported = import("id,lower,upper,size\n7,0,3,10\n8,3,5,20\n9,-2,3,30\n").expect("a table");
    assert_eq!(imported.format, ImportFormat::Lifetimes);
    // By time: 9 at -2, 7 at 0; at 3 both are freed before 8 comes.
    assert_eq!(lines(&imported), ["a 1 30 0", "a 2 10 0", "f 2", "f 1", "a 3 20 0", "f 3"]);
    assert_eq!((imported.peak_live_bytes, imported.live_at_end_bytes), (40, 0));
}

#[test]
fn it_lives_at_its_end_where_the_column_is_called_so() {
    let imported = import("size,end,begin,buffer\n10,3,0,x\n20,5,3,y\n5,9,9,z\n").expect("a table");
    assert_eq!(lines(&imported), ["a 1 10 0", "a 2 20 0", "f 1", "f 2", "a 3 5 0", "f 3"]);
}

#[test]
fn what_never_lives_is_left_out_and_so_are_other_columns() {
    let imported =
        import("\u{feff}\"id\", Start ,upper,size,alignment\r\n1,0,0,5,64\r\n2,0,1,0,64\r\n3,0,1,4,64\r\n")
            .expect("a table");
    assert_eq!(lines(&imported), ["a 1 4 0", "f 1"]);
    let left_out: Vec<_> = imported.notes.iter().filter(|note| note.kind == NoteKind::LeftOut).collect();
    assert_eq!(left_out[0].text, "2 buffers of 0 bytes, or that never live");
    assert_eq!(left_out[1].text, "the columns alignment");
}

#[test]
fn what_is_wrong_is_told_with_its_line() {
    for (text, said) in [
        ("id,lower,upper,size\n1,5,4,1\n", "2: a lifetime from 5 to 4 ends before it begins"),
        ("id,begin,end,size\n1,5,4,1\n", "2: a lifetime from 5 to 4 ends before it begins"),
        ("id,lower,upper,size\n1,0,1,1\n\n1,0,1,1\n", "4: buffer \"1\" again: line 2 has it"),
        (
            "id,lower,upper,size\n1,NaN,1,1\n",
            "2: lower \"NaN\" is not a number from -9223372036854775808 to 9223372036854775807",
        ),
        ("id,lower,upper,size\n1,0,1,-1\n", "2: size \"-1\" is not a number from 0 to 18446744073709551615"),
        (
            "id,lower,upper,size\n1,0,1,1.5\n",
            "2: size \"1.5\" is not a number from 0 to 18446744073709551615",
        ),
        ("id,lower,upper,size\n1,0,1\n", "2: 3 fields, and there are 4 columns: \"1,0,1\""),
        ("id,lower,upper,size\n1,0,1,1,\n", "2: 5 fields, and there are 4 columns: \"1,0,1,1,\""),
        ("id,lower,upper\n", "1: no column \"size\"; the columns are \"id,lower,upper\""),
        ("id,lower,upper,end,size\n", "1: more than one column \"upper\" in \"id,lower,upper,end,size\""),
        ("id,lower,upper,size\n1,0,1,1000000000000000000\n", "2: a block of 1000000000000000000 bytes"),
    ] {
        let error = import(text).map(|found| lines(&found)).expect_err(said).to_string();
        let found = error.strip_prefix("plan.csv:").unwrap_or(&error);
        assert!(found.starts_with(said), "{found}\nshould be\n{said}");
    }
    let not_text = Importer::default().read(b"id,lower,upper,size\n\xff\xfe,0,1,1".to_vec(), "x");
    assert!(not_text.expect_err("no text").to_string().starts_with("x:2: not UTF-8"), "its line");
    // The last moments that there are.
    let edge = format!("id,begin,end,size\n1,{},{},3\n", i64::MIN, i64::MAX);
    assert_eq!(lines(&import(&edge).expect("a table")), ["a 1 3 0", "f 1"]);
}

proptest! {
    /// At each moment the live bytes are those of the buffers that live then.
    #[test]
    fn live_bytes_are_those_of_the_buffers(
        buffers in prop::collection::vec((0_i64..20, 1_i64..20, 1_u64..1000), 0..40),
    ) {
        let rows = buffers.iter().enumerate();
        let rows: String = rows
            .map(|(id, (lower, length, size))| format!("{id},{lower},{},{size}\n", lower + length))
            .collect();
        let imported = import(&format!("id,lower,upper,size\n{rows}")).expect("a table");
        let at = |moment: i64| -> u64 {
            let live = buffers.iter().filter(|(lower, length, _)| (*lower..lower + length).contains(&moment));
            live.map(|(_, _, size)| size).sum()
        };
        prop_assert_eq!(imported.peak_live_bytes, (0..40).map(at).max().unwrap_or(0));

        // All that happens up to a moment, and nothing later, leaves what lives then.
        let (mut live, mut sizes) = (0, vec![0; buffers.len() + 1]);
        let mut events = imported.trace.events.iter();
        for moment in 0..40 {
            let starts = buffers.iter().filter(|(lower, _, _)| *lower == moment).count();
            let ends = buffers.iter().filter(|(lower, length, _)| lower + length == moment).count();
            for event in events.by_ref().take(starts + ends) {
                match *event {
                    Event::Allocate { id, bytes, .. } => {
                        sizes[id as usize] = bytes;
                        live += bytes;
                    }
                    Event::Free { id } => live -= sizes[id as usize],
                    ref other => panic!("{other}"),
                }
            }
            prop_assert_eq!(live, at(moment), "at {}", moment);
        }
        prop_assert!(events.next().is_none());
    }
}

//! Random traces without a mistake.

use concertina_trace::{Event, Header, Trace};
use proptest::collection::vec;
use proptest::prelude::*;

/// One step of a program; it takes what is live where it names a block.
#[derive(Clone, Debug)]
enum Op {
    Allocate { id: u64, bytes: u64, stream: u32 },
    Free { which: usize },
    Record { which: usize, stream: u32 },
    Other(Event),
}

fn stream() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0_u32..4, 1 => any::<u32>()]
}

fn op() -> impl Strategy<Value = Op> {
    let id = prop_oneof![4 => 0_u64..20, 1 => any::<u64>()];
    prop_oneof![
        6 => (id, 1_u64..1 << 48, stream()).prop_map(|(id, bytes, stream)| Op::Allocate { id, bytes, stream }),
        5 => any::<usize>().prop_map(|which| Op::Free { which }),
        1 => (any::<usize>(), stream()).prop_map(|(which, stream)| Op::Record { which, stream }),
        1 => (stream(), stream()).prop_map(|(stream, on)| Op::Other(Event::StreamWait { stream, on })),
        1 => proptest::option::of(stream()).prop_map(|stream| Op::Other(Event::Synchronize { stream })),
        1 => Just(Op::Other(Event::ReleaseCached)),
        1 => "[^\n]{1,20}".prop_map(|label| Op::Other(Event::Mark { label: label.into() })),
    ]
}

/// Traces without a mistake: any header, up to 120 events.
pub(crate) fn trace() -> impl Strategy<Value = Trace> {
    let headers = vec(("[^\n: ][^\n:]{0,6}[^\n: ]", "[^\n]{0,12}"), 0..4);
    (headers, vec(op(), 0..120)).prop_map(|(lines, ops)| {
        let mut header = Header::new();
        for (key, value) in lines {
            header.push(&key, &value).expect("the strategy makes keys and values");
        }
        let mut live: Vec<u64> = Vec::new();
        let mut events = Vec::new();
        for op in ops {
            match op {
                Op::Allocate { id, bytes, stream } if !live.contains(&id) => {
                    live.push(id);
                    events.push(Event::Allocate { id, bytes, stream });
                }
                Op::Free { which } if !live.is_empty() => {
                    events.push(Event::Free { id: live.swap_remove(which % live.len()) });
                }
                Op::Record { which, stream } if !live.is_empty() => {
                    events.push(Event::RecordStream { id: live[which % live.len()], stream });
                }
                Op::Other(event) => events.push(event),
                Op::Allocate { .. } | Op::Free { .. } | Op::Record { .. } => {}
            }
        }
        Trace { header, events }
    })
}

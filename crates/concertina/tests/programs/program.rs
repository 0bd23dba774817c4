//! Programs: what a user of the allocator may do, step by step, and how random ones are drawn.
//!
//! Main types: [`Program`], [`Op`], [`Setup`]. Neighbours: `world` runs them. A failing program is printed one step a
//! line, as it could be typed into a test.

use core::fmt;

use concertina::{Config, CrossStream, HostWait, Policy, StaleRule};
use concertina_emulator::{EmulatorConfig, EventCompletion};
use concertina_vmm::MALLOC_PAGE_BYTES;
use proptest::prelude::*;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Streams that a program has at any time.
pub(crate) const STREAMS: usize = 3;

/// The device and the allocator. Sizes in pages but for the page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setup {
    pub(crate) page_bytes: u64,
    pub(crate) device: u64,
    pub(crate) completion: EventCompletion,
    pub(crate) policy: Policy,
    pub(crate) cross_stream: CrossStream,
    pub(crate) host_wait: HostWait,
    pub(crate) stale: StaleRule,
    pub(crate) limit: Option<u64>,
    pub(crate) reservation: Option<u64>,
    /// All addresses of the device.
    pub(crate) addresses: Option<u64>,
    pub(crate) max_mappings: Option<u64>,
    pub(crate) unmap_spans_mappings: bool,
    /// Without it the allocator is on malloc segments.
    pub(crate) virtual_memory: bool,
    /// Live blocks from which on a heap defers frees; as users get it, which is more than any program has, if `None`.
    pub(crate) deferred_from: Option<u64>,
}

impl Setup {
    /// A device of so many pages, nothing else limited, events at once, no waits of the host, all else as users
    /// get it.
    pub(crate) fn plain(page_bytes: u64, device: u64) -> Self {
        Self {
            page_bytes,
            device,
            completion: EventCompletion::AtOnce,
            policy: Policy::default(),
            cross_stream: CrossStream::default(),
            host_wait: HostWait::Never,
            stale: StaleRule::default(),
            limit: None,
            reservation: None,
            addresses: None,
            max_mappings: None,
            unmap_spans_mappings: true,
            virtual_memory: true,
            deferred_from: None,
        }
    }

    /// The same without virtual memory. Pages are those of malloc segments.
    pub(crate) fn without_virtual_memory(device: u64) -> Self {
        Self { virtual_memory: false, ..Self::plain(MALLOC_PAGE_BYTES, device) }
    }

    pub(crate) fn emulator(&self) -> EmulatorConfig {
        let plain = EmulatorConfig::default();
        EmulatorConfig {
            capacity_bytes: self.device * self.page_bytes,
            granularity_bytes: self.page_bytes,
            address_space_bytes: self
                .addresses
                .map_or(plain.address_space_bytes, |pages| pages * self.page_bytes),
            max_mappings: self.max_mappings,
            event_completion: self.completion,
            unmap_spans_mappings: self.unmap_spans_mappings,
            virtual_memory: self.virtual_memory,
            ..plain
        }
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::builder()
            .policy(self.policy)
            .cross_stream(self.cross_stream)
            .host_wait(self.host_wait)
            .stale(self.stale);
        if let Some(pages) = self.limit {
            config = config.limit_bytes(pages * self.page_bytes);
        }
        if let Some(pages) = self.reservation {
            config = config.reservation_bytes(pages * self.page_bytes);
        }
        if let Some(blocks) = self.deferred_from {
            config = config.deferred_from_blocks(blocks);
        }
        config.build()
    }

    /// Most frames that the allocator may ever have.
    pub(crate) fn most_frames(&self) -> u64 {
        self.limit.map_or(self.device, |limit| limit.min(self.device))
    }
}

/// A number of bytes: so many pages and so many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
}

impl Size {
    pub(crate) const fn bytes(bytes: u64) -> Self {
        Self { pages: 0, bytes }
    }

    pub(crate) const fn pages(pages: u64) -> Self {
        Self { pages, bytes: 0 }
    }

    /// In bytes.
    pub(crate) fn of(self, page_bytes: u64) -> u64 {
        self.pages * page_bytes + self.bytes
    }
}

/// One step of a program. `nth` counts the live blocks, oldest first, modulo their number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    /// Allocates, and queues a kernel that writes the block.
    Allocate {
        size: Size,
        alignment: Size,
        stream: usize,
    },
    /// Queues kernels that read the block on its stream and on those recorded for it, and frees it.
    Free {
        nth: usize,
    },
    /// Queues a kernel that reads the block on another stream, and says so.
    RecordStream {
        nth: usize,
        stream: usize,
    },
    /// The program makes a stream wait for another on the device, and says so.
    Wait {
        waiter: usize,
        on: usize,
    },
    /// The program's host waits for a stream, and says so.
    Synchronize {
        stream: usize,
    },
    /// The program's host waits for the device, and says so.
    SynchronizeDevice,
    Trim,
    TrimTo {
        pages: u64,
    },
    /// The program queues so much other work.
    Advance {
        operations: u64,
    },
    /// The device catches up with a stream.
    Complete {
        stream: usize,
    },
    /// The program drops a stream and makes another in its place.
    Replace {
        stream: usize,
    },
}

#[derive(Clone, PartialEq)]
pub(crate) struct Program {
    pub(crate) setup: Setup,
    pub(crate) ops: Vec<Op>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?}", self.setup)?;
        for op in &self.ops {
            writeln!(f, "    {op:?},")?;
        }
        Ok(())
    }
}

fn alignment() -> impl Strategy<Value = Size> {
    prop_oneof![
        6 => Just(Size::bytes(512)),
        1 => prop::sample::select(vec![1, 256, 4096, 64 * KIB]).prop_map(Size::bytes),
        1 => prop::sample::select(vec![1, 2, 4]).prop_map(Size::pages),
    ]
}

fn size(device: u64) -> impl Strategy<Value = Size> {
    prop_oneof![
        3 => (1..=2 * KIB).prop_map(Size::bytes),
        4 => (1..=2 * KIB).prop_map(|steps| Size::bytes(steps * 512)),
        2 => (1..=device / 2).prop_map(Size::pages),
        4 => (0..=device / 4, 1..=2 * KIB).prop_map(|(pages, steps)| Size { pages, bytes: steps * 512 }),
        1 => (1..=device + 1, 1..=KIB).prop_map(|(pages, bytes)| Size { pages, bytes }),
    ]
}

pub(crate) fn op(device: u64) -> impl Strategy<Value = Op> {
    let stream = || 0..STREAMS;
    let nth = any::<usize>;
    prop_oneof![
        12 => (size(device), alignment(), stream())
            .prop_map(|(size, alignment, stream)| Op::Allocate { size, alignment, stream }),
        11 => nth().prop_map(|nth| Op::Free { nth }),
        2 => (nth(), stream()).prop_map(|(nth, stream)| Op::RecordStream { nth, stream }),
        1 => (stream(), stream()).prop_map(|(waiter, on)| Op::Wait { waiter, on }),
        1 => stream().prop_map(|stream| Op::Synchronize { stream }),
        1 => Just(Op::SynchronizeDevice),
        1 => Just(Op::Trim),
        1 => (0..device).prop_map(|pages| Op::TrimTo { pages }),
        1 => prop::sample::select(vec![1_u64, 5, 500, 1000]).prop_map(|operations| Op::Advance { operations }),
        1 => stream().prop_map(|stream| Op::Complete { stream }),
        1 => stream().prop_map(|stream| Op::Replace { stream }),
    ]
}

pub(crate) fn completion() -> impl Strategy<Value = EventCompletion> {
    prop::sample::select(vec![
        EventCompletion::AtOnce,
        EventCompletion::AfterOperations(7),
        EventCompletion::AfterOperations(1000),
        EventCompletion::ByHand,
        EventCompletion::BySeed(20_260_801),
        EventCompletion::ByClock,
    ])
}

/// Any setup in which only memory is scarce.
pub(crate) fn roomy() -> impl Strategy<Value = Setup> {
    let page_bytes = prop::sample::select(vec![64 * KIB, 2 * MIB, 32 * MIB]);
    let policy = prop::sample::select(vec![Policy::Lean, Policy::Balanced]);
    let rule =
        prop::sample::select(vec![CrossStream::Never, CrossStream::Completed, CrossStream::DeviceWait]);
    let stale = prop::sample::select(vec![StaleRule::Keep, StaleRule::Keep, StaleRule::Eager]);
    let limit = prop::option::weighted(0.3, 4_u64..64);
    let reservation = prop::option::weighted(0.5, 1_u64..40);
    // And whether frees are deferred.
    let spans = (prop::bool::weighted(0.8), prop::option::weighted(0.5, 0_u64..6));
    let rules = (rule, prop::sample::select(vec![HostWait::Never, HostWait::LastResort]));
    (page_bytes, 8_u64..=64, completion(), policy, rules, stale, limit, reservation, spans).prop_map(
        |(page_bytes, device, completion, policy, rules, stale, limit, reservation, spans)| Setup {
            completion,
            policy,
            cross_stream: rules.0,
            host_wait: rules.1,
            stale,
            limit,
            reservation,
            unmap_spans_mappings: spans.0,
            deferred_from: spans.1,
            ..Setup::plain(page_bytes, device)
        },
    )
}

/// Any setup: addresses and mappings may be scarce, too.
pub(crate) fn any_setup() -> impl Strategy<Value = Setup> {
    (roomy(), prop::option::weighted(0.3, 8_u64..200), prop::option::weighted(0.3, 8_u64..200))
        .prop_map(|(setup, addresses, max_mappings)| Setup { addresses, max_mappings, ..setup })
}

/// Any setup without virtual memory.
pub(crate) fn malloc_setup() -> impl Strategy<Value = Setup> {
    roomy().prop_map(|setup| Setup { page_bytes: MALLOC_PAGE_BYTES, virtual_memory: false, ..setup })
}

/// A program of up to so many steps on one of the setups.
pub(crate) fn program(setup: impl Strategy<Value = Setup>, steps: usize) -> impl Strategy<Value = Program> {
    setup.prop_flat_map(move |setup| {
        let ops = prop::collection::vec(op(setup.device), 1..steps);
        (Just(setup), ops).prop_map(|(setup, ops)| Program { setup, ops })
    })
}

/// Random programs, `cases` of them unless `PROPTEST_CASES` says how many.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

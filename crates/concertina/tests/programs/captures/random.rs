//! Random programs: captures on several streams, launches, work that runs, and ends of pools in any order.
//!
//! Main types: [`Op`], [`World`]. Neighbours: `captures` has the bench. The race detector is the judge: a launch works on
//! the addresses that the capture was given, whatever became of the blocks since; if they serve anybody else, or are not
//! mapped any more, or nothing orders two uses of one frame, it says so.

use concertina::{Growth, HostWait, Policy};
use concertina_emulator::EventCompletion;
use concertina_vmm::Call;
use proptest::prelude::*;

use super::{Bench, Block, Graph, PAGE, Pool, Scope};
use crate::program::cases;

const STREAMS: usize = 3;
const DEVICE: u64 = 24;

#[derive(Clone, Debug)]
enum Op {
    /// A new pool, with so many pages reserved for a stream.
    AddPool {
        growth: Growth,
        pages: u64,
        stream: usize,
    },
    Begin {
        stream: usize,
        pool: usize,
    },
    End {
        stream: usize,
    },
    Allocate {
        pages: u64,
        stream: usize,
    },
    Free {
        nth: usize,
    },
    Launch {
        graph: usize,
        stream: usize,
    },
    /// A graph and its share of the pool go.
    Destroy {
        graph: usize,
    },
    Trim,
    Complete {
        stream: usize,
    },
    Advance,
}

fn op() -> impl Strategy<Value = Op> {
    let (stream, any) = (|| 0..STREAMS, any::<usize>);
    let growth = prop::sample::select(vec![Growth::Held, Growth::Create]);
    prop_oneof![
        2 => (growth, 0..6_u64, stream()).prop_map(|(growth, pages, stream)| Op::AddPool { growth, pages, stream }),
        4 => (stream(), any()).prop_map(|(stream, pool)| Op::Begin { stream, pool }),
        3 => stream().prop_map(|stream| Op::End { stream }),
        12 => (1..7_u64, stream()).prop_map(|(pages, stream)| Op::Allocate { pages, stream }),
        9 => any().prop_map(|nth| Op::Free { nth }),
        6 => (any(), stream()).prop_map(|(graph, stream)| Op::Launch { graph, stream }),
        2 => any().prop_map(|graph| Op::Destroy { graph }),
        1 => Just(Op::Trim),
        1 => stream().prop_map(|stream| Op::Complete { stream }),
        1 => Just(Op::Advance),
    ]
}

/// A live block and its stream.
struct Held {
    block: Block,
    stream: usize,
}

struct World {
    bench: Bench,
    pools: Vec<Pool>,
    scopes: Vec<Option<(Scope, Graph)>>,
    graphs: Vec<(Graph, Pool)>,
    blocks: Vec<Held>,
}

impl World {
    fn new(completion: EventCompletion, policy: Policy, host_wait: HostWait) -> Self {
        let config = Bench::config().policy(policy).host_wait(host_wait).build();
        let bench = Bench::completing(DEVICE, completion, config);
        let scopes = (0..STREAMS).map(|_| None).collect();
        Self { bench, pools: Vec::new(), scopes, graphs: Vec::new(), blocks: Vec::new() }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::AddPool { growth, pages, stream } => {
                let pool = self.bench.allocator.graph_pool_with(growth);
                if pages > 0 && self.scopes[stream].is_none() {
                    let _ = pool.reserve(pages * PAGE, self.bench.stream(stream));
                }
                self.pools.push(pool);
            }
            Op::Begin { stream, pool } => {
                let Some(pool) = pool.checked_rem(self.pools.len()).map(|at| self.pools[at].clone()) else {
                    return;
                };
                if self.scopes[stream].is_none() {
                    let scope = self.bench.begin(stream, &pool);
                    self.scopes[stream] = Some((scope, Graph::default()));
                }
            }
            Op::End { stream } => {
                if let Some((scope, graph)) = self.scopes[stream].take() {
                    let pool = scope.pool().clone();
                    self.bench.end(stream, scope);
                    self.graphs.push((graph, pool));
                }
            }
            Op::Allocate { pages, stream } => self.allocate(pages, stream),
            Op::Free { nth } => {
                let Some(nth) = nth.checked_rem(self.blocks.len()) else { return };
                let Held { block, stream } = self.blocks.swap_remove(nth);
                match &mut self.scopes[stream] {
                    // The free is captured, and nothing runs.
                    Some(_) => drop(block),
                    None => self.bench.write_and_free(block, stream),
                }
            }
            Op::Launch { graph, stream } => {
                let Some(at) = graph.checked_rem(self.graphs.len()) else { return };
                let (graph, pool) = &self.graphs[at];
                if self.scopes[stream].is_none() && self.may_launch(graph) {
                    self.bench.launch(graph, pool, stream);
                }
            }
            Op::Destroy { graph } => {
                if let Some(at) = graph.checked_rem(self.graphs.len()) {
                    self.graphs.swap_remove(at);
                }
                if self.pools.len() > 3 {
                    self.pools.remove(0);
                }
            }
            Op::Trim => drop(self.bench.allocator.trim()),
            Op::Complete { stream } => self.bench.device.complete_stream(&self.bench.streams[stream].1),
            Op::Advance => self.bench.device.advance(5),
        }
    }

    /// Blocks that live are the program's to order: it waits for the streams that use them.
    fn may_launch(&self, graph: &Graph) -> bool {
        let touches = |Held { block, .. }: &Held| {
            let end = block.address().add(block.bytes());
            graph.writes.iter().any(|&(start, bytes)| start < end && block.address() < start.add(bytes))
        };
        !self.blocks.iter().any(touches)
    }

    fn allocate(&mut self, pages: u64, stream: usize) {
        let before = self.bench.device.counts();
        let Ok(block) = self.bench.try_allocate(pages, stream) else { return };
        let after = self.bench.device.counts();
        match &mut self.scopes[stream] {
            Some((scope, graph)) => {
                graph.write(&block);
                for call in [Call::StreamWait, Call::EventSynchronize, Call::Free] {
                    assert_eq!(after.of(call), before.of(call), "{call} in a capture");
                }
                if scope.pool().growth() == Growth::Held {
                    assert_eq!(after.memory_calls(), before.memory_calls());
                }
            }
            None => self.bench.write(&block, stream),
        }
        self.blocks.push(Held { block, stream });
    }

    fn end(self) {
        let Self { bench, pools, scopes, graphs, blocks } = self;
        for (stream, scope) in scopes.into_iter().enumerate() {
            if let Some((scope, _)) = scope {
                bench.end(stream, scope);
            }
        }
        drop((blocks, graphs, pools));
        bench.ends_empty();
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn what_graphs_use_is_nobody_else_s(
        completion in crate::program::completion(),
        policy in prop::sample::select(vec![Policy::Lean, Policy::Balanced]),
        host_wait in prop::sample::select(vec![HostWait::Never, HostWait::LastResort]),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut world = World::new(completion, policy, host_wait);
        for op in &ops {
            world.step(op);
            world.bench.check();
        }
        world.end();
    }
}

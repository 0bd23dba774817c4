//! A server whose cache of keys and values takes a block for every 16 tokens, one at a time while it decodes.
//!
//! Neighbours: `case` has the report. The workload is that of its benchmark (`benchmarks/bench_idle_footprint` in the
//! repository of kvcached), with draws of our own, and one token a step for each request that runs.

use std::collections::{HashMap, VecDeque};

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::generator::builder::{BlockId, Builder};

/// Keys or values of 16 tokens in one layer: 64 blocks a page of 2 MiB.
const BLOCK_BYTES: u64 = 32 << 10;
const TOKENS_PER_BLOCK: u64 = 16;
const REQUESTS: u64 = 2_500;
const RUNNING_AT_ONCE: usize = 96;
/// Most blocks that are kept for later requests though no request runs with them.
const MOST_KEPT: usize = 1_000;
/// Prefixes that come again and again, and their blocks.
const PREFIXES: u64 = 16;
const PREFIX_BLOCKS: u64 = 8;
/// Share of the requests with such a prefix, and the blocks of their own prompt behind it.
const PREFIX_SHARE: f64 = 0.3;
const SUFFIX_BLOCKS: u64 = 4;
/// Tokens of all other prompts.
const PROMPT_TOKENS: std::ops::RangeInclusive<u64> = 192..=1_024;
const DECODED_TOKENS: std::ops::RangeInclusive<u64> = 16..=256;
const SEED: u64 = 359;

/// The name of a block in the cache: `Prefix` is one of a prefix that comes again, `Own` of one request alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Prefix(u64, u64),
    Own(u64),
}

/// A block, and how many running requests use it.
struct Cached {
    block: BlockId,
    users: u32,
}

struct Request {
    blocks: Vec<Key>,
    tokens: u64,
    tokens_at_the_end: u64,
}

struct Server<'a> {
    trace: &'a mut Builder,
    rng: ChaCha8Rng,
    cache: HashMap<Key, Cached>,
    /// Blocks that no running request uses, the one longest unused first.
    kept: VecDeque<Key>,
    own: u64,
}

/// Serves all requests. Then the server is idle, and gives back what it can.
pub(super) fn serve(trace: &mut Builder) -> Option<u64> {
    let rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut server = Server { trace, rng, cache: HashMap::new(), kept: VecDeque::new(), own: 0 };
    let mut running: Vec<Request> = Vec::new();
    let mut arrived = 0;
    loop {
        while running.len() < RUNNING_AT_ONCE && arrived < REQUESTS {
            if arrived.is_multiple_of(100) {
                server.trace.mark(format!("request {}", arrived + 1));
            }
            running.push(server.prefill(arrived));
            arrived += 1;
        }
        if running.is_empty() {
            break;
        }
        let mut still_running = Vec::new();
        for mut request in running {
            if request.tokens == request.tokens_at_the_end {
                server.end(request);
            } else {
                server.decode(&mut request);
                still_running.push(request);
            }
        }
        running = still_running;
    }
    trace.mark("idle");
    trace.release_cached();
    None
}

impl Server<'_> {
    fn prefill(&mut self, number: u64) -> Request {
        let mut blocks = Vec::new();
        let tokens = if self.rng.random_bool(PREFIX_SHARE) {
            // Later prefixes come later for the first time, when other pages are being filled.
            let known = (1 + PREFIXES * number / REQUESTS).min(PREFIXES);
            let prefix = self.rng.random_range(0..known);
            blocks.extend((0..PREFIX_BLOCKS).map(|part| self.take(Key::Prefix(prefix, part))));
            (PREFIX_BLOCKS + SUFFIX_BLOCKS) * TOKENS_PER_BLOCK
        } else {
            self.rng.random_range(PROMPT_TOKENS)
        };
        while (blocks.len() as u64) < tokens.div_ceil(TOKENS_PER_BLOCK) {
            blocks.push(self.take_own());
        }
        let tokens_at_the_end = tokens + self.rng.random_range(DECODED_TOKENS);
        Request { blocks, tokens, tokens_at_the_end }
    }

    fn decode(&mut self, request: &mut Request) {
        if request.tokens.is_multiple_of(TOKENS_PER_BLOCK) {
            request.blocks.push(self.take_own());
        }
        request.tokens += 1;
    }

    /// All blocks of the request are kept, as long as they are among the last.
    fn end(&mut self, request: Request) {
        for key in request.blocks {
            let cached = self.cache.get_mut(&key).expect("a running request's block is in the cache");
            cached.users -= 1;
            if cached.users == 0 {
                self.kept.push_back(key);
            }
        }
        while self.kept.len() > MOST_KEPT
            && let Some(key) = self.kept.pop_front()
            && let Some(cached) = self.cache.remove(&key)
        {
            self.trace.free(cached.block);
        }
    }

    fn take_own(&mut self) -> Key {
        self.own += 1;
        self.take(Key::Own(self.own))
    }

    fn take(&mut self, key: Key) -> Key {
        if let Some(cached) = self.cache.get_mut(&key) {
            if cached.users == 0 {
                self.kept.retain(|kept| *kept != key);
            }
            cached.users += 1;
        } else {
            let block = self.trace.allocate(BLOCK_BYTES);
            self.cache.insert(key, Cached { block, users: 1 });
        }
        key
    }
}

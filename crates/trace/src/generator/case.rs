//! Public cases: reports of what went wrong for users of other allocators, each as a trace that re-enacts it.
//!
//! Main types: [`PublicCase`]. Neighbours: the files below have the sequences; `benches/traces/cases` holds what they
//! make, `docs/cases.md` tells the stories, `benches/tests/cases.rs` runs them.

mod growing;
mod kv_cache;
mod scattered;
mod short;

use std::fmt;

use super::builder::Builder;
use crate::reader::Trace;

macro_rules! cases {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $report:literal, $description:literal, $make:path;)*) => {
        /// A public report of a failure, re-enacted. It is made by rule alone: nothing can be chosen.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum PublicCase {
            $($(#[$doc])* $variant,)*
        }

        impl PublicCase {
            /// All of them, in the order of their names.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name on a command line, in the header of the trace, and of its file.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Address of the report.
            pub const fn report(self) -> &'static str {
                match self { $(Self::$variant => $report,)* }
            }

            /// What happens in the trace, and which numbers the report does not give, in one line.
            pub const fn description(self) -> &'static str {
                match self { $(Self::$variant => $description,)* }
            }

            /// Makes the trace, whole in memory, with a header that says how.
            pub fn generate(self) -> Trace {
                let mut trace = Builder::new();
                let capacity = match self { $(Self::$variant => $make(&mut trace),)* };
                let keys = capacity.map(|bytes| ("capacity", bytes));
                let source = format!("{}; {}", self.report(), self.description());
                trace.finish(self.name(), &source, keys.as_slice())
            }
        }
    };
}

cases! {
    /// A cache of keys and values whose kept blocks are scattered over pages.
    Kvcached359 = "kvcached359", "https://github.com/ovg-project/kvcached/issues/359",
        "2,500 requests, 96 at a time, blocks of 16 tokens, at most 1,000 kept; one of 72 buffers; draws and clock ours",
        kv_cache::serve;
    /// A cache of keys and values that grows by concatenation.
    Mlx3886 = "mlx3886", "https://github.com/ml-explore/mlx/issues/3886",
        "20 blocks of 2 MiB, then from 513 to 4,096 tokens 20 new blocks of 4,096 bytes a token each",
        growing::concatenation;
    /// A large segment is cut for small blocks.
    Pytorch35901 = "pytorch35901", "https://github.com/pytorch/pytorch/issues/35901",
        "10.84 GiB, freed, and again after 17 layers of small blocks; weights and number of layers ours",
        short::large_segment_is_cut;
    /// A batch that grows by one.
    Pytorch96995 = "pytorch96995", "https://github.com/pytorch/pytorch/pull/96995",
        "50 layers of N times A and N times A times B bytes, N = 32 to 40; A = 1,000,000 and B = 4 ours",
        growing::batches;
    /// A device is filled to the last block.
    Pytorch123548 = "pytorch123548", "https://github.com/pytorch/pytorch/issues/123548",
        "576 MB, freed, then 223 blocks of 115.2 MB on 24 GiB; number of blocks and device ours",
        short::device_is_filled;
    /// Rounds of ten large tensors, with the cache emptied in between.
    Pytorch172056 = "pytorch172056", "https://github.com/pytorch/pytorch/pull/172056",
        "20 times: ten of 5 GB, freed, the cache emptied, the host waits",
        short::cache_is_dropped;
    /// A small block that stays alive behind two that are freed.
    Pytorch193400 = "pytorch193400", "https://github.com/pytorch/pytorch/pull/193400",
        "64 MiB, then 101 times: 91, 45.5 and 2 MiB, of which the last stays",
        short::fence;
    /// Blocks of one size are freed for blocks of twice the size.
    PytorchDevlog = "pytorch-devlog", "https://docs.pytorch.org/devlogs/eager/2026-06-01-cuda-caching-allocator/",
        "eight of 16 MiB, freed, then four of 32 MiB",
        short::double_size;
    /// Pairs of blocks that grow.
    Rmm35 = "rmm35", "https://github.com/rapidsai/rmm/issues/35",
        "11 times two blocks, freed, of 1.0 GB up to 2.0 GB in steps of 0.1 GB",
        short::growing_pairs;
    /// Small blocks between all large ones.
    Rmm1245 = "rmm1245", "https://github.com/rapidsai/rmm/issues/1245",
        "1 to 32 of 256 to 512 KiB after each of 16 to 120 MiB up to 84.5 GB; large ones freed down to 53.5 GB; then 132,870,728 bytes each; large blocks and draws ours",
        scattered::small_between_large;
    /// A small odd first part.
    Rmm1664 = "rmm1664", "https://github.com/rapidsai/rmm/issues/1664",
        "1,000,192 bytes, freed, then 8 blocks of 8 MiB on 64 MiB; scaled",
        short::odd_first_block;
    /// One block of the whole pool.
    Rmm1957 = "rmm1957", "https://github.com/rapidsai/rmm/issues/1957",
        "512 MiB, freed, then 2 GiB on 2 GiB; scaled",
        short::whole_pool;
    /// Two sizes of weights, one after the other.
    Vllm41268 = "vllm41268", "https://github.com/vllm-project/vllm/pull/41268",
        "36 layers: 530 MiB, 530 MiB, the first freed, 270 MiB; number of layers and copies ours",
        growing::two_kinds_of_weights;
    /// New streams on every call.
    Vllm52950 = "vllm52950", "https://github.com/vllm-project/vllm/issues/52950",
        "64 calls with 1 GiB on each of two streams, of 32 in turn; 8 GB of weights and number of calls ours",
        growing::streams_per_call;
    /// The worked example of VPMM.
    Vpmm = "vpmm", "https://github.com/openvm-org/stark-backend/blob/main/docs/vpmm_spec.md",
        "+10, +1, -10, +4, +11 GiB on 16 GiB",
        short::five_calls;
}

impl fmt::Display for PublicCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests;

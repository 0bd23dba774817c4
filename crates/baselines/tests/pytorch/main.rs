//! PyTorch's rules and options, each on a program of a few lines.
//!
//! Neighbours: the unit tests of `conf` and `rounding`; the bundled traces are in the tests of `concertina-bench`.
//!
//! Where a comment says "the binary", the figures were read off PyTorch 2.11's own `libc10_cuda.so`, which ran the same
//! program over a fake CUDA of the same size. The others follow from the rules, as worked out beside them.

mod options;
mod program;
mod rules;

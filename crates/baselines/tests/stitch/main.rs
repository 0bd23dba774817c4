//! The baselines that map memory a second time (`gmlake`, `vpmm`): random programs with kernels on them.
//!
//! Neighbours: the rules of each, worked out by hand, are beside its source.

mod random;
mod world;

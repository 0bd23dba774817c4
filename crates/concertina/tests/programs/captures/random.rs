//! Random programs with captures, launches, and ends of pools in any order, under the race detector.
//!
//! Main types: [`Op`]. Neighbours: `captures` has the bench.

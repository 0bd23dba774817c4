//! Allocation traces of GPU programs.

pub mod target;

//! baselines.

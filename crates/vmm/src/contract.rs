//! The generic tests that every driver must pass.

//! emulator.

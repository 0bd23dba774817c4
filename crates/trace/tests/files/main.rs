//! Traces as files: what is bundled, and what is written and read again.

mod bundled;
mod round_trip;
mod valid;

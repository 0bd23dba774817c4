//! concertina.

//! VPMM.

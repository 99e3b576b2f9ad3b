//! Holdfast bench.

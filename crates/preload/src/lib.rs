//! Holdfast preload.

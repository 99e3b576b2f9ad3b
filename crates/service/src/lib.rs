//! Holdfast service.

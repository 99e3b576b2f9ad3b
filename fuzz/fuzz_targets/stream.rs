//! See `holdfast_fuzz`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| holdfast_fuzz::run("stream", bytes));

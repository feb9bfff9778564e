#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| elver_fuzz::direct::run(bytes));

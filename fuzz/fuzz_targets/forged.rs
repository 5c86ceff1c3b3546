#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tollgate_hostile::translator::forged::run(data));

#![no_main]

libfuzzer_sys::fuzz_target!(
    init: tollgate_hostile::confined::begin(),
    |data: &[u8]| tollgate_hostile::requests::run(data)
);

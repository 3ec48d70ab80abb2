#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| rxe_fuzz::checksum_file::run(data));

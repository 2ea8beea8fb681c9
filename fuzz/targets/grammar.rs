#![no_main]

libfuzzer_sys::fuzz_target!(init: bodies::let_compilers_panic(), |data: &[u8]| bodies::GRAMMAR.run(data));

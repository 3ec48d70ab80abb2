//! Compiles the one function that Rust cannot express: a wait that the cancellation of its thread may end.

fn main() {
    println!("cargo::rerun-if-changed=src/read_byte.c");
    // With exceptions, cancellation unwinds the frame and runs its clean-up handler.
    cc::Build::new().file("src/read_byte.c").flag("-fexceptions").compile("rxe_verbs_read_byte");
}

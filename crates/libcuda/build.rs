//! Gives the cdylib the name under which programs look for the driver.
//!
//! Main types: none. Neighbours: `src/control/load.rs` opens the file by its path; from then on the dynamic loader
//! answers every `dlopen("libcuda.so")` of the process with it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
        // Calls inside the library stay inside, also when a real libcuda is in the process.
        println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    }
}

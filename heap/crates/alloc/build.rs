//! Sets the soname of the shared library, which ends with the number of the interface: a program
//! that was linked with one interface never starts with another one.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux") {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libduramen_alloc.so.0");
    }
}

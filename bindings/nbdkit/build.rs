//! nbdkit unloads its plugins before it ends; a thread of the library may still run then, so the
//! code stays.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}

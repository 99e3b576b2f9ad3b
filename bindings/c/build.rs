//! The library calls itself by the name under which it is installed, so that programs linked with
//! it look for that name and not for a path.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libholdfast.so");
    println!("cargo::rerun-if-changed=build.rs");
}

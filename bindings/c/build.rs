//! The library calls itself by the name under which it is installed, so that programs linked with
//! it look for that name and not for a path.

fn main() {
    // The first number changes with what programs were linked against.
    let major = std::env::var("CARGO_PKG_VERSION_MAJOR").unwrap_or_default();
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libholdfast.so.{major}");
    println!("cargo::rerun-if-changed=build.rs");
}

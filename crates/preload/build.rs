//! The library is linked without start files and without libc: nothing may be pulled in that
//! belongs to the program.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-cdylib=-nostartfiles");
    println!("cargo:rustc-link-arg-cdylib=-nodefaultlibs");
    println!("cargo:rustc-link-arg-cdylib=-Wl,-z,now,-z,relro,-z,noexecstack");
    println!("cargo:rustc-link-arg-cdylib=-Wl,--no-undefined,-Bsymbolic");
}

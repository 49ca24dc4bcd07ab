//! Gives the shared library the name that programs ask the loader for.

/// Goes up when a program that was built against an older library can no longer use a newer one (native/abi).
const SONAME: &str = "libkvasir.so.0";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{SONAME}");
}

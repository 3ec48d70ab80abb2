//! Sets `RXE_VERSION`: the package's version and, with the feature `dpdk`, that of DPDK.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    if env::var_os("CARGO_FEATURE_DPDK").is_none() {
        println!("cargo::rustc-env=RXE_VERSION={version}");
        return;
    }
    match pkg_config::Config::new().cargo_metadata(false).probe("libdpdk") {
        Ok(dpdk) => println!("cargo::rustc-env=RXE_VERSION={version} (DPDK {})", dpdk.version),
        // Clearer than the errors of the linker.
        Err(_) => println!(
            "cargo::error=libdpdk was not found by pkg-config; install it (on Debian 12 or 13: apt install libdpdk-dev dpdk \
             libclang-dev clang pkg-config), or build without DPDK ports: -p rxe --no-default-features"
        ),
    }
}

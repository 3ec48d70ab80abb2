//! Finds libdpdk through pkg-config, generates the bindings from csrc/shim.h and compiles csrc/shim.c.
//!
//! A machine that lacks something gets one sentence that says what to install. Dependents' build scripts see the
//! version as `DEP_DPDK_VERSION`.

use std::env;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The libraries that the bindings call into. Drivers are loaded by EAL at run time from its own folder, so nothing
/// of what pkg-config lists beyond these is wanted.
/// (rte_log is part of rte_eal before 23.11.)
const LIBRARIES: [&str; 7] =
    ["rte_eal", "rte_ethdev", "rte_log", "rte_mbuf", "rte_mempool", "rte_ring", "rte_telemetry"];

const FUNCTIONS: [&str; 68] = [
    // EAL, log, lcores
    "rte_eal_init",
    "rte_eal_cleanup",
    "rte_eal_alarm_set",
    "rte_eal_hotplug_add",
    "rte_eal_hotplug_remove",
    "rte_eal_remote_launch",
    "rte_eal_wait_lcore",
    "rte_eal_get_lcore_state",
    "rte_version",
    "rte_strerror",
    "rte_openlog_stream",
    "rte_log_set_global_level",
    "rte_get_main_lcore",
    "rte_get_next_lcore",
    "rte_lcore_to_socket_id",
    "rte_get_tsc_hz",
    // memory
    "rte_zmalloc_socket",
    "rte_free",
    "rte_memzone_reserve_aligned",
    "rte_memzone_free",
    "rte_mempool_free",
    "rte_mempool_avail_count",
    "rte_mempool_in_use_count",
    "rte_pktmbuf_pool_create",
    "rte_pktmbuf_free_bulk",
    "rte_ring_create",
    "rte_ring_free",
    // ethdev
    "rte_eth_find_next_owned_by",
    "rte_eth_dev_info_get",
    "rte_eth_dev_get_name_by_port",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_default_mac_addr_set",
    "rte_eth_dev_socket_id",
    "rte_eth_dev_configure",
    "rte_eth_dev_adjust_nb_rx_tx_desc",
    "rte_eth_rx_queue_setup",
    "rte_eth_tx_queue_setup",
    "rte_eth_dev_start",
    "rte_eth_dev_stop",
    "rte_eth_dev_close",
    "rte_eth_macaddr_get",
    "rte_eth_allmulticast_enable",
    "rte_eth_promiscuous_enable",
    "rte_eth_dev_set_mc_addr_list",
    "rte_eth_stats_get",
    "rte_eth_xstats_get",
    "rte_eth_xstats_get_names",
    // telemetry
    "rte_telemetry_register_cmd",
    "rte_tel_data_start_dict",
    "rte_tel_data_add_dict_string",
    "rte_tel_data_add_dict_container",
    "rte_tel_data_alloc",
    "rte_tel_data_free",
    // shim
    "rxe_tel_data_add_dict_u64",
    "rxe_eth_rx_burst",
    "rxe_eth_tx_burst",
    "rxe_eth_link_get",
    "rxe_pktmbuf_alloc_bulk",
    "rxe_pktmbuf_free",
    "rxe_pktmbuf_linearize",
    "rxe_ring_sp_enqueue_burst",
    "rxe_ring_mp_enqueue_burst",
    "rxe_ring_sc_dequeue_burst",
    "rxe_ring_count",
    "rxe_memzone_addr",
    "rxe_rdtsc",
    "rxe_lcore_id",
    "rxe_errno",
];

const TYPES: [&str; 2] = ["rxe_mbuf", "rxe_eth_link"];

const VARS: [&str; 3] = ["RXE_.*", "RTE_LOG_(ERR|WARNING|NOTICE|INFO|DEBUG)", "RTE_ETHER_.*_LEN"];

/// Types that we only hold pointers to: their layouts differ between releases, or are packed in ways that Rust has
/// no words for.
const OPAQUE: [&str; 7] =
    ["rte_tel_data", "rte_mbuf", "rte_mempool", "rte_ring", "rte_memzone", "rte_device", "_IO_FILE"];

const INSTALL: &str = "on Debian 12 or 13: apt install libdpdk-dev dpdk libclang-dev clang pkg-config";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=csrc");
    for var in ["PKG_CONFIG", "PKG_CONFIG_PATH", "LIBCLANG_PATH"] {
        println!("cargo::rerun-if-env-changed={var}");
    }
    // cargo::error fails the build with this sentence and without a dump of the script's output.
    if let Err(sentence) = build() {
        println!("cargo::error={sentence}");
    }
}

fn build() -> Result<(), String> {
    let missing = || format!("libdpdk was not found by pkg-config; install it ({INSTALL})");
    let version = pkg_config(&["--modversion"]).ok_or_else(missing)?;
    let cflags = pkg_config(&["--cflags"]).ok_or_else(missing)?;
    let libs = pkg_config(&["--libs"]).ok_or_else(missing)?;
    let libdir = pkg_config(&["--variable=libdir"]).ok_or_else(missing)?;
    let cflags: Vec<&str> = cflags.split_whitespace().collect();

    bindings(&cflags)?;
    shim(&cflags)?;

    println!("cargo::rustc-link-search=native={libdir}");
    let listed: Vec<&str> = libs.split_whitespace().filter_map(|flag| flag.strip_prefix("-l")).collect();
    for library in LIBRARIES.into_iter().filter(|library| listed.contains(library)) {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    println!("cargo::metadata=version={version}");
    Ok(())
}

/// Output of pkg-config about libdpdk; `None` when it is missing or does not know it.
fn pkg_config(args: &[&str]) -> Option<String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(program).args(args).arg("libdpdk").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

fn out_dir() -> Result<PathBuf, String> {
    env::var_os("OUT_DIR").map(PathBuf::from).ok_or_else(|| "OUT_DIR is not set: run this through cargo".to_owned())
}

fn bindings(cflags: &[&str]) -> Result<(), String> {
    let mut builder = bindgen::Builder::default()
        .header("csrc/shim.h")
        .clang_args(cflags)
        .use_core()
        .layout_tests(false)
        .generate_comments(false)
        .derive_default(true)
        .default_enum_style(bindgen::EnumVariation::Consts);
    for name in FUNCTIONS {
        builder = builder.allowlist_function(name);
    }
    for name in TYPES {
        builder = builder.allowlist_type(name);
    }
    for name in VARS {
        builder = builder.allowlist_var(name);
    }
    for name in OPAQUE {
        builder = builder.opaque_type(name);
    }

    // bindgen panics when it cannot load libclang: make a sentence of that, too.
    panic::set_hook(Box::new(|_| {}));
    let generated = panic::catch_unwind(AssertUnwindSafe(move || builder.generate()));
    let _ = panic::take_hook();
    let bindings = match generated {
        Err(_) => return Err(format!("libclang, which generates the DPDK bindings, was not found; {INSTALL}")),
        Ok(Err(error)) => {
            let error = error.to_string().replace('\n', "; ");
            return Err(format!(
                "no bindings for the DPDK headers ({error}); if clang's own headers are missing, {INSTALL}"
            ));
        }
        Ok(Ok(bindings)) => bindings,
    };
    let path = out_dir()?.join("bindings.rs");
    bindings.write_to_file(&path).map_err(|error| format!("{}: {error}", path.display()))
}

fn shim(cflags: &[&str]) -> Result<(), String> {
    let mut build = cc::Build::new();
    build.file(Path::new("csrc/shim.c")).opt_level(3).cargo_metadata(true);
    // Includes as system includes would hide DPDK's own warnings only; ours should show.
    for flag in cflags {
        build.flag(flag);
    }
    build.flag("-Wno-unused-parameter").flag("-Wno-sign-compare");
    build.try_compile("dpdk_sys_shim").map_err(|error| {
        format!(
            "the C shim over the DPDK headers did not compile; {INSTALL} ({})",
            error.to_string().replace('\n', "; ")
        )
    })
}

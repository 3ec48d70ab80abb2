//! `make demo`: a target, a Linux guest with the kernel's soft-RoCE driver, ten RDMA pings and one region, in plain words.

use crate::bed::{BedConfig, TestBed};
use crate::env::TestEnv;
use crate::station::{GUEST_V4, Port, TARGET_V4};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// Runs the demonstration.
pub fn run(env: &Arc<TestEnv>) -> ExitCode {
    let began = Instant::now();
    match show(env) {
        Ok(()) => {
            println!(
                "\nThe demonstration took {:.0} s after the build. Everything it made is gone again.",
                began.elapsed().as_secs_f32()
            );
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("\nThe demonstration failed: {e}");
            ExitCode::FAILURE
        }
    }
}

fn indent(text: &str) {
    for line in text.trim_end().lines() {
        println!("    {line}");
    }
}

fn show(env: &Arc<TestEnv>) -> Result<(), String> {
    println!("\n1. Start rxe-target on a tap interface (DPDK's net_af_packet, no RDMA hardware, no kernel module),");
    println!("   and boot a Linux guest on the same tap with the kernel's RDMA driver rdma_rxe.\n");
    let mut bed = TestBed::start(env, BedConfig::new(Port::AfPacket, 1500))?;
    if let Some(target) = &bed.target {
        println!("    $ {}", target.name());
        indent(&target.ready);
    }
    println!("\n2. The guest ({GUEST_V4}) and its RDMA device:\n");
    let command = "uname -sr; rdma link";
    println!("    guest# {command}");
    indent(&bed.guest().expect(command, LIMIT, &[])?.text);

    println!(
        "\n3. Ten RDMA pings by the kernel's client. For each one the target READs the client's buffer, WRITEs it"
    );
    println!("   back to another one, and the client compares the bytes (-V):\n");
    let command = format!("rping -c -v -V -C 10 -a {TARGET_V4}");
    println!("    guest# {command}");
    let done = bed.guest().expect(&command, LIMIT, &["rdma-ping-9: "])?;
    indent(&done.text);
    let pings = done.text.lines().filter(|l| l.starts_with("ping data: rdma-ping-")).count();
    if pings != 10 {
        return Err(format!("{pings} of 10 pings"));
    }
    println!("\n    10 of 10 pings, verified by the client (exit code 0).");

    println!("\n4. The target exports the memory region \"demo\"; the guest WRITEs text into it and READs it back:\n");
    let text = "Hello from a Linux kernel, over RoCEv2";
    let length = text.len();
    let command = format!("region_client -r demo {TARGET_V4} write 0 '{text}' read 0 {length} fadd 64 5 fadd 64 0");
    println!("    guest# {command}");
    indent(&bed.guest().expect(&command, LIMIT, &[text, "fadd 64: was 5"])?.text);
    println!("\n   The region is a file on the host that any process here can map. Its first {length} bytes:\n");
    let bytes = bed.region_bytes()?;
    let seen = String::from_utf8_lossy(&bytes[..length.min(bytes.len())]).into_owned();
    println!("    {}: \"{seen}\"", bed.region_file().display());
    if seen != text {
        return Err("the host's file does not hold what the guest wrote".to_owned());
    }

    println!("\n5. SIGTERM ends the target; its summary:\n");
    let summary = bed.stop_target()?;
    indent(summary.lines().filter(|l| !l.starts_with("ready ")).collect::<Vec<_>>().join("\n").as_str());
    Ok(())
}

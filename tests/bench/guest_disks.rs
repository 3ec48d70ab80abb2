//! The kernel's NVMe over RDMA host in one guest, and its disk in the other: memory, served by the kernel's own target or by
//! rxe-target.

use std::time::Duration;

use crate::disks::{NQN, SIZE};
use crate::fio;
use crate::results::Sample;
use crate::support::guest::Guest;

const LIMIT: Duration = Duration::from_secs(60);
/// The host's names.
const HOST: &str = "--hostnqn=nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5 \
    --hostid=2cd2c43b-a90a-45c1-a8cd-86b33ab273b5";
/// The kernel's target.
const FOLDER: &str = "/sys/kernel/config/nvmet";

/// Lines of rxe-target's configuration.
pub fn config() -> String {
    format!(
        "[service.nvmf]\nstaging = \"16M\"\n[[service.nvmf.subsystem]]\nnqn = \"{NQN}\"\n\
         [[service.nvmf.subsystem.namespace]]\nram = \"{}M\"\nblock-size = 512\n",
        SIZE >> 20
    )
}

/// Starts the kernel's target at an address of the guest.
///
/// # Errors
/// In words, why not.
pub fn start_kernel(server: &Guest, address: &str) -> Result<(), String> {
    // A disk of brd takes its memory when a block is written.
    let command = format!(
        "set -e; modprobe brd rd_nr=1 rd_size={kib}; dd if=/dev/zero of=/dev/ram0 bs=1M count={mib} 2>/dev/null; \
         modprobe nvmet-rdma; [ -d {FOLDER} ] || mount -t configfs none /sys/kernel/config; cd {FOLDER}; \
         mkdir subsystems/{NQN}; echo 1 >subsystems/{NQN}/attr_allow_any_host; mkdir subsystems/{NQN}/namespaces/1; \
         cd subsystems/{NQN}/namespaces/1; echo -n /dev/ram0 >device_path; echo 1 >enable; cd {FOLDER}; mkdir ports/1; \
         cd ports/1; echo rdma >addr_trtype; echo ipv4 >addr_adrfam; echo {address} >addr_traddr; echo 4420 >addr_trsvcid; \
         ln -s {FOLDER}/subsystems/{NQN} subsystems/{NQN}",
        kib = SIZE >> 10,
        mib = SIZE >> 20
    );
    server.expect(&command, LIMIT, &[]).map(drop)
}

/// Ends the kernel's target.
///
/// # Errors
/// In words, why not.
pub fn end_kernel(server: &Guest) -> Result<(), String> {
    let command = format!(
        "set -e; cd {FOLDER}; rm ports/1/subsystems/{NQN}; rmdir ports/1 subsystems/{NQN}/namespaces/1 subsystems/{NQN}"
    );
    server.expect(&command, LIMIT, &[]).map(drop)
}

/// Connects the disk, runs fio on it, and disconnects it. `words` are kind, bytes and depth.
///
/// # Errors
/// The reason of a failure.
pub fn measure(client: &Guest, address: &str, words: &str) -> Result<Sample, String> {
    let connect = format!(
        "set -e; modprobe nvme-rdma; nvme connect -t rdma -a {address} -s 4420 -n {NQN} -i 1 {HOST}; \
         until [ -b /dev/nvme0n1 ]; do sleep 0.05; done"
    );
    client.expect(&connect, LIMIT, &[])?;
    let options = fio::options(words)?.join(" ");
    // Warnings are not to be in the JSON.
    let fio = format!("fio {options} --ioengine=libaio --ramp_time=1 --runtime=2 --filename=/dev/nvme0n1 2>/dev/null");
    let done = client.expect(&fio, LIMIT, &[]);
    client.expect(&format!("nvme disconnect -n {NQN}"), LIMIT, &["disconnected 1 controller"])?;
    let sample = fio::sample(&done?.text)?;
    // With several outstanding the rate is the figure.
    Ok(if fio::depth(words) == Some(1) { sample } else { Sample { latency: None, ..sample } })
}

//! The kernel's NVMe over RDMA host in the guest: its disk is a namespace of the target.

use crate::Check;
use crate::bed::{BedConfig, TestBed, needs};
use crate::env::TestEnv;
use crate::station::{Port, StationKey};
use crate::suite::{AnyGroup, Fixture, Group};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
/// A disk in memory, one in a file, and one for another host.
const MEMORY: &str = "nqn.2026-01.org.example:memory";
const FILE: &str = "nqn.2026-01.org.example:file";
const OTHERS: &str = "nqn.2026-01.org.example:others";
const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:2cd2c43b-a90a-45c1-a8cd-86b33ab273b5";
/// Size of a disk in MiB.
const SIZE: u64 = 32;
/// Time of each nightly run of fio in seconds: five of them are half an hour.
const SOAK: u64 = 360;
/// Connects and disconnects of the nightly run.
const RECONNECTS: u32 = 50;

fn config(file: &Path) -> String {
    let disk = |nqn: &str, keys: &str, storage: &str| {
        format!(
            "[[service.nvmf.subsystem]]\nnqn = \"{nqn}\"\n{keys}\n[[service.nvmf.subsystem.namespace]]\n{storage}\n"
        )
    };
    let ram = format!("ram = \"{SIZE}M\"");
    let text = "[service.nvmf]\nstaging = \"16M\"\n".to_owned();
    text + &disk(MEMORY, "serial = \"RXE0001\"\nmodel = \"test disk\"", &ram)
        + &disk(FILE, "", &format!("file = \"{}\"\nblock-size = 512", file.display()))
        + &disk(OTHERS, "hosts = [\"nqn.2026-01.org.example:other-host\"]", &ram)
}

/// `nvme connect`, which returns when the disk is there.
fn connect(nqn: &str, options: &str) -> String {
    format!("nvme connect -t rdma -a IPV4 -s 4420 -n {nqn} {options} && until [ -b /dev/nvme0n1 ]; do sleep 0.05; done")
}

struct Host {
    bed: TestBed,
    /// The file of the second disk.
    file: PathBuf,
}

impl Fixture for Host {
    fn context(&self) -> String {
        self.bed.context()
    }
}

impl Host {
    fn start(env: &Arc<TestEnv>, key: StationKey) -> Result<Host, String> {
        let (path, file) = (env.path("nvmf.toml"), env.path("nvmf.img"));
        let write = |path: &Path, text: String| std::fs::write(path, text);
        write(&path, config(&file)).map_err(|error| format!("{}: {error}", path.display()))?;
        let made = File::create(&file).and_then(|made| made.set_len(SIZE << 20));
        made.map_err(|error| format!("{}: {error}", file.display()))?;
        let arguments = ["--config".to_owned(), path.display().to_string()];
        // The queues of a controller are on both.
        let config = BedConfig { lcores: "0,1", ..BedConfig::new(key.port, key.mtu) };
        let bed = TestBed::start(env, config.arguments(&arguments))?;
        let identity = format!(
            "modprobe nvme-rdma; modprobe ext4; mkdir -p /mnt /etc/nvme; echo {HOST} >/etc/nvme/hostnqn; \
             echo {} >/etc/nvme/hostid",
            &HOST[HOST.len() - 36..]
        );
        bed.guest().expect(&identity, LIMIT, &[])?;
        Ok(Host { bed, file })
    }

    fn run(&self, command: &str, texts: &[&str]) -> Check {
        let command = self.bed.fill(command)?;
        self.bed.guest().expect(&command, LIMIT, texts).map(drop)
    }

    /// Compares the file of the second disk with the output of `md5sum` in the guest.
    fn check_file(&self, sum: &str) -> Check {
        let done = rxe_testkit::process::run(Command::new("md5sum").arg(&self.file), LIMIT)?;
        match (sum.split_whitespace().next(), done.stdout.split_whitespace().next()) {
            (Some(guests), Some(ours)) if guests == ours => Ok(()),
            (guests, ours) => Err(format!("the file has {ours:?}, the guest wrote {guests:?}")),
        }
    }
}

/// The target is killed and started again while the guest writes: the kernel repeats what was not answered.
fn restart_under_load(host: &mut Host) -> Check {
    let guest = host.bed.guest();
    guest.expect(&host.bed.fill(&connect(FILE, "-i 2 --reconnect-delay=1 --keep-alive-tmo=2"))?, LIMIT, &[])?;
    guest.expect(&format!("dd if=/dev/urandom of=/tmp/data bs=1M count={SIZE} 2>/dev/null"), LIMIT, &[])?;
    // Slow enough to be interrupted in the middle.
    let command = format!(
        "for i in $(seq 0 {}); do dd if=/tmp/data of=/dev/nvme0n1 bs=1M count=1 skip=$i seek=$i oflag=direct conv=notrunc \
         2>&1 || exit 1; sleep 0.05; done; sync",
        SIZE - 1
    );
    let job = guest.start(&command, LIMIT)?;
    job.wait_for("records out", LIMIT)?;
    host.bed.kill_target()?;
    host.bed.restart_target()?;
    job.wait()?.expect(0, &[])?;
    let guest = host.bed.guest();
    guest.expect("echo 3 >/proc/sys/vm/drop_caches; cmp /tmp/data /dev/nvme0n1", LIMIT, &[])?;
    let sum = guest.expect("md5sum </tmp/data; rm /tmp/data", LIMIT, &[])?.text;
    guest.expect(&format!("nvme disconnect -n {FILE}"), LIMIT, &["disconnected 1 controller"])?;
    host.check_file(&sum)
}

/// fio, which writes and reads blocks of these sizes of a disk and verifies them, with more options.
fn fio(disk: u32, sizes: &str, options: &str) -> String {
    format!(
        "fio --name=v --filename=/dev/nvme{disk}n1 --rw=randrw --bsrange={sizes} --iodepth=32 --ioengine=libaio --direct=1 \
         --verify=crc32c --size={SIZE}M {options} --minimal >/tmp/fio{disk} || {{ cat /tmp/fio{disk}; exit 1; }}"
    )
}

/// fio for a time, in which it writes blocks more than once.
fn fio_for(seconds: u64, sizes: &str) -> String {
    fio(0, sizes, &format!("--serialize_overlap=1 --time_based --runtime={seconds}"))
}

/// fio that writes as much as the disk has.
fn fio_once(disk: u32, sizes: &str) -> String {
    fio(disk, sizes, &format!("--io_size={SIZE}M"))
}

/// The target is killed and started again under fio, which sees no error and the bytes that it wrote.
fn restart_under_fio(host: &mut Host) -> Check {
    let guest = host.bed.guest();
    guest.expect(&host.bed.fill(&connect(FILE, "-i 4 --reconnect-delay=1 --keep-alive-tmo=2"))?, LIMIT, &[])?;
    let job = guest.start(&fio_for(30, "512-1M"), LIMIT * 2)?;
    // The kernel counts the commands of the path, not of the disk.
    let writes = "until set -- $(cat /sys/block/nvme0c*n1/stat) && [ ${5:-0} -gt 20 ]; do sleep 0.1; done";
    guest.expect(writes, LIMIT, &[])?;
    host.bed.kill_target()?;
    host.bed.restart_target()?;
    job.wait()?.expect(0, &[])?;
    host.run(&format!("nvme disconnect -n {FILE}"), &["disconnected 1 controller"])
}

/// fio writes and reads blocks of these sizes, and verifies them, for [`SOAK`] seconds, while the target loses frames in these
/// directions.
fn soak(host: &mut Host, queues: u32, sizes: &str, losses: &[&str]) -> Check {
    let limit = Duration::from_secs(SOAK) + LIMIT;
    host.run(&connect(FILE, &format!("-i {queues}")), &[])?;
    let lose = |way: &&str| format!("fault add drop --direction {way} --probability 0.005 --seed 5");
    for fault in losses.iter().map(lose) {
        host.bed.target()?.ctl(&fault)?;
    }
    let done = host.bed.guest().expect(&fio_for(SOAK, sizes), limit, &[]);
    if !losses.is_empty() {
        host.bed.target()?.ctl("fault clear")?;
    }
    done?;
    host.run(&format!("nvme disconnect -n {FILE}"), &["disconnected 1 controller"])
}

/// The same with losses in both directions. A requester of rdma_rxe that repeats a registration stops, so the driver registers
/// nothing, which it can do without for blocks of one page.
fn soak_without_registration(host: &mut Host) -> Check {
    let load = |options: &str| format!("rmmod nvme_rdma && modprobe nvme-rdma {options}");
    host.run(&load("register_always=N"), &[])?;
    soak(host, 4, "512-4k", &["tx", "rx"])?;
    host.run(&load(""), &[])
}

/// A host connects and disconnects many times, and finds its bytes each time.
fn reconnect(host: &mut Host) -> Check {
    let limit = LIMIT * 4;
    let connect = host.bed.fill(&connect(FILE, "-i 4"))?;
    let script = format!(
        "set -e; for i in $(seq {RECONNECTS}); do {connect}; [ $i = 1 ] || cmp -n 4096 /tmp/block /dev/nvme0n1; \
         dd if=/dev/urandom of=/tmp/block bs=4096 count=1 2>/dev/null; \
         dd if=/tmp/block of=/dev/nvme0n1 bs=4096 oflag=direct 2>/dev/null; nvme disconnect -n {FILE} >/dev/null; done; rm /tmp/block"
    );
    host.bed.guest().expect(&script, limit, &[]).map(drop)
}

/// Two hosts, by two names, write two disks at the same time.
fn two_hosts(host: &mut Host) -> Check {
    let second = "nqn.2026-01.org.example:second-host";
    let options = format!("--hostnqn={second} --hostid=9b3e2f60-7d0c-4f3a-8a52-0c1d5e7f9a11");
    host.run(&format!("nvme connect -t rdma -a IPV4 -s 4420 -n {MEMORY} -i 2"), &[])?;
    host.run(&format!("nvme connect -t rdma -a IPV4 -s 4420 -n {FILE} -i 2 {options}"), &[])?;
    host.run(
        &format!(
            "set -e; until [ -b /dev/nvme0n1 ] && [ -b /dev/nvme1n1 ]; do sleep 0.05; done; \
             {{ {}; }} & one=$!; {{ {}; }} & two=$!; wait $one; wait $two",
            fio_once(0, "4k-1M"),
            fio_once(1, "4k-1M")
        ),
        &[],
    )?;
    host.run(&format!("nvme disconnect -n {MEMORY} && nvme disconnect -n {FILE}"), &["disconnected 1 controller"])
}

/// The target is killed after an fsync: the file has every byte.
fn killed_after_fsync(host: &mut Host) -> Check {
    host.run(&connect(FILE, "-i 1 --reconnect-delay=1 --keep-alive-tmo=2"), &[])?;
    let script = format!(
        "set -e; dd if=/dev/urandom of=/tmp/data bs=1M count={SIZE} 2>/dev/null; \
         dd if=/tmp/data of=/dev/nvme0n1 bs=1M conv=notrunc,fsync 2>/dev/null; md5sum </tmp/data; rm /tmp/data"
    );
    let sum = host.bed.guest().expect(&script, LIMIT, &[])?.text;
    host.bed.kill_target()?;
    let checked = host.check_file(&sum);
    host.bed.restart_target()?;
    host.run(&format!("nvme disconnect -n {FILE}"), &["disconnected 1 controller"])?;
    checked
}

/// The group `nvmf`.
pub fn group() -> AnyGroup {
    // A guest of its own, as other groups have to run beside its long cases.
    let key = StationKey::new(Port::AfPacket, 1496);
    let mut group = Group::new("nvmf", needs(key), move |env| Host::start(env, key));
    group.stop_at_failure();
    let mut case = |name: &str, command: String, texts: &'static [&'static str]| {
        group.case(name, move |host: &mut Host| host.run(&command, texts));
    };
    case(
        "discover",
        "nvme discover -t rdma -a IPV4 -s 8009".to_owned(),
        &["subnqn:  nqn.2026-01.org.example:memory", "subnqn:  nqn.2026-01.org.example:file", "trsvcid: 4420"],
    );
    case("connect", connect(MEMORY, "-i 1"), &[]);
    case("identify", "nvme id-ctrl /dev/nvme0".to_owned(), &["RXE0001", "test disk"]);
    case("identify the namespace", "nvme id-ns /dev/nvme0n1".to_owned(), &["nsze    : 0x2000"]);
    case("subsystems", "nvme list-subsys".to_owned(), &["NQN=nqn.2026-01.org.example:memory", "rdma traddr=", "live"]);
    case("health", "nvme smart-log /dev/nvme0".to_owned(), &["critical_warning", "Data Units Read"]);
    case("errors", "nvme error-log /dev/nvme0 -e 4".to_owned(), &["Error Log Entries"]);
    case(
        "every block is written and read",
        format!(
            "set -e; dd if=/dev/urandom of=/tmp/data bs=1M count={SIZE} 2>/dev/null; \
             dd if=/tmp/data of=/dev/nvme0n1 bs=1M oflag=direct conv=fsync 2>/dev/null; echo 3 >/proc/sys/vm/drop_caches; \
             cmp /tmp/data /dev/nvme0n1; rm /tmp/data"
        ),
        &[],
    );
    case(
        "a file system",
        "set -e; mkfs.ext4 -q -F /dev/nvme0n1; mount -t ext4 /dev/nvme0n1 /mnt; cp -r /usr/bin/rping /lib/modules /mnt; \
         umount /mnt; fsck.ext4 -fn /dev/nvme0n1; mount -t ext4 /dev/nvme0n1 /mnt; cmp /usr/bin/rping /mnt/rping; umount /mnt"
            .to_owned(),
        &[],
    );
    case("compare", "set -e; dd if=/dev/nvme0n1 of=/tmp/block bs=4096 count=1 2>/dev/null; \
         nvme compare /dev/nvme0n1 -s 0 -c 0 -z 4096 -d /tmp/block; echo x | dd of=/tmp/block conv=notrunc 2>/dev/null; \
         ! nvme compare /dev/nvme0n1 -s 0 -c 0 -z 4096 -d /tmp/block".to_owned(), &["compare: Success"]);
    case("disconnect", format!("nvme disconnect -n {MEMORY}"), &["disconnected 1 controller"]);
    case(
        "random writes on four queues, verified",
        format!("set -e; {}; {}; nvme disconnect -n {FILE}", connect(FILE, "-i 4"), fio_once(0, "512-128k")),
        &["disconnected 1 controller"],
    );
    group.case("a host that is not allowed", |host: &mut Host| {
        host.run(&format!("! nvme connect -t rdma -a IPV4 -s 4420 -n {OTHERS}"), &[])?;
        let line = format!("Connect refused: host {HOST} is not allowed to use {OTHERS}");
        if host.bed.log().iter().any(|logged| logged.contains(&line)) {
            Ok(())
        } else {
            Err(format!("the log has no line with {line:?}"))
        }
    });
    group.case("the target is killed and started again under writes", restart_under_load);
    group.nightly(true);
    for queues in [1, 4] {
        for (name, losses) in [("", &[][..]), (" while 0.5 % of the target's frames are lost", &["tx"])] {
            let plural = if queues == 1 { "" } else { "s" };
            group.case(format!("fio verifies on {queues} queue{plural}{name}"), move |host: &mut Host| {
                soak(host, queues, "512-1M", losses)
            });
        }
    }
    group
        .case("fio verifies while 0.5 % are lost in both directions, without registrations", soak_without_registration);
    group.case("the target is killed and started again under fio", restart_under_fio);
    group.case("connected and disconnected many times", reconnect);
    group.case("two hosts on two disks", two_hosts);
    group.case("the target is killed after an fsync", killed_after_fsync);
    group.nightly(false);
    group.case("nothing is left", |host: &mut Host| {
        let summary = host.bed.stop_target()?;
        if summary.contains("mbufs_leaked=0") { Ok(()) } else { Err(format!("buffers leaked\n{summary}")) }
    });
    group.build()
}

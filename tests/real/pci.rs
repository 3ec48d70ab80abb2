//! A PCI network card under vfio: the target in a guest owns an emulated Intel 82574L (behind an emulated IOMMU), which
//! a wire inside QEMU connects to the guest's other card, and the kernel's clients reach it from there. (vfio's no-IOMMU
//! mode cannot be tested: Debian's kernel is built without it.)

use crate::guest::{GuestConfig, Plug};
use crate::report::Report;
use crate::target::{GUEST_V4, GUEST_V6, TARGET_V4, TARGET_V6, archive};
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
/// Gives the card to vfio and prints its PCI address.
const BIND: &str = "set -e; modprobe vfio_iommu_type1; modprobe vfio-pci; cd /sys/bus/pci/devices; \
    for card in *; do [ $(cat $card/device) = 0x10d3 ] && break; done; \
    echo vfio-pci > $card/driver_override; echo $card > /sys/bus/pci/drivers_probe; \
    [ $(basename $(readlink $card/driver)) = vfio-pci ]; echo $card";

/// The group `pci`.
pub fn run(report: &mut Report, world: &World) {
    if !report.group("pci") {
        return;
    }
    let boot = || {
        world.boot(GuestConfig {
            name: "pci".to_owned(),
            plug: Plug::SecondCard,
            parameters: format!("ip4={GUEST_V4}/24 ip6={GUEST_V6}/64 intel_iommu=on"),
            extra_initrd: Some(archive(world)?),
            memory: 1536,
            cpus: 2,
        })
    };
    let Some(guest) = report.fixture("boot a guest with a PCI card and rxe-target in it", boot) else { return };
    let context = || format!("console: {}", guest.console());
    let start = || {
        guest.expect("/root/rxe-dpdk/conf/host-setup hugepages 512", LIMIT, &[])?;
        let card = guest.expect(BIND, LIMIT, &[])?.text;
        let command = format!(
            "exec rxe-target -l 1 -a {} -- --address {TARGET_V4}/24 --address {TARGET_V6}/64 --region demo=1M",
            card.trim()
        );
        let target = guest.start(&command, Duration::from_secs(600))?;
        target.wait_for("ready ", LIMIT)?;
        Ok(target)
    };
    let Some(target) = report.fixture("rxe-target on the card", start) else {
        println!("    {}", context());
        return;
    };
    let context = || format!("target: {}\nconsole: {}", target.so_far(), guest.console());
    for command in [
        format!("ping -c 3 -W 10 {TARGET_V4}"),
        format!("ping -c 3 -W 10 {TARGET_V6}"),
        format!("rping -c -a {TARGET_V4} -C 20 -S 4096 -v -V | grep -c '^ping data: rdma-ping-' | grep -x 20"),
        format!("rping -c -a {TARGET_V6} -C 5 -S 65535 -v -V | grep -c '^ping data: rdma-ping-' | grep -x 5"),
        format!("region_client -r demo {TARGET_V4} pattern 0 1048576 7"),
    ] {
        report.case(&command, context, || guest.expect(&command, LIMIT, &[]).map(drop));
    }
    let context = || format!("console: {}", guest.console());
    report.case("SIGTERM ends the target", context, || {
        target.kill(15)?;
        target.wait()?.expect(0, &[]).map(drop)
    });
}

//! A PCI network card under vfio: the target in a guest owns an emulated Intel 82574L (behind an emulated IOMMU), which
//! a wire inside QEMU connects to the guest's other card, and the kernel's clients reach it from there. (vfio's no-IOMMU
//! mode cannot be tested: Debian's kernel is built without it.)

use crate::env::TestEnv;
use crate::guest::{Guest, GuestConfig, Job, Plug};
use crate::station::{GUEST_V4, GUEST_V6, TARGET_V4, TARGET_V6};
use crate::suite::{AnyGroup, Fixture, Group, Needs};
use crate::target::archive;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);
/// Gives the card to vfio and prints its PCI address.
const BIND: &str = "set -e; modprobe vfio_iommu_type1; modprobe vfio-pci; cd /sys/bus/pci/devices; \
    for card in *; do [ $(cat $card/device) = 0x10d3 ] && break; done; \
    echo vfio-pci > $card/driver_override; echo $card > /sys/bus/pci/drivers_probe; \
    [ $(basename $(readlink $card/driver)) = vfio-pci ]; echo $card";

/// A guest with a target on its PCI card.
struct WithCard {
    guest: Guest,
    target: Option<Job>,
}

impl Fixture for WithCard {
    fn context(&self) -> String {
        let target = self.target.as_ref().map(Job::so_far).unwrap_or_default();
        format!("target: {target}\nconsole: {}", self.guest.console())
    }
}

impl WithCard {
    fn boot(env: &TestEnv) -> Result<WithCard, String> {
        let guest = env.boot(GuestConfig {
            name: "pci".to_owned(),
            plug: Plug::SecondCard,
            parameters: format!("ip4={GUEST_V4}/24 ip6={GUEST_V6}/64 intel_iommu=on"),
            extra_initrd: Some(archive(env)?),
            memory: 1536,
            cpus: 2,
        })?;
        let target = WithCard::start(&guest).map_err(|e| format!("{e}\nconsole: {}", guest.console()))?;
        Ok(WithCard { guest, target: Some(target) })
    }

    fn start(guest: &Guest) -> Result<Job, String> {
        guest.expect("/root/rxe-dpdk/conf/host-setup hugepages 512", LIMIT, &[])?;
        let card = guest.expect(BIND, LIMIT, &[])?.text;
        let command = format!(
            "exec rxe-target -l 1 -a {} -- --address {TARGET_V4}/24 --address {TARGET_V6}/64 --region demo=1M",
            card.trim()
        );
        let target = guest.start(&command, Duration::from_secs(600))?;
        target.wait_for("ready ", LIMIT)?;
        Ok(target)
    }
}

/// The group `pci`.
pub fn group() -> AnyGroup {
    let mut group = Group::new("pci", Needs::default(), |env| WithCard::boot(env));
    for command in [
        format!("ping -c 2 -W 10 {TARGET_V4}"),
        format!("ping -c 2 -W 10 {TARGET_V6}"),
        format!("rping -c -a {TARGET_V4} -C 20 -S 4096 -v -V | grep -c '^ping data: rdma-ping-' | grep -x 20"),
        format!("rping -c -a {TARGET_V6} -C 5 -S 65535 -v -V | grep -c '^ping data: rdma-ping-' | grep -x 5"),
        format!("region_client -r demo {TARGET_V4} pattern 0 1048576 7"),
    ] {
        group.case(command.clone(), move |with: &mut WithCard| with.guest.expect(&command, LIMIT, &[]).map(drop));
    }
    group.case("SIGTERM ends the target", |with| {
        let target = with.target.take().ok_or("the target does not run")?;
        target.kill(15)?;
        target.wait()?.expect(0, &[]).map(drop)
    });
    group.build()
}

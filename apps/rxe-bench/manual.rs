//! The manual page.

use rxe::manual_pages::Sections;

/// What the page has besides the command line.
pub const SECTIONS: Sections = Sections {
    examples: &[
        (
            "The rate of WRITEs of 64 bytes, from the interface veth0:",
            "rxe-bench -l 1 --no-huge --no-shconf -m 512 --no-pci --vdev=net_af_packet0,iface=veth0 -- \\\n    \
             write-bw --address 10.77.0.2/24 --peer 10.77.0.1 -s 64",
        ),
        (
            "The latency of READs, over a vhost-user socket:",
            "rxe-bench -l 1 --no-pci --vdev=net_virtio_user0,path=/tmp/vhost.sock,queue_size=1024 -- \\\n    \
             read-lat --address 10.0.0.2/24 --peer 10.0.0.1",
        ),
        (
            "Random reads of 4 KiB from a disk of NVMe over Fabrics, 64 at a time, over UDP:",
            "rxe-bench nvme --udp 10.77.0.2 --peer 10.77.0.1 --nqn nqn.2026-01.org.example:disk \\\n    \
             -w randread -o 4K -q 64 -t 10",
        ),
    ],
    files: &[],
    see_also: &[("rxe-target", 1), ("rxe-ctl", 1)],
};

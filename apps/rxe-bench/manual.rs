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
    ],
    files: &[],
    see_also: &[("rxe-target", 1), ("rxe-ctl", 1)],
};

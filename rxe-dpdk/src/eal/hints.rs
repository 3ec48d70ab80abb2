//! Explanations of common mistakes in EAL's arguments, whose own messages name the place in DPDK's code and not the remedy.

use super::args::{EalArgs, Vdev};

/// A driver of virtual devices.
struct Driver {
    /// Its devices are called `net_KINDn`.
    kind: &'static str,
    /// A key without which no device starts, with a value to show.
    needs: Option<(&'static str, &'static str)>,
    keys: &'static [&'static str],
}

/// The drivers that make ports, as in docs/choosing-a-port.md; keys of DPDK 22.11 and 24.11.
const DRIVERS: [Driver; 7] = [
    Driver {
        kind: "af_packet",
        needs: Some(("iface", "veth1")),
        keys: &["iface", "qpairs", "blocksz", "framesz", "framecnt", "qdisc_bypass", "fanout_mode"],
    },
    Driver {
        kind: "vhost",
        needs: Some(("iface", "/tmp/vhost.sock")),
        keys: &[
            "iface",
            "queues",
            "client",
            "iommu-support",
            "postcopy-support",
            "tso",
            "linear-buffer",
            "ext-buffer",
            "legacy-ol-flags",
        ],
    },
    Driver {
        kind: "virtio_user",
        needs: Some(("path", "/tmp/vhost.sock")),
        keys: &[
            "path",
            "mac",
            "queues",
            "queue_size",
            "cq",
            "iface",
            "server",
            "mrg_rxbuf",
            "in_order",
            "packed_vq",
            "speed",
            "vectorized",
        ],
    },
    Driver {
        kind: "memif",
        needs: None,
        keys: &[
            "id",
            "role",
            "bsize",
            "rsize",
            "socket",
            "socket-abstract",
            "owner-uid",
            "owner-gid",
            "mac",
            "secret",
            "zero-copy",
        ],
    },
    Driver { kind: "tap", needs: None, keys: &["iface", "remote", "mac", "persist"] },
    Driver {
        kind: "af_xdp",
        needs: Some(("iface", "veth1")),
        keys: &[
            "iface",
            "start_queue",
            "queue_count",
            "shared_umem",
            "xdp_prog",
            "busy_budget",
            "force_copy",
            "use_cni",
            "use_pinned_map",
            "dp_path",
        ],
    },
    Driver { kind: "null", needs: None, keys: &["size", "copy", "no-rx"] },
];

/// Arguments that cannot work, whatever the machine.
pub(super) fn impossible(args: &EalArgs<'_>) -> Option<String> {
    if let Some(kind) = args.values("--proc-type").into_iter().find(|kind| *kind != "primary") {
        return Some(format!(
            "--proc-type={kind} is for programs that attach to another DPDK process, and this one is a process of its own: leave \
             it out"
        ));
    }
    if args.has("--no-huge") && args.has("--in-memory") {
        return Some("--no-huge and --in-memory exclude each other: leave --in-memory out".to_owned());
    }
    // net_tap starts without all of its arguments when one of them is unknown.
    args.vdevs().iter().filter(|vdev| vdev.is("tap")).find_map(|vdev| {
        let problem = of_device(vdev, "")?;
        Some(format!("the device {} cannot start as you want it: {problem}", vdev.name))
    })
}

/// Why a device that the user named did not start, if that can be told from its arguments and EAL's messages.
pub(super) fn of_device(vdev: &Vdev, messages: &str) -> Option<String> {
    let Vdev { name, args } = vdev;
    if messages.contains("Could not open AF_PACKET socket") {
        return Some(
            "it needs the right CAP_NET_RAW: run this as root, or give the process that capability (--cap-add NET_RAW, \
             AmbientCapabilities=CAP_NET_RAW)"
                .to_owned(),
        );
    }
    let driver = DRIVERS.iter().find(|driver| vdev.is(driver.kind))?;
    if let Some((key, value)) = driver.needs
        && !args.contains_key(key)
    {
        let unknown = unknown_key(driver, vdev).map(|key| format!("; it has no key '{key}'")).unwrap_or_default();
        return Some(format!("it needs the key {key}, as --vdev={name},{key}={value}{unknown}"));
    }
    let key = unknown_key(driver, vdev)?;
    Some(format!("it has no key '{key}': its keys are {}", driver.keys.join(", ")))
}

/// The first key, by name, that the driver does not have.
fn unknown_key<'v>(driver: &Driver, vdev: &'v Vdev) -> Option<&'v str> {
    let unknown = vdev.args.keys().map(String::as_str).filter(|key| !driver.keys.contains(key));
    unknown.min()
}

/// The device that no driver made, from EAL's messages.
pub(super) fn of_unknown_device(messages: &str) -> Option<String> {
    let (_, rest) = messages.split_once("failed to parse device \"")?;
    let (name, _) = rest.split_once('"')?;
    let names: Vec<String> = DRIVERS.iter().map(|driver| format!("net_{}0", driver.kind)).collect();
    Some(format!(
        "there is no driver for the device {name}: its name begins with that of a driver, as {}",
        names.join(", ")
    ))
}

/// What to do about a PCI device that did not start.
pub(super) fn of_pci_device(args: &EalArgs<'_>) -> &'static str {
    if args.has("-a") || args.has("--allow") {
        ""
    } else {
        "; if no PCI device of this machine is to be used, add --no-pci in front of `--`"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn device(text: &str) -> Option<String> {
        let args = words(&format!("--vdev={text}"));
        of_device(&EalArgs::new(&args).vdevs()[0], "")
    }

    #[test]
    fn impossible_arguments_are_explained() {
        let said = |text: &str| impossible(&EalArgs::new(&words(text)));
        assert_eq!(said("-l 0 --proc-type=primary --no-huge -m 64"), None);
        assert_eq!(
            said("--proc-type=secondary").as_deref(),
            Some(
                "--proc-type=secondary is for programs that attach to another DPDK process, and this one is a process of its own: \
                 leave it out"
            )
        );
        assert!(said("--proc-type auto").is_some_and(|text| text.starts_with("--proc-type=auto ")));
        assert_eq!(
            said("--no-huge --in-memory").as_deref(),
            Some("--no-huge and --in-memory exclude each other: leave --in-memory out")
        );
        assert_eq!(said("--vdev=net_tap0,iface=x,mac=fixed"), None);
        assert_eq!(
            said("--vdev=net_tap0,ifcae=x").as_deref(),
            Some(
                "the device net_tap0 cannot start as you want it: it has no key 'ifcae': its keys are iface, remote, mac, persist"
            )
        );
    }

    #[test]
    fn keys_that_are_missing_or_unknown_are_named() {
        assert_eq!(
            device("net_af_packet0").as_deref(),
            Some("it needs the key iface, as --vdev=net_af_packet0,iface=veth1")
        );
        assert_eq!(
            device("net_af_packet0,ifce=veth1").as_deref(),
            Some("it needs the key iface, as --vdev=net_af_packet0,iface=veth1; it has no key 'ifce'")
        );
        assert_eq!(
            device("net_memif0,role=server,size=3").as_deref(),
            Some(
                "it has no key 'size': its keys are id, role, bsize, rsize, socket, socket-abstract, owner-uid, owner-gid, mac, \
                 secret, zero-copy"
            )
        );
        assert!(device("virtio_user0").is_some_and(|text| text.starts_with("it needs the key path, ")));
        assert_eq!(device("net_vhost0,iface=/tmp/x,queues=2"), None);
        assert_eq!(device("net_other0,x=1"), None);
    }

    #[test]
    fn other_mistakes_are_explained() {
        let said = of_unknown_device("EAL: failed to parse device \"net_nosuch0\"\nEAL: Unable to parse device");
        assert!(said.is_some_and(|text| text.starts_with("there is no driver for the device net_nosuch0: ")));
        assert_eq!(of_unknown_device("EAL: something else"), None);
        let args = words("--vdev=net_af_packet0,iface=veth1");
        let vdev = &EalArgs::new(&args).vdevs()[0];
        let raw = of_device(vdev, "open_packet_iface(): Could not open AF_PACKET socket");
        assert!(raw.is_some_and(|text| text.starts_with("it needs the right CAP_NET_RAW: ")));
        assert_eq!(of_device(vdev, "anything"), None);
        assert_eq!(
            of_pci_device(&EalArgs::new(&words("-l 0"))),
            "; if no PCI device of this machine is to be used, add --no-pci in front of `--`"
        );
        assert_eq!(of_pci_device(&EalArgs::new(&words("-a 00:03.0"))), "");
    }
}

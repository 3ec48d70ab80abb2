//! The device, its ports, and how many objects it has.

use std::fmt::Write;

use rxe_inspect::report::{AddressConflict, Device, LcoreResources, Port, Resources};

/// The output of `ibv_devices`.
pub fn devices(device: &Device) -> String {
    let guid = device.node_guid.replace(':', "");
    format!(
        "    device          \t   node GUID\n    ------          \t----------------\n    {:<16}\t{guid}\n",
        device.name
    )
}

/// The output of `ibv_devinfo`.
pub fn devinfo(device: &Device, verbose: bool) -> String {
    let mut text = format!("hca_id:\t{}\n", device.name);
    // Values start at the same tab stop for every key.
    let mut line = |depth: usize, key: &str, value: String| {
        let tabs = (32_usize.saturating_sub(key.len() + 1)).div_ceil(8).max(1);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{}{key}:{}{value}", "\t".repeat(depth), "\t".repeat(tabs));
    };
    line(1, "transport", "InfiniBand (0)".to_owned());
    line(1, "fw_ver", device.fw_ver.clone());
    line(1, "node_guid", device.node_guid.clone());
    line(1, "sys_image_guid", device.node_guid.clone());
    line(1, "vendor_id", "0xffffff".to_owned());
    line(1, "vendor_part_id", "0".to_owned());
    line(1, "hw_ver", "0x0".to_owned());
    if device.draining {
        line(1, "draining", "new clients are refused".to_owned());
    }
    line(1, "phys_port_cnt", device.ports.len().to_string());
    if verbose {
        let limits = &device.limits;
        for (key, value) in [
            ("max_qp", limits.max_qp),
            ("max_qp_wr", limits.max_qp_wr.into()),
            ("max_sge", limits.max_sge.into()),
            ("max_cq", limits.max_cq),
            ("max_cqe", limits.max_cqe.into()),
            ("max_mr", limits.max_mr),
            ("max_qp_rd_atom", limits.max_qp_rd_atom.into()),
            ("max_qp_init_rd_atom", limits.max_qp_init_rd_atom.into()),
            ("max_srq", limits.max_srq),
            ("max_srq_wr", limits.max_srq_wr.into()),
            ("max_ah", limits.max_ah),
            ("max_mcast_grp", limits.max_mcast_grp.into()),
            ("max_mcast_qp_attach", limits.max_mcast_qp_attach.into()),
            ("max_inline_data", limits.max_inline_data.into()),
        ] {
            line(1, key, value.to_string());
        }
        line(1, "atomic_cap", "ATOMIC_HCA (1)".to_owned());
        line(1, "flush", limits.flush.to_string());
        line(1, "atomic_write", limits.atomic_write.to_string());
    }
    for port in &device.ports {
        line(2, "port", port.port.to_string());
        let state = if port.up { "PORT_ACTIVE (4)" } else { "PORT_DOWN (1)" };
        line(3, "state", state.to_owned());
        line(3, "max_mtu", "4096 (5)".to_owned());
        line(3, "active_mtu", format!("{} ({})", port.active_mtu, mtu_code(port.active_mtu)));
        line(3, "sm_lid", "0".to_owned());
        line(3, "port_lid", "0".to_owned());
        line(3, "port_lmc", "0x00".to_owned());
        line(3, "link_layer", "Ethernet".to_owned());
        if verbose {
            if let Some(mbps) = port.speed_mbps {
                line(3, "active_speed", format!("{} Gbps", f64::from(mbps) / 1000.0));
            }
            for (index, address) in port.addresses.iter().enumerate() {
                line(3, &format!("GID[{index:3}]"), gid(address));
            }
        }
    }
    text
}

/// `enum ibv_mtu` of a path MTU.
fn mtu_code(bytes: u32) -> u32 {
    bytes.checked_ilog2().map_or(0, |log| log.saturating_sub(7))
}

/// An address as ibv_devinfo prints a GID: IPv4 as an IPv4-mapped IPv6 address.
fn gid(address: &str) -> String {
    match address.parse() {
        Ok(std::net::IpAddr::V4(ip)) => format!("::ffff:{ip}, RoCE v2"),
        _ => format!("{address}, RoCE v2"),
    }
}

/// The output of `rdma link`.
pub fn link(device: &Device, details: bool) -> String {
    let mut text = String::new();
    for port in &device.ports {
        let (state, physical) = if port.up { ("ACTIVE", "LINK_UP") } else { ("DOWN", "DISABLED") };
        let Port { port: number, netdev, .. } = port;
        let reason = port.reason.as_ref().map_or_else(String::new, |reason| format!(" ({reason})"));
        let name = &device.name;
        let _ = writeln!(text, "link {name}/{number} state {state} physical_state {physical} netdev {netdev}{reason}");
        for conflict in &port.conflicts {
            let AddressConflict { address, mac, frames } = conflict;
            let _ = writeln!(text, "    address_conflict {address} mac {mac} frames {frames}");
        }
        if details {
            let speed = port.speed_mbps.map_or_else(String::new, |mbps| format!(" speed {mbps}Mb/s"));
            let vlan = port.vlan.map_or_else(String::new, |vlan| format!(" vlan {vlan}"));
            let _ = writeln!(
                text,
                "    driver {} mac {}{vlan} mtu {} path_mtu {}{speed} mbufs {} of {}\n    addresses {}",
                port.driver,
                port.mac,
                port.mtu,
                port.active_mtu,
                port.mbufs_in_use,
                port.mbufs,
                port.addresses.join(" "),
            );
            let counters: Vec<String> = port.counters.iter().map(|c| format!("{} {}", c.name, c.value)).collect();
            let _ = writeln!(text, "    {}", counters.join(" "));
        }
    }
    text
}

/// The ports that are not ACTIVE, with the reasons.
pub fn down(device: &Device) -> String {
    let down = device.ports.iter().filter(|port| !port.up).map(|port| {
        format!("port {} is DOWN: {}", port.port, port.reason.as_deref().unwrap_or("the target knows no reason"))
    });
    down.collect::<Vec<_>>().join("; ")
}

/// The output of `rdma resource`.
pub fn resource(name: &str, lcores: &[LcoreResources], details: bool) -> String {
    let line = |resources: &Resources| {
        let counts: Vec<String> = resources.named().iter().map(|(name, count)| format!("{name} {count}")).collect();
        counts.join(" ")
    };
    let mut all = Resources::default();
    for LcoreResources { resources, .. } in lcores {
        all += *resources;
    }
    let mut text = format!("0: {name}: {}\n", line(&all));
    if details {
        for lcore in lcores {
            let _ = writeln!(text, "    lcore {}: {}", lcore.lcore, line(&lcore.resources));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devinfo_looks_like_ibv_devinfo() {
        let port = Port {
            port: 0,
            up: true,
            active_mtu: 1024,
            addresses: vec!["10.0.0.1".to_owned(), "fe80::1".to_owned()],
            ..Port::default()
        };
        let device = Device {
            name: "rxe_rte".to_owned(),
            node_guid: "5054:00ff:fe12:3456".to_owned(),
            fw_ver: "0.1.0".to_owned(),
            ports: vec![port],
            ..Device::default()
        };
        let text = devinfo(&device, false);
        assert!(
            text.starts_with("hca_id:\trxe_rte\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t0.1.0\n"),
            "{text}"
        );
        assert!(text.contains("\n\tnode_guid:\t\t\t5054:00ff:fe12:3456\n"), "{text}");
        assert!(text.contains("\n\t\t\tstate:\t\t\t\tPORT_ACTIVE (4)\n"), "{text}");
        assert!(text.contains("active_mtu:\t\t\t1024 (3)\n") && !text.contains("GID"), "{text}");
        let text = devinfo(&device, true);
        assert!(text.contains("GID[  0]:\t\t\t::ffff:10.0.0.1, RoCE v2\n"), "{text}");
        assert!(devices(&device).ends_with("\n    rxe_rte         \t505400fffe123456\n"));
        assert_eq!(link(&device, false), "link rxe_rte/0 state ACTIVE physical_state LINK_UP netdev \n");
        let mut device = device;
        device.ports[0].conflicts =
            vec![AddressConflict { address: "10.0.0.1".to_owned(), mac: "02:00:00:00:00:07".to_owned(), frames: 3 }];
        let text = link(&device, false);
        assert!(text.ends_with("netdev \n    address_conflict 10.0.0.1 mac 02:00:00:00:00:07 frames 3\n"), "{text}");
    }
}

//! The device as libibverbs' tools show it.

use rxe_testkit::pcapng;
use rxe_testkit::process::run;

use crate::Check;
use crate::case::Case;
use crate::client_output::Wants;
use crate::pair::{LIMIT, Pair};
use crate::place::{Place, expect_code, prints};

/// All cases.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("device/ibv_devices lists it", listed),
        prints("device/its name can be chosen", "--device rxe_b ibv_devices", 0, &["    rxe_b           \t"]),
        prints("device/rdma dev", "--device rxe_c rdma dev", 0, &["0: rxe_c: node_type ca node_guid 5058:7fff:"]),
        prints(
            "device/rdma link",
            "--device rxe_d rdma link show",
            0,
            &["link rxe_d/1 state ACTIVE physical_state LINK_UP netdev lo "],
        ),
        prints("device/rdma system", "rdma system show", 0, &["netns shared copy-on-fork on"]),
        prints(
            "device/rdma resource",
            "--device rxe_e rdma resource",
            0,
            &["rxe_e: pd 0 cq 0 qp 0 cm_id 0 mr 0 ctx 0 srq 0"],
        ),
        prints("device/rdma changes nothing", "--device rxe_f rdma dev set rxe_f name rxe_g", 1, &["not supported"]),
        Case::new("device/ibv_devinfo -v shows port and addresses", shown),
        Case::new("device/--capture records all packets", captured),
        Case::new("device/two processes without an address have different ones", automatic),
    ]
}

/// The GUID contains the address.
fn listed(place: &Place) -> Check {
    let address = place.address();
    let done = run(&mut place.program(address, "ibv_devices"), LIMIT)?;
    expect_code(&done, 0)?;
    let [a, b, c, d] = address.octets();
    let row = format!("    rxe0            \t5058{a:02x}fffe{b:02x}{c:02x}{d:02x}\n");
    if done.stdout.ends_with(&row) { Ok(()) } else { Err(format!("no {row:?}: {}", done.stdout)) }
}

fn shown(place: &Place) -> Check {
    let address = place.address();
    let done = run(&mut place.program(address, "ibv_devinfo -v"), LIMIT)?;
    expect_code(&done, 0)?;
    let gid = format!("GID[  1]:\t\t::ffff:{address}, RoCE v2");
    let texts = ["hca_id:\trxe0", "PORT_ACTIVE (4)", "active_mtu:\t\t4096 (5)", "link_layer:\t\tEthernet", &gid];
    match texts.iter().find(|text| !done.stdout.contains(**text)) {
        Some(missing) => Err(format!("no {missing:?}: {}", done.stdout)),
        None => Ok(()),
    }
}

fn captured(place: &Place) -> Check {
    let file = place.work().join("client.pcapng");
    let program = "ibv_rc_pingpong -g 1 -p PORT -n 10";
    let client = format!("--capture {} {program} SERVER", file.display());
    Pair::new(program, client, Wants::Messages { size: 4096, count: 10 }).run(place)?;
    let capture = pcapng::read(&file);
    let sent = capture.packets.iter().filter(|packet| packet.sent).count();
    let all = capture.packets.len();
    // Each of the ten messages has one packet each way at least, and the statistics are written at the end of the program.
    if sent >= 10 && all - sent >= 10 && capture.counted == Some((all as u64, 0)) {
        Ok(())
    } else {
        Err(format!("{sent} packets sent of {all}, counted {:?}", capture.counted))
    }
}

/// Both processes open the device, and keep it until they get a line or this shell has ended. Processes in other namespaces may have the
/// same addresses.
fn automatic(place: &Place) -> Check {
    let script = "
        exec 3<>first 4<>second
        opens=\"import pyverbs.device as d, sys; c = d.Context(name='rxe0'); sys.stdin.readline()\"
        $run /usr/bin/python3 -c \"$opens\" <first & first=$!
        $run /usr/bin/python3 -c \"$opens\" <second & second=$!
        until [ $($run --list | grep -cE \"^127.0.0.[12] .* ($first|$second) \") = 2 ]; do sleep 0.01; done
        $run --list
        echo >first; echo >second; wait; rm first second";
    let script = format!("umask 0 && mkfifo first second && {{ {script}; }}");
    let Some(done) = place.in_namespace(&script) else { return Ok(()) };
    let done = done?;
    expect_code(&done, 0)?;
    // The columns are as wide as the longest entry, and there may be other programs.
    let listed = |address: &str| done.stdout.lines().any(|line| line.starts_with(address));
    match ["127.0.0.1 ", "127.0.0.2 "].iter().find(|address| !listed(address)) {
        Some(missing) => Err(format!("no {missing:?}: {}{}", done.stdout, done.stderr)),
        None => Ok(()),
    }
}

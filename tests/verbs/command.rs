//! rxe-run itself.

use rxe_testkit::process::run;

use crate::Check;
use crate::case::Case;
use crate::pair::{LIMIT, until};
use crate::place::{Place, expect_code, prints, with_input};

/// All cases.
pub fn cases() -> Vec<Case> {
    vec![
        prints(
            "rxe-run/a program that is missing",
            "no-such-program -s",
            127,
            &["\"no-such-program\" is not found in PATH: "],
        ),
        prints(
            "rxe-run/a path that is missing",
            "/no/such/program",
            127,
            &["there is no /no/such/program: check the path"],
        ),
        prints("rxe-run/a file that is no program", "/etc/passwd", 126, &["/etc/passwd cannot be executed: "]),
        prints("rxe-run/the exit code is the program's", "sh -c exit${IFS}7", 7, &[]),
        prints(
            "rxe-run/a static program",
            "/bin/busybox true",
            0,
            &["warning: /bin/busybox is linked statically and does not load"],
        ),
        prints(
            "rxe-run/arguments that take the library away",
            "env LD_PRELOAD= true",
            0,
            &["warning: LD_PRELOAD= takes librxe_verbs.so from the program: set LD_PRELOAD for rxe-run"],
        ),
        prints("rxe-run/a device of another driver", "--device mlx5_0 true", 2, &["a name that begins with rxe"]),
        prints(
            "rxe-run/an address of no interface",
            "--address 192.0.2.1 ibv_devices",
            1,
            &["no interface of this machine has the address 192.0.2.1"],
        ),
        Case::new("rxe-run/libraries that are preloaded stay", preloaded),
        Case::new("rxe-run/programs without RDMA leave nothing", nothing_left),
        Case::new("rxe-run/--list shows who has a device, until it ends", listed),
        Case::new("rxe-run/an address whose owner does not answer names it", taken),
        Case::new("rxe-run/a program that only looks leaves the address to others", looks),
    ]
}

fn preloaded(place: &Place) -> Check {
    let library = "/usr/lib/x86_64-linux-gnu/librdmacm.so.1";
    let done = run(place.rxe_run("printenv LD_PRELOAD").env("LD_PRELOAD", library), LIMIT)?;
    expect_code(&done, 0)?;
    let expected =
        |text: &str| text.starts_with(&format!("{library}:")) && text.ends_with("/lib/rxe/librxe_verbs.so\n");
    if expected(&done.stdout) { Ok(()) } else { Err(done.stdout) }
}

fn nothing_left(place: &Place) -> Check {
    let runtime = place.work().join("runtime");
    let script = "mkdir runtime && cd runtime && ls /sys/class >/dev/null && cat /proc/self/maps";
    let mut command = place.rxe_run("--log debug sh -c");
    let done = run(command.arg(script).env("XDG_RUNTIME_DIR", &runtime), LIMIT)?;
    expect_code(&done, 0)?;
    if !done.stdout.contains("librxe_verbs.so") || !done.stderr.is_empty() {
        return Err(format!("the library is not loaded, or it has printed something: {}", done.stderr));
    }
    if runtime.join("rxe-run").exists() { Err(format!("{} has a folder", runtime.display())) } else { Ok(()) }
}

/// A program that has opened the device, and waits until its standard input ends.
pub const OPENER: &str =
    "import pyverbs.device as d, sys; c = d.Context(name='rxe0'); print('open', flush=True); sys.stdin.read()";

/// A shell that has looked at the device and waits for a line.
const HOLDER: &str = "echo /sys/class/infiniband/*; read line || :";

fn listed(place: &Place) -> Check {
    let address = place.address();
    let mut holder = with_input(place.program(address, "bash -c").arg(HOLDER))?;
    holder.wait_for_line("/sys/class/infiniband/rxe0", LIMIT)?;
    let rows = || {
        let done = run(&mut place.rxe_run("--list"), LIMIT)?;
        expect_code(&done, 0)?;
        Ok::<_, String>(
            done.stdout.lines().filter(|line| line.starts_with(&format!("{address} "))).collect::<Vec<_>>().join("\n"),
        )
    };
    let row = rows()?;
    if !row.contains(&format!(" {} ", holder.id())) || !row.ends_with(&format!("bash -c {HOLDER}")) {
        return Err(format!("the row is {row:?}"));
    }
    drop(holder.stdin());
    until(&mut holder, "disappear from the list", |_| rows().is_ok_and(|row| row.is_empty()))
}

fn taken(place: &Place) -> Check {
    let address = place.address();
    let owner = with_input(place.program(address, "/usr/bin/python3 -c").arg(OPENER))?;
    owner.wait_for_line("open", LIMIT)?;
    owner.signal("STOP")?;
    let done = run(&mut place.program(address, "ibv_devinfo"), LIMIT)?;
    let by = format!(
        "rxe-verbs: no RDMA device: UDP port 4791 of {address} is in use by `/usr/bin/python3 -c {OPENER}` (process {})",
        owner.id()
    );
    if done.stderr.contains(&by) { Ok(()) } else { Err(format!("no {by:?}: {}", done.stderr)) }
}

/// As hwloc in mpirun looks, whose children need the address.
fn looks(place: &Place) -> Check {
    let address = place.address();
    let mut holder = with_input(place.program(address, "bash -c").arg(HOLDER))?;
    holder.wait_for_line("/sys/class/infiniband/rxe0", LIMIT)?;
    expect_code(&run(&mut place.program(address, "ibv_devinfo"), LIMIT)?, 0)?;
    drop(holder.stdin());
    expect_code(&holder.finish(LIMIT)?, 0)
}

//! The guest alone: that commands run in it as the other groups rely on, and that the kernel's RoCE works in it.

use crate::guest::{GuestConfig, Plug};
use crate::net::Tap;
use crate::report::Report;
use crate::target::GUEST_V4;
use crate::world::World;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_secs(30);

/// The group `kernel`, with the world's suffix.
pub fn run(report: &mut Report, world: &World) {
    if !report.group(&format!("kernel{}", world.suffix)) {
        return;
    }
    let boot = || {
        let tap = Tap::new("rxk0", 1500)?;
        let guest = world.boot(GuestConfig {
            name: format!("kernel{}", world.suffix),
            plug: Plug::Tap(tap.name.clone()),
            parameters: format!("ip4={GUEST_V4}/24"),
            extra_initrd: None,
            memory: 512,
            cpus: 1,
        })?;
        Ok((guest, tap))
    };
    let Some((guest, _tap)) = report.fixture("boot", boot) else { return };
    let context = || format!("console: {}", guest.console());
    report.case("it is the kernel that was asked for", context, || {
        guest.expect("uname -r", SHORT, &[&world.image.release()?]).map(drop)
    });
    report.case("exit codes and output", context, || {
        guest.run("printf 'no newline'; printf err >&2; exit 7", SHORT)?.expect(7, &["no newlineerr"])?;
        guest.run("no-such-program", SHORT)?.expect(127, &[])?;
        let bytes = guest.expect("head -c 300000 /dev/zero | tr '\\0' x", SHORT, &[])?.text;
        if bytes.len() != 300_000 {
            return Err(format!("{} of 300000 bytes arrived", bytes.len()));
        }
        Ok(())
    });
    report.case("a command that hangs is killed, others run beside it", context, || {
        let hangs = guest.start("echo begun; sleep 1000", Duration::from_secs(2))?;
        hangs.wait_for("begun", SHORT)?;
        let began = Instant::now();
        guest.expect("echo beside", SHORT, &["beside\n"])?;
        if began.elapsed() > Duration::from_millis(1500) {
            return Err("a command had to wait for another one".to_owned());
        }
        hangs.wait()?.expect(124, &[])?;
        let killed = guest.start("sleep 1000", SHORT)?;
        killed.kill(9)?;
        killed.wait()?.expect(137, &[]).map(drop)
    });
    report.case("rping between two programs of the guest", context, || {
        let server = guest.start(&format!("exec rping -s -a {GUEST_V4} -P -S 4096"), SHORT)?;
        guest.expect("sleep 0.5; rdma link", SHORT, &["rxe0/1 state ACTIVE"])?;
        let command = format!("rping -c -a {GUEST_V4} -C 10 -S 4096 -v -V");
        guest.expect(&command, SHORT, &["rdma-ping-0: ", "rdma-ping-9: "])?;
        server.kill(9)?;
        server.wait().map(drop)
    });
}

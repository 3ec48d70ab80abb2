//! The guest alone: that commands run in it as the other groups rely on, and that the kernel's RoCE works in it.

use crate::bed::needs;
use crate::env::TestEnv;
use crate::guest::Guest;
use crate::station::{GUEST_V4, Kernel, Lease, Port, StationKey};
use crate::suite::{AnyGroup, Fixture, Group};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_secs(30);

struct Alone {
    env: Arc<TestEnv>,
    lease: Lease,
    kernel: Kernel,
}

impl Alone {
    fn guest(&self) -> &Guest {
        self.lease.guest()
    }
}

impl Fixture for Alone {
    fn context(&self) -> String {
        format!("console: {}", self.guest().console())
    }
}

/// The group `kernel`, with the kernel's suffix.
pub fn group(kernel: Kernel) -> AnyGroup {
    let key = StationKey { kernel, ..StationKey::new(Port::AfPacket, 1500) };
    let mut group = Group::new(format!("kernel{}", kernel.suffix()), needs(key), move |env| {
        Ok(Alone { env: Arc::clone(env), lease: env.station(key)?, kernel })
    });
    group.nightly(kernel != Kernel::Stable);
    group.case("it is the kernel that was asked for", |alone: &mut Alone| {
        let release = alone.env.image(alone.kernel)?.release()?;
        alone.guest().expect("uname -r", SHORT, &[&release]).map(drop)
    });
    group.case("exit codes and output", |alone| {
        let guest = alone.guest();
        guest.run("printf 'no newline'; printf err >&2; exit 7", SHORT)?.expect(7, &["no newlineerr"])?;
        guest.run("no-such-program", SHORT)?.expect(127, &[])?;
        let bytes = guest.expect("head -c 300000 /dev/zero | tr '\\0' x", SHORT, &[])?.text;
        if bytes.len() != 300_000 {
            return Err(format!("{} of 300000 bytes arrived", bytes.len()));
        }
        Ok(())
    });
    group.case("a command that hangs is killed, others run beside it", |alone| {
        let guest = alone.guest();
        let hangs = guest.start("echo begun; sleep 1000", Duration::from_secs(3))?;
        hangs.wait_for("begun", SHORT)?;
        let began = Instant::now();
        guest.expect("echo beside", SHORT, &["beside\n"])?;
        if began.elapsed() > Duration::from_millis(2500) {
            return Err("a command had to wait for another one".to_owned());
        }
        hangs.wait()?.expect(124, &[])?;
        let killed = guest.start("sleep 1000", SHORT)?;
        killed.kill(9)?;
        killed.wait()?.expect(137, &[]).map(drop)
    });
    group.case("rping between two programs of the guest", |alone| {
        let guest = alone.guest();
        let server = guest.start(&format!("exec rping -s -a {GUEST_V4} -P -S 4096"), SHORT)?;
        guest.expect("sleep 0.5; rdma link", SHORT, &["rxe0/1 state ACTIVE"])?;
        let command = format!("rping -c -a {GUEST_V4} -C 10 -S 4096 -v -V");
        guest.expect(&command, SHORT, &["rdma-ping-0: ", "rdma-ping-9: "])?;
        server.kill(9)?;
        server.wait().map(drop)
    });
    group.build()
}

//! perftest's exchange over TCP, by clients that are refused before a packet: the log says what to do.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rxe_testkit::process::Streams;

use crate::output::with_pair;
use crate::veth::{PATIENCE, VethTarget, eventually};

/// A client in the middle of its exchange.
struct Exchange(TcpStream);

impl Exchange {
    /// Connects and exchanges version, sizes and path MTU.
    fn begin() -> Exchange {
        let target = SocketAddr::from(([10, 77, 0, 1], 18515));
        let mut stream = None;
        eventually("a connection", || {
            stream = TcpStream::connect_timeout(&target, Duration::from_millis(500)).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut exchange = Exchange(stream);
        let messages: [&[u8]; 4] =
            [b"6.06\0\0\0\0\0\0\0\0\0\0\0\0", &4096u32.to_be_bytes(), &64u32.to_be_bytes(), b"3\0"];
        for message in messages {
            assert!(exchange.say(message), "no answer to {}", message.escape_ascii());
        }
        exchange
    }

    /// Sends a message; `false` if the target closes the stream instead of answering with as many bytes.
    fn say(&mut self, message: &[u8]) -> bool {
        self.0.write_all(message).unwrap();
        self.0.read_exact(&mut vec![0; message.len()]).is_ok()
    }

    /// The record of a queue pair whose memory has the key `rkey`.
    fn record(&mut self, qpn: u32, rkey: u32) -> bool {
        let gid = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:4d:00:02";
        self.say(format!("0000:0001:{qpn:06x}:000007:{rkey:08x}:000055ca60f68000:{gid}:00000000:\0").as_bytes())
    }
}

/// Waits until the target has logged one such warning.
#[track_caller]
fn warned(target: &VethTarget, words: &str) {
    let lines = || target.program.stderr().iter().filter(|l| l.contains("WARN") && l.contains(words)).count();
    eventually(words, || lines() > 0);
    assert_eq!(lines(), 1, "{words}");
}

#[test]
fn clients_of_perftest_that_are_refused_learn_what_to_change() {
    with_pair(|| {
        let config = std::env::temp_dir().join(format!("rxe-ports-{}perftest.toml", std::process::id()));
        std::fs::write(&config, "[service.perftest]\nqueue-pairs = 2\nwrite-lat-after = \"100ms\"\n").unwrap();
        let mut target = VethTarget::start("pt", Streams::default(), &["--config", config.to_str().unwrap()]);
        target.prints("ready ");

        let mut many = Exchange::begin();
        assert!(many.record(0x11, 1) && many.record(0x12, 1));
        assert!(!many.record(0x13, 1), "a third queue pair");
        warned(
            &target,
            "perftest: queue pair number 3 of a test refused: its address has 2 queue pairs of tests on this lcore: raise \
             queue-pairs of [service.perftest]",
        );

        // ib_write_bw --reversed: records, and its report at once.
        let mut reports = Exchange::begin();
        assert!((0..4).all(|_| reports.record(0x11, 1)));
        assert!(!reports.say(&65536u64.to_be_bytes()), "a report without traffic");
        let reversed = "perftest: a test refused: its test ends before a packet came, as with --reversed, but the target begins \
                        no test: without --reversed, ib_read_bw and the option -b of the others measure data from the target";
        warned(&target, reversed);

        // ib_send_bw --reversed: four records without a key of memory, then silence.
        let mut waits = Exchange::begin();
        assert!((0..4).all(|_| waits.record(0x11, 0)));
        warned(
            &target,
            "perftest: it sends nothing for 100 ms since its test began, as with --reversed, but the target begins no test: \
             without --reversed, ib_read_bw and the option -b of the others measure data from the target",
        );
        assert!(waits.record(0x11, 0), "a slow client is still served");
        drop(waits);
        assert_eq!(target.terminate().code(), Some(0));
        let summary = target.program.stdout();
        let counted = summary.iter().find(|line| line.starts_with("service perftest:"));
        assert!(counted.is_some_and(|line| line.contains(" connections=3 refused=2")), "{summary:?}");
        let _ = std::fs::remove_file(config);
    });
}

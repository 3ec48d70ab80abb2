//! Slow and silent clients of the metrics and of the management socket: others are still answered, and the slow ones are
//! closed and counted.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rxe_testkit::process::Program;

use super::operate::{contains, json, rxe_ctl};
use super::{Target, lacking};

/// More than the target serves at once.
const CLIENTS: usize = 40;
/// Generous: the machine may be busy.
const LIMIT: Duration = Duration::from_secs(60);

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Waits until the target has closed the connection.
fn closed(stream: &mut impl Read) {
    match stream.read(&mut [0; 64]) {
        Ok(0) => {}
        // Bytes that were sent after the target had closed it.
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {}
        other => panic!("{other:?} from a connection that should be closed"),
    }
}

#[test]
fn slow_and_silent_clients_keep_nobody_out() {
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    let prefix = format!("{}c", std::process::id());
    let memif = std::env::temp_dir().join(format!("rxe-ports-{prefix}.sock")).display().to_string();
    let vdev = format!("net_memif0,role=server,id=0,bsize=8192,socket-abstract=no,socket={memif}");
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let address = free.to_string();
    let target = Target::start(&prefix, &vdev, "0", "", &["--metrics", &address]);

    // It keeps its connection for longer than a request may take.
    let mut top = rxe_ctl();
    top.args(["--file-prefix", &prefix, "--json", "top", "--once", "--interval", "8"]);
    let mut top = Program::start(&mut top).unwrap();
    // Its first four requests come before the silent clients. Each poll here is a request, too.
    let began = Instant::now();
    for polls in 1.. {
        let requests = json(&target, "stat")["management"]["socket_requests"].as_u64();
        if requests.is_none_or(|requests| requests >= polls + 4) {
            break;
        }
        assert!(began.elapsed() < LIMIT, "{requests:?}");
    }
    let mut slow: Vec<TcpStream> = (0..CLIENTS).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let socket = rxe_inspect::socket::path(&prefix);
    let mut silent: Vec<UnixStream> = (0..CLIENTS).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let over = Arc::new(AtomicBool::new(false));
    let dripping = {
        let (over, mut slow) = (Arc::clone(&over), slow.iter().map(|s| s.try_clone().unwrap()).collect::<Vec<_>>());
        std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                for stream in &mut slow {
                    // Those that the target has closed fail.
                    let _ = stream.write_all(b"x");
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        })
    };
    for _ in 0..3 {
        let text = scrape(&address);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        contains(&text, &["\nrxe_management_metrics_replaced_total "]);
        assert_eq!(json(&target, "devinfo")["file_prefix"], prefix.as_str());
    }
    for stream in &mut slow {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        closed(stream);
    }
    for stream in &mut silent {
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        closed(stream);
    }
    over.store(true, Ordering::Relaxed);
    dripping.join().unwrap();
    let stat = json(&target, "stat");
    let count = |name: &str| stat["management"][name].as_u64().unwrap();
    for socket in ["metrics", "socket"] {
        let (late, replaced) = (count(&format!("{socket}_timeouts")), count(&format!("{socket}_replaced")));
        assert!(late > 0 && replaced >= 8 && late + replaced >= CLIENTS as u64, "{socket}: {stat}");
    }
    let top = top.finish(LIMIT).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(top.code, 0, "{}", top.stderr);
    target.stop();
    let _ = std::fs::remove_file(memif);
}

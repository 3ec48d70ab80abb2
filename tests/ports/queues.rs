//! A queue of net_af_packet for each lcore: the kernel distributes flows over them (packet fanout).

use rxe_inspect::protocol::Request;
use rxe_inspect::report::CounterGroup;
use rxe_testkit::process::{self, Streams};

use super::bench::{LIMIT, bench_on, told};
use super::output::with_pair;
use super::veth::{AF_PACKET, VethTarget};

#[test]
fn each_lcore_receives_flows_by_a_queue_of_its_own() {
    with_pair(|| {
        let mut target = VethTarget::start_on("q", &format!("{AF_PACKET},qpairs=2"), Streams::default(), &[]);
        target.prints("ready ");
        // The source ports are the same in each run, and the kernel's hash is the same until it is started again: as many as make
        // it certain that each queue gets flows of both lcores.
        let words = "write-bw -s 4096 -q 64 -t 2 -n 25 --verify --address 10.77.0.3/24 --peer 10.77.0.1";
        let mut bench = bench_on(&AF_PACKET.replace("rxa", "rxb"), "0", words);
        let done = process::run(&mut bench, LIMIT).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(done.code, 0, "{}", told(&done));
        let groups: Vec<CounterGroup> = target.client().ask(&Request::Counters).unwrap();
        let count = |name: &str| -> Vec<u64> {
            let of_workers = groups.iter().filter(|group| group.group == "worker" && group.scope == "lcore");
            of_workers.filter_map(|group| group.get(name)).collect()
        };
        // The source port of each queue pair chooses its queue.
        let (received, executed) = (count("rx_frames"), count("qp_packets"));
        assert_eq!(received.len(), 2);
        assert!(received.iter().all(|&frames| frames > 20), "received {received:?}");
        // Each has 32 queue pairs, of 25 messages or more.
        assert!(executed.iter().all(|&packets| packets >= 800), "executed {executed:?}");
        assert!(count("handoff_out").iter().all(|&frames| frames > 0));
        assert!(target.terminate().success());
    });
}

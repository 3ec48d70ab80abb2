use rxe_proto::Duration;

use crate::control::ip_host::{HostEvent, StreamEvent};
use crate::control::streams::{MAX_IN_FLIGHT, MAX_UNSENT, MAX_UNTAKEN, MAX_UNTAKEN_OF_STREAM, UNREAD_TIMEOUT};
use crate::messages::{StreamId, ToControl, ToWorker};
use crate::service::Listen;
use crate::test_env::TestEnv;

const PORT: u16 = 18_515;
/// The host's id of the stream.
const TCP: u32 = 9;

/// A stream that the service has taken.
fn open() -> (TestEnv, StreamId) {
    let mut env = TestEnv::new(1, vec![(2, Listen::Tcp { port: PORT })]);
    env.open_stream(TCP, PORT);
    let ToWorker::StreamOpened { service: 2, stream, local, .. } = env.message() else { panic!() };
    assert_eq!(local.port(), PORT);
    env.send(ToControl::StreamTaken { stream, len: 0 });
    (env, stream)
}

/// The bytes that control has sent to the worker.
fn data(env: &mut TestEnv) -> usize {
    let mail = env.mail(0);
    mail.iter().map(|message| if let ToWorker::StreamData { data, .. } = message { data.len() } else { panic!() }).sum()
}

#[test]
fn bytes_reach_the_service_and_its_writes_the_client_one_by_one() {
    let (mut env, stream) = open();
    env.receive(TCP, b"hello");
    assert!(matches!(env.message(), ToWorker::StreamData { data, .. } if data == b"hello"));
    for word in [&b"one"[..], b"two"] {
        env.send(ToControl::StreamSend { stream, data: word.to_vec() });
    }
    assert_eq!(env.stream(TCP).sent, [b"one", b"two"]);
    env.send(ToControl::StreamClose { stream });
    assert!(env.stream(TCP).closed);
    env.host().events.push_back(HostEvent::Stream(StreamEvent::Closed { stream: TCP, reset: false }));
    env.exchange();
    assert!(matches!(env.message(), ToWorker::StreamClosed { reset: false, .. }));
}

#[test]
fn a_stream_to_a_port_without_a_service_is_reset() {
    let mut env = TestEnv::new(1, vec![(2, Listen::Tcp { port: PORT })]);
    env.open_stream(TCP, PORT + 1);
    assert!(env.stream(TCP).aborted && env.mail(0).is_empty());
}

#[test]
fn a_stream_is_read_no_further_than_its_service_follows() {
    let (mut env, stream) = open();
    env.receive(TCP, &vec![0; 2 * MAX_IN_FLIGHT]);
    assert_eq!(data(&mut env), MAX_IN_FLIGHT);
    assert_eq!(env.stream(TCP).received.len(), MAX_IN_FLIGHT, "TCP's window stops the client");
    env.send(ToControl::StreamTaken { stream, len: MAX_IN_FLIGHT });
    assert_eq!((data(&mut env), env.stream(TCP).received.len()), (MAX_IN_FLIGHT, 0));
}

#[test]
fn a_stream_is_not_read_while_its_client_does_not_read() {
    let (mut env, stream) = open();
    env.stream(TCP).room = 1;
    env.send(ToControl::StreamSend { stream, data: vec![0; 2] });
    env.receive(TCP, b"more");
    assert_eq!(data(&mut env), 0);
    env.stream(TCP).room = 1;
    env.exchange();
    assert_eq!(data(&mut env), 4);
}

#[test]
fn a_client_that_reads_nothing_loses_its_stream() {
    let (mut env, stream) = open();
    env.stream(TCP).room = 0;
    env.send(ToControl::StreamSend { stream, data: vec![0; MAX_UNSENT] });
    env.advance(UNREAD_TIMEOUT - Duration::from_millis(1));
    assert!(!env.stream(TCP).aborted);
    // One byte read starts the time again.
    env.stream(TCP).room = 1;
    env.advance(Duration::from_millis(1));
    env.advance(UNREAD_TIMEOUT - Duration::from_millis(1));
    assert!(!env.stream(TCP).aborted);
    env.advance(Duration::from_millis(1));
    assert!(env.stream(TCP).aborted);
    assert!(matches!(env.message(), ToWorker::StreamClosed { reset: true, .. }));
    assert_eq!(env.control.stats.streams_unread.get(), 1);
}

#[test]
fn a_service_that_writes_more_than_fits_loses_its_stream() {
    let (mut env, stream) = open();
    env.stream(TCP).room = 0;
    env.send(ToControl::StreamSend { stream, data: vec![0; MAX_UNSENT] });
    assert!(!env.stream(TCP).aborted);
    env.send(ToControl::StreamSend { stream, data: vec![0] });
    assert!(env.stream(TCP).aborted);
    assert!(matches!(env.message(), ToWorker::StreamClosed { reset: true, .. }));
}

#[test]
fn new_streams_are_refused_while_workers_are_behind() {
    let mut env = TestEnv::new(1, vec![(2, Listen::Tcp { port: PORT })]);
    for tcp in 0..MAX_UNTAKEN as u32 {
        env.open_stream(tcp, PORT);
    }
    assert_eq!(env.control.stats.streams_refused.get(), 0);
    env.open_stream(u32::MAX, PORT);
    assert!(env.stream(u32::MAX).aborted);
    assert_eq!(env.control.stats.streams_refused.get(), 1);
    env.send(ToControl::StreamTaken { stream: StreamId(1), len: 0 });
    env.open_stream(u32::MAX - 1, PORT);
    assert!(!env.stream(u32::MAX - 1).aborted);
}

#[test]
fn one_stream_of_small_segments_leaves_room_for_others() {
    let (mut env, stream) = open();
    for _ in 0..2 * MAX_UNTAKEN_OF_STREAM {
        env.receive(TCP, b"x");
    }
    assert_eq!(data(&mut env), MAX_UNTAKEN_OF_STREAM);
    assert_eq!(env.stream(TCP).received.len(), MAX_UNTAKEN_OF_STREAM, "TCP's window stops the client");
    env.open_stream(TCP + 1, PORT);
    assert!(!env.stream(TCP + 1).aborted);
    assert!(matches!(env.message(), ToWorker::StreamOpened { .. }));
    for _ in 0..MAX_UNTAKEN_OF_STREAM {
        env.send(ToControl::StreamTaken { stream, len: 1 });
    }
    assert_eq!((data(&mut env), env.stream(TCP).received.len()), (MAX_UNTAKEN_OF_STREAM, 0));
}

/// Control visits streams in each turn, so those with nothing to do must not be among them.
#[test]
fn only_streams_with_something_left_are_visited_in_each_turn() {
    let (mut env, busy) = open();
    for tcp in 100..120 {
        env.open_stream(tcp, PORT);
    }
    let others: Vec<StreamId> = (env.mail(0).iter())
        .map(|message| if let ToWorker::StreamOpened { stream, .. } = message { *stream } else { panic!() })
        .collect();
    assert!(env.control.streams.unfinished.is_empty());
    env.stream(TCP).room = 3;
    for _ in 0..2 {
        env.send(ToControl::StreamSend { stream: busy, data: vec![0; 5] });
        env.send(ToControl::StreamSend { stream: others[7], data: vec![0; 5] });
    }
    assert_eq!(env.control.streams.unfinished, [busy]);
    env.send(ToControl::StreamClose { stream: busy });
    assert!(!env.stream(TCP).closed, "after its bytes");
    env.stream(TCP).room = 100;
    env.exchange();
    assert!(env.stream(TCP).closed && env.control.streams.unfinished.is_empty());
    assert_eq!(env.stream(TCP).sent.concat().len(), 10);
    env.stream(100).room = 0;
    env.send(ToControl::StreamSend { stream: others[0], data: vec![0; 5] });
    assert_eq!(env.control.streams.unfinished, [others[0]]);
    env.send(ToControl::StreamReset { stream: others[0] });
    assert!(env.control.streams.unfinished.is_empty());
}

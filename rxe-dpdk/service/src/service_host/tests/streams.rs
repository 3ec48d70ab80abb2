use super::env::{Call, TCP_PORT, WorkerEnv};
use crate::control::ip_host::{HostEvent, StreamEvent};

const TCP: u32 = 9;

#[test]
fn a_stream_carries_more_than_its_service_may_have_outstanding() {
    let mut env = WorkerEnv::new();
    env.open_stream(TCP, TCP_PORT);
    env.run();
    // Control would stop without the credits that the worker returns.
    let len = 300 * 1024;
    env.receive(TCP, &vec![1; len]);
    env.run();
    let taken: usize = env.calls().iter().map(|call| if let Call::Data(data) = call { data.len() } else { 0 }).sum();
    assert_eq!(taken, len);
    env.host().events.push_back(HostEvent::Stream(StreamEvent::Closed { stream: TCP, reset: true }));
    env.run();
    assert_eq!(env.calls(), [Call::Closed(true)]);
    let stats = env.host.stats();
    assert_eq!((stats.streams_opened.get(), stats.streams_closed.get()), (1, 1));
    assert!(env.host.streams.is_empty());
}

mod connections;
mod groups;
mod gsi;
mod peers;
mod placement;
mod streams;

use crate::test_env::TestEnv;

use crate::service::Listen;

#[test]
fn hosts_listen_as_the_services_want() {
    let listens = vec![(0, Listen::Tcp { port: 18_515 }), (1, Listen::GroupListeners), (2, Listen::cm(7174))];
    let mut env = TestEnv::new(1, listens);
    let host = env.host();
    assert_eq!((&*host.listens, host.watches_listeners), (&[18_515][..], true));
    let mut env = TestEnv::new(1, vec![(0, Listen::cm(7174))]);
    let host = env.host();
    assert_eq!((host.listens.len(), host.watches_listeners), (0, false));
}

//! The examples, run as they are, over a link that loses frames, and with faults that they must detect.

// Their `main`s are not called here, and each brings the link along.
#![allow(dead_code, clippy::duplicate_mod)]

#[path = "../../examples/ping_pong.rs"]
mod ping_pong;
#[path = "../../examples/ud_echo.rs"]
mod ud_echo;
#[path = "../../examples/write_read.rs"]
mod write_read;

#[test]
fn ping_pong_survives_loss() {
    use ping_pong::{common::Link, run};
    let mut clean = Link::new(None);
    run(&mut clean, 50).unwrap();
    // 4 packets each way, at most one answer to each: nothing was sent twice.
    assert!((400..=800).contains(&clean.frames()), "{} frames", clean.frames());
    let mut lossy = Link::new(Some(7));
    run(&mut lossy, 50).unwrap();
    assert!(lossy.frames() > clean.frames(), "nothing was sent again");
}

#[test]
fn ping_pong_without_a_link_fails() {
    use ping_pong::{common::Link, run};
    let error = run(&mut Link::new(Some(1)), 1).unwrap_err();
    assert_eq!(error.to_string(), "end 1 waits for a completion that never comes");
}

#[test]
fn write_read_returns_the_written_bytes() {
    use write_read::{common::Link, run};
    run(&mut Link::new(None), |_| {}).unwrap();
    run(&mut Link::new(Some(50)), |_| {}).unwrap();
}

#[test]
fn write_read_notices_another_byte() {
    use write_read::{LEN, common::Link, run};
    let error = run(&mut Link::new(None), |memory| memory.fill(LEN - 1, 1, 0).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "what was read is not what was written");
    let error = run(&mut Link::new(None), |memory| memory.fill(LEN, 1, 0).unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "what was read is not what was written");
}

#[test]
fn write_read_without_a_link_fails() {
    use write_read::{common::Link, run};
    let error = run(&mut Link::new(Some(1)), |_| {}).unwrap_err();
    assert_eq!(error.to_string(), "end 0, work request 1: transport retry counter exceeded");
}

#[test]
fn datagrams_come_back_and_a_lost_one_is_missed() {
    use ud_echo::{common::Link, run};
    let mut link = Link::new(None);
    run(&mut link, 20).unwrap();
    assert_eq!(link.frames(), 40);
    // Datagrams are not retransmitted: the 4th frame is the second answer.
    let error = run(&mut Link::new(Some(4)), 20).unwrap_err();
    assert_eq!(error.to_string(), "end 0 waits for a completion that never comes");
}

//! Programs of NVMe over Fabrics: the recorded captures, as the target and as the host see them, and a session of our own.

use std::collections::BTreeMap;

use rxe_fuzz::nvmf::{host, put_message, target};
use rxe_nvmf::controller::{AdminReply, ControllerId, QueueKey, Target, TargetConfig};
use rxe_nvmf::host::{Action, Session};
use rxe_nvmf::subsystem::{BlockSize, Namespace, Subsystem};
use rxe_nvmf::wire::private_data::{QueueAccept, RejectStatus};
use rxe_nvmf::wire::{ConnectData, Cqe, Response, SQE_LEN, Sqe, Status};
use rxe_proto::Instant;
use rxe_testkit::pcap;
use zerocopy::{FromBytes, IntoBytes};

use super::nvmf_capture::{Recorded, recorded};
use crate::Corpus;

/// Bytes of data behind an entry of an I/O queue that a program has: the target does not look at them.
const CAPSULE_DATA: usize = 16;

fn captures() -> Vec<String> {
    let files = pcap::all().into_iter().map(|(file, _)| file);
    files.filter(|file| file.starts_with("nvmf-rdma")).collect()
}

/// The host's part of each capture, and hosts that break rules.
pub fn targets() -> Corpus {
    let mut corpus = BTreeMap::new();
    for file in captures() {
        corpus.insert(file.trim_end_matches(".pcap").to_owned(), target_program(&file));
    }
    let opened = opened_queue();
    let rest = [
        ("a-queue-that-sends-no-connect", [vec![target::op::WAIT, 0x27, 0x10], vec![target::op::WAIT, 0, 1]].concat()),
        ("a-short-capsule", vec![target::op::CAPSULE, 0, 0, 8, 0, 0, 0]),
        ("a-namespace-that-comes-grows-and-goes", {
            let mut steps = vec![target::op::ADD, 2, target::op::RESIZE, 2];
            steps.extend(1000_u64.to_be_bytes());
            steps.extend([target::op::REMOVE, 2, target::op::FAIL, 0]);
            steps
        }),
    ];
    for (name, steps) in rest {
        corpus.insert(name.to_owned(), [&opened[..], &steps].concat());
    }
    corpus
}

fn opened_queue() -> Vec<u8> {
    let mut program = vec![target::op::OPEN];
    let mut request = [0; 32];
    request[4..8].copy_from_slice(&[32, 0, 31, 0]);
    put_message(&mut program, &request);
    program
}

fn target_program(file: &str) -> Vec<u8> {
    let mut program = Vec::new();
    // The open queues in the order of their requests, as the target of the fuzz test counts them.
    let mut open: Vec<(usize, bool)> = Vec::new();
    for message in recorded(file) {
        let place = |queue: usize| open.iter().position(|&(number, _)| number == queue).expect("an open queue");
        match message {
            Recorded::Request { queue, data } => {
                program.push(target::op::OPEN);
                put_message(&mut program, &data);
                open.push((queue, false));
            }
            Recorded::Command { queue, mut capsule } => {
                if open[place(queue)].1 && capsule.len() > SQE_LEN {
                    capsule[SQE_LEN + CAPSULE_DATA..].fill(0);
                }
                program.extend([target::op::CAPSULE, place(queue) as u8]);
                put_message(&mut program, &capsule);
                program.push(0);
            }
            Recorded::Fetched { queue, data, .. } if !open[place(queue)].1 => {
                program.extend([target::op::FETCHED, place(queue) as u8]);
                put_message(&mut program, &data);
                program.push(0);
            }
            Recorded::Response { queue, .. } => {
                let at = place(queue);
                open[at].1 = true;
                // Nothing happens on an admin queue.
                program.extend([target::op::STORED, at as u8, 0, 0, 0, 0, 0]);
            }
            Recorded::Disconnect { queue } => {
                let at = place(queue);
                program.extend([target::op::CLOSE, at as u8]);
                open.remove(at);
            }
            Recorded::Accept { .. } | Recorded::Fetched { .. } | Recorded::Written { .. } => {}
        }
    }
    program
}

/// The target's part of each capture, of a session with our own target, and targets that break rules.
pub fn hosts() -> Corpus {
    let mut corpus = BTreeMap::new();
    for file in captures() {
        corpus.insert(file.trim_end_matches(".pcap").to_owned(), host_program(&file));
    }
    corpus.insert("a-session-from-connect-to-shutdown".to_owned(), whole_session(false));
    corpus.insert("a-discovery".to_owned(), whole_session(true));
    let mut program = vec![0];
    for number in 0..10 {
        program.extend([host::op::SUBMIT, number | 8, 0, 0, 0, number + 1]);
    }
    for number in (0..10).rev() {
        program.extend([host::op::COMPLETE, host::AIM, number]);
        program.extend([0; 16]);
        program.extend([0, 0, 0, number % 2]);
    }
    program.extend([host::op::COMPLETE, 0, 0, 0]);
    corpus.insert("io-commands-that-complete-in-another-order".to_owned(), program);
    let mut program = vec![0, host::op::REJECTED];
    put_message(&mut program, &RejectStatus::NoResources.to_bytes());
    corpus.insert("a-refused-queue".to_owned(), program);
    corpus
}

fn answer(program: &mut Vec<u8>, cqe: &[u8], data: &[u8]) {
    program.extend([host::op::ANSWER, host::AIM]);
    program.extend_from_slice(cqe);
    put_message(program, data);
}

fn host_program(file: &str) -> Vec<u8> {
    let mut program = vec![if file.contains("discover") { host::FLAG_DISCOVERY } else { 0 }];
    let mut written = Vec::new();
    for message in recorded(file) {
        match message {
            Recorded::Accept { data, .. } => {
                program.extend([host::op::OPENED, host::AIM, 0]);
                put_message(&mut program, &data[..32]);
            }
            Recorded::Written { data, .. } if data.len() <= 4096 => written = data,
            Recorded::Response { capsule, .. } => answer(&mut program, &capsule, &std::mem::take(&mut written)),
            Recorded::Disconnect { .. } => program.extend([host::op::SHUT_DOWN, host::op::CLOSED, host::AIM, 0]),
            _ => {}
        }
    }
    program
}

/// What a session with our own target reports to the host.
fn whole_session(discovery: bool) -> Vec<u8> {
    let mut peer = Peer::new();
    let mut session = host::session(discovery);
    let mut program = vec![u8::from(discovery)];
    let mut ended = false;
    while !session.is_closed() {
        let Some(action) = session.next_action() else {
            assert!(session.is_ready() && !ended, "the session waits");
            ended = true;
            session.shut_down();
            program.push(host::op::SHUT_DOWN);
            continue;
        };
        match action {
            Action::OpenQueue { qid, request } => {
                let key = QueueKey(qid.into());
                let accept: QueueAccept = peer.target.accept(Instant::ZERO, key, &request).expect("accepted");
                session.queue_opened(qid).expect("expected");
                program.extend([host::op::OPENED, host::AIM, qid as u8]);
                put_message(&mut program, &accept.to_bytes());
            }
            Action::CloseQueue { qid } => {
                peer.target.disconnected(QueueKey(qid.into()));
                session.queue_closed(qid).expect("expected");
                program.extend([host::op::CLOSED, host::AIM, qid as u8]);
            }
            Action::Send { qid, sqe, capsule, buffer, .. } => {
                let connect = capsule.or(buffer);
                if let Some((response, data)) = peer.send(qid, &sqe, connect.as_deref()) {
                    report(&mut session, &mut program, &response, &data);
                }
            }
        }
        while peer.target.next_event().is_some() {}
    }
    program
}

fn report(session: &mut Session, program: &mut Vec<u8>, response: &Response, data: &[u8]) {
    let mut buffer = [0; 4096];
    buffer[..data.len()].copy_from_slice(data);
    session.completed(&response.cqe, &buffer).expect("expected");
    answer(program, response.cqe.as_bytes(), data);
}

struct Peer {
    target: Target,
    controller: Option<ControllerId>,
}

impl Peer {
    fn new() -> Peer {
        let mut subsystem = Subsystem::new(target::SUBSYSTEM.parse().expect("an NQN"));
        subsystem.namespaces.push(Namespace::new(&subsystem.nqn, 1, 1000, BlockSize::B512));
        let mut target = Target::new(TargetConfig::default());
        target.add_subsystem(subsystem).expect("a valid subsystem");
        Peer { target, controller: None }
    }

    fn send(&mut self, qid: u16, sqe: &Sqe, connect: Option<&ConnectData>) -> Option<(Response, Vec<u8>)> {
        if let Some(data) = connect {
            let granted = self
                .target
                .connect(Instant::ZERO, QueueKey(qid.into()), [192, 0, 2, 9].into(), sqe, data)
                .expect("connected");
            self.controller = Some(granted.controller);
            return Some((granted.response, Vec::new()));
        }
        match self.target.admin(Instant::ZERO, self.controller.expect("connected"), sqe) {
            AdminReply::Complete { data, response } => Some((response, data.map_or_else(Vec::new, |data| data.bytes))),
            AdminReply::Held => None,
            AdminReply::Gone => panic!("the controller is gone"),
        }
    }
}

/// A completion as the captures have it.
#[test]
fn a_recorded_answer_succeeds() {
    let responses = recorded("nvmf-rdma.pcap").into_iter().filter_map(|message| match message {
        Recorded::Response { capsule, .. } => Cqe::read_from_bytes(&capsule).ok(),
        _ => None,
    });
    assert!(responses.filter(|cqe| cqe.status() == Status::SUCCESS).count() > 20);
}

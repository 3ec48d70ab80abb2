//! Messages between the instances of a service.

use std::any::Any;

use super::*;
use crate::mailbox::ControlMailbox;

/// A message: sent on by the receiver as many times as `hops` says, back to the worker that it came from.
struct Ball {
    number: usize,
    hops: usize,
    /// To count the messages that exist.
    _alive: Arc<()>,
}

/// A delivered message: the service and the worker that got it, the worker that sent it, and its number.
type Delivered = (usize, usize, usize, usize);

struct Player {
    service: usize,
    delivered: mpsc::Sender<Delivered>,
    /// Whether a call of this instance runs.
    called: bool,
}

impl Service for Player {
    fn instance_message(&mut self, cx: &mut Context<'_>, from: usize, message: Box<dyn Any + Send>) {
        assert!(!std::mem::replace(&mut self.called, true), "a call within a call");
        let mut ball = message.downcast::<Ball>().unwrap();
        self.delivered.send((self.service, cx.worker(), from, ball.number)).unwrap();
        if ball.hops > 0 {
            ball.hops -= 1;
            cx.send_to_instance(from, ball);
        }
        self.called = false;
    }
}

/// Workers with two services each.
struct Workers {
    workers: Vec<(Engine, ServiceHost)>,
    delivered: Receiver<Delivered>,
    alive: Arc<()>,
    control: ControlMailbox,
}

impl Workers {
    fn new(count: usize) -> Workers {
        let (reporter, delivered) = mpsc::channel();
        let (control, mailboxes) = mailboxes(count);
        let worker = |(number, mailbox)| {
            let player = |service| -> Box<dyn Service> {
                Box::new(Player { service, delivered: reporter.clone(), called: false })
            };
            let mut engine = Engine::new(EngineConfig::default());
            let mut host = worker_of(number, &mut engine, vec![player(0), player(1)], mailbox);
            host.start(Instant::ZERO, &mut engine);
            (engine, host)
        };
        let workers = mailboxes.into_iter().enumerate().map(worker).collect();
        Workers { workers, delivered, alive: Arc::default(), control }
    }

    /// Service 1 of worker `from` sends a message to its instance on worker `to`.
    fn send(&mut self, from: usize, to: usize, number: usize, hops: usize) {
        let ball = Ball { number, hops, _alive: Arc::clone(&self.alive) };
        let (engine, host) = &mut self.workers[from];
        host.call(Instant::ZERO, engine, 1, |_, cx| cx.send_to_instance(to, Box::new(ball)));
    }

    /// The messages that worker `worker` delivers in a turn, and whether it was busy.
    fn turn(&mut self, worker: usize) -> (Vec<Delivered>, bool) {
        let (engine, host) = &mut self.workers[worker];
        let mut busy = host.read_mail(Instant::ZERO, engine);
        busy |= host.poll(Instant::ZERO, engine);
        (self.delivered.try_iter().collect(), busy)
    }

    /// Messages that exist.
    fn alive(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }
}

#[test]
fn a_message_reaches_the_instance_of_the_same_service_on_another_worker() {
    let mut workers = Workers::new(3);
    workers.send(2, 1, 7, 1);
    assert_eq!((workers.turn(0), workers.turn(2)), ((vec![], false), (vec![], false)));
    assert_eq!(workers.turn(1), (vec![(1, 1, 2, 7)], true));
    assert_eq!(workers.turn(2), (vec![(1, 2, 1, 7)], true), "the answer");
    assert_eq!(workers.alive(), 0);
    assert_eq!(workers.workers.iter().map(|(_, host)| host.stats().instance_messages.get()).sum::<u64>(), 2);
    let (engine, host) = &mut workers.workers[1];
    assert_eq!(host.call(Instant::ZERO, engine, 0, |_, cx| cx.workers()), 3);
}

#[test]
fn messages_of_a_pair_of_workers_keep_their_order_over_several_turns() {
    let mut workers = Workers::new(2);
    let count = 2 * INSTANCE_MESSAGES_PER_TURN + 1;
    for (from, to) in [(0, 1), (1, 1)] {
        (0..count).for_each(|number| workers.send(from, to, number, 0));
        let turns: Vec<Vec<Delivered>> = (0..3)
            .map(|_| {
                let (delivered, busy) = workers.turn(1);
                assert!(busy);
                assert_eq!(workers.workers[1].1.is_finished(), delivered.len() == 1);
                delivered
            })
            .collect();
        let lens: Vec<usize> = turns.iter().map(Vec::len).collect();
        assert_eq!(lens, [INSTANCE_MESSAGES_PER_TURN, INSTANCE_MESSAGES_PER_TURN, 1], "the others wait");
        let expected: Vec<Delivered> = (0..count).map(|number| (1, to, from, number)).collect();
        assert_eq!(turns.concat(), expected);
        assert_eq!(workers.turn(1), (vec![], false));
    }
}

#[test]
fn a_message_to_the_own_worker_is_delivered_in_the_next_turn() {
    let mut workers = Workers::new(1);
    workers.send(0, 0, 5, 2);
    workers.send(0, 0, 6, 0);
    assert!(!workers.workers[0].1.is_finished());
    assert_eq!(workers.turn(0), (vec![(1, 0, 0, 5), (1, 0, 0, 6)], true));
    // Each answer in a turn of its own, before which the worker does not count as idle.
    assert_eq!(workers.turn(0), (vec![(1, 0, 0, 5)], true));
    assert_eq!(workers.turn(0), (vec![(1, 0, 0, 5)], true));
    assert_eq!(workers.turn(0), (vec![], false));
    assert!(workers.workers[0].1.is_finished());
}

#[test]
fn a_message_sent_at_the_end_of_a_turn_keeps_the_worker_busy() {
    let mut workers = Workers::new(1);
    let (engine, host) = &mut workers.workers[0];
    assert!(!host.read_mail(Instant::ZERO, engine));
    let alive = Arc::clone(&workers.alive);
    host.call(Instant::ZERO, engine, 0, |_, cx| {
        cx.send_to_instance(0, Box::new(Ball { number: 1, hops: 0, _alive: alive }))
    });
    assert!(host.poll(Instant::ZERO, engine));
}

#[test]
fn messages_to_a_worker_that_does_not_exist_or_has_ended_are_dropped() {
    let mut workers = Workers::new(2);
    workers.send(0, 2, 1, 0);
    workers.send(0, usize::MAX, 1, 0);
    assert_eq!(workers.alive(), 0);
    workers.send(0, 1, 1, 0);
    workers.send(1, 1, 2, 0);
    assert_eq!(workers.alive(), 2);
    workers.workers.pop();
    assert_eq!(workers.alive(), 0, "what it had not read is dropped with it");
    workers.send(0, 1, 1, 0);
    assert_eq!(workers.alive(), 0);
    assert_eq!(workers.turn(0), (vec![], false));
}

#[test]
fn other_mail_is_read_between_messages_of_instances() {
    let mut workers = Workers::new(2);
    let (reply, answer) = mpsc::sync_channel(1);
    workers.send(0, 1, 1, 0);
    let inspector = workers.control.inspectors().remove(1);
    inspector.ask(crate::inspect::Question::Counts { reply }).unwrap();
    workers.send(0, 1, 2, 0);
    assert_eq!(workers.turn(1).0.len(), 2);
    assert_eq!(answer.try_recv().unwrap().services, 2);
}

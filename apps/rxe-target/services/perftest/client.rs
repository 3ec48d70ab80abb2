//! One perftest client: its exchange, its queue pairs and the memory that they test.

use std::collections::HashMap;
use std::net::SocketAddr;

use rxe_dpdk::service::{Context, PeerPath, StreamId};
use rxe_proto::Instant;
use rxe_proto::cm::ConnId;
use rxe_proto::verbs::{AnyQueuePair, Payload, Qpn, Rc, WorkRequest};
use rxe_proto::wire::{Gid, PathMtu};

use super::first_writer::FirstWriter;
use super::record::Record;
use super::talk::{Form, Talk};
use super::test_qp::Sink;

/// The fourth record is the last before the traffic of all tests with one queue pair that ib_write_lat could be.
pub const RECORDS_OF_WRITE_LAT: u32 = 4;

/// The way that messages take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Channel {
    /// A TCP stream.
    Stream(StreamId),
    /// A control connection: our queue pair and the connection.
    Control(AnyQueuePair, ConnId),
}

impl Channel {
    /// How messages look on it.
    pub fn form(self) -> Form {
        match self {
            Channel::Stream(_) => Form::Text,
            Channel::Control(..) => Form::Binary,
        }
    }
}

/// A client.
pub struct Client {
    pub channel: Channel,
    pub from: SocketAddr,
    pub talk: Talk,
    /// The largest path MTU of our port, and then what both ends have.
    pub path_mtu: PathMtu,
    /// The record that waits for the way to its GID.
    pub waiting: Option<Record>,
    /// The last way that was found.
    pub path: Option<(Gid, PeerPath)>,
    /// The memory, from the first queue pair on.
    pub sink: Option<Sink>,
    /// Our queue pairs by the client's.
    pub qps: HashMap<Qpn, Qpn>,
    /// The client has asked for connections for its tests.
    pub connects: bool,
    /// How many records have come.
    pub records: u32,
    /// READs and atomics that the client has outstanding; 1 where it has none.
    pub out_reads: u32,
    /// The last message.
    pub heard: Instant,
    /// The part of an ib_write_lat server.
    pub writer: Option<FirstWriter>,
}

impl Client {
    /// A client that has said nothing yet.
    pub fn new(cx: &Context<'_>, channel: Channel, from: SocketAddr, path_mtu: PathMtu) -> Client {
        Client {
            channel,
            from,
            talk: Talk::new(channel.form()),
            path_mtu,
            waiting: None,
            path: None,
            sink: None,
            qps: HashMap::new(),
            connects: false,
            records: 0,
            out_reads: 0,
            heard: cx.now(),
            writer: None,
        }
    }

    /// Sends an answer.
    pub fn say(&self, cx: &mut Context<'_>, message: &[u8]) {
        match self.channel {
            Channel::Stream(stream) => cx.stream_send(stream, message),
            Channel::Control(qp, conn) => {
                let answer = WorkRequest::<Rc>::send(Payload::Inline(message)).signaled();
                if let Err(error) = cx.device().post_send(qp, answer.into()) {
                    // A client that does not wait for answers, or is gone.
                    tracing::debug!(client = %self.from, %error, "perftest client does not take its answers");
                    cx.disconnect(conn);
                }
            }
        }
    }

    /// A record as its channel has it.
    pub fn say_record(&self, cx: &mut Context<'_>, record: &Record) {
        let message = match self.channel.form() {
            Form::Text => record.write(),
            Form::Binary => record.write_binary(),
        };
        self.say(cx, &message);
    }
}

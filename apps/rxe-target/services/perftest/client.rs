//! One perftest client: its parameter exchange, its queue pairs and the memory that they test.

use std::collections::HashMap;
use std::net::SocketAddr;

use rxe_proto::Instant;
use rxe_proto::cm::ConnId;
use rxe_proto::verbs::{AnyQueuePair, Payload, Qpn, Rc, WorkRequest};
use rxe_proto::wire::{Gid, PathMtu, Psn};
use rxe_service::{Context, PeerPath, StreamId};

use super::first_writer::FirstWriter;
use super::record::Record;
use super::talk::{Form, Talk};
use super::test_qp::Sink;

/// Number of records before the traffic of ib_write_lat, and of every other test with one queue pair that looks like it.
pub const RECORDS_OF_WRITE_LAT: u32 = 4;

/// The channel of the parameter exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Channel {
    /// A TCP stream.
    Stream(StreamId),
    /// A control connection: our queue pair and the connection.
    Control(AnyQueuePair, ConnId),
}

impl Channel {
    /// The form of messages on it.
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
    /// The largest path MTU of our port; after the exchange, the smaller one of both ends.
    pub path_mtu: PathMtu,
    /// The record that is answered when the path to its GID is resolved.
    pub waiting: Option<Record>,
    /// The last resolved path, with its GID.
    pub path: Option<(Gid, PeerPath)>,
    /// The memory, from the first queue pair on.
    pub sink: Option<Sink>,
    /// Our queue pairs by the client's.
    pub qps: HashMap<Qpn, Qpn>,
    /// The client has asked for connections for its tests.
    pub connects: bool,
    /// Number of records received.
    pub records: u32,
    /// READs and atomics that the client may have outstanding; 1 in tests without them.
    pub out_reads: u32,
    /// Time of the last message.
    pub heard: Instant,
    /// The server's part of ib_write_lat.
    pub writer: Option<FirstWriter>,
    /// The PSN that a client with one queue pair was to send next, when it might have been silent.
    pub stopped_at: Option<Psn>,
}

impl Client {
    /// A client that has sent nothing yet.
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
            stopped_at: None,
        }
    }

    /// Sends an answer.
    pub fn say(&self, cx: &mut Context<'_>, message: &[u8]) {
        match self.channel {
            Channel::Stream(stream) => cx.stream_send(stream, message),
            Channel::Control(qp, conn) => {
                let answer = WorkRequest::<Rc>::send(Payload::Inline(message)).signaled();
                if let Err(error) = cx.device().post_send(qp, answer.into()) {
                    // The client does not wait for answers, or has vanished.
                    tracing::debug!(client = %self.from, %error, "perftest client does not take its answers");
                    cx.disconnect(conn);
                }
            }
        }
    }

    /// Sends a record in the form of the channel.
    pub fn say_record(&self, cx: &mut Context<'_>, record: &Record) {
        let message = match self.channel.form() {
            Form::Text => record.write(),
            Form::Binary => record.write_binary(),
        };
        self.say(cx, &message);
    }
}

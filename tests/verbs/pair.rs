//! A server and its client, each with an address of its own.

use std::time::{Duration, Instant};

use rxe_testkit::process::Program;

use crate::Check;
use crate::case::Case;
use crate::client_output::Wants;
use crate::place::Place;
use crate::sockets;

/// Far more than any program takes, but on a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(120);
/// Interval between looks at a state outside of this process.
const CHECK: Duration = Duration::from_millis(5);

/// The state in which a server is ready for its client.
#[derive(Clone, Copy)]
pub enum Ready {
    /// It listens on TCP port PORT.
    Tcp,
    /// The connection manager has done this command for it.
    Command(Command),
}

/// Commands of `rdma_user_cm.h`, by their numbers.
#[derive(Clone, Copy)]
pub enum Command {
    /// LISTEN.
    Listen = 7,
    /// JOIN_IP_MCAST.
    JoinMulticast = 16,
}

/// How a server ends.
#[derive(Clone, Copy)]
pub enum End {
    /// By itself, with exit code 0.
    Success,
    /// Not by itself.
    Never,
}

/// A server and its client. In the command lines SERVER and CLIENT are their addresses, and PORT is a free TCP port.
pub struct Pair {
    server: String,
    client: String,
    ready: Ready,
    end: End,
    one_address: bool,
    /// Either may fail with this line on standard error.
    excuse: Option<&'static str>,
    server_wants: Wants,
    client_wants: Wants,
}

impl Pair {
    /// A server that ends with its client, and is ready when it listens on TCP port PORT.
    pub fn new(server: impl Into<String>, client: impl Into<String>, client_wants: Wants) -> Pair {
        let (server, client) = (server.into(), client.into());
        Pair {
            server,
            client,
            ready: Ready::Tcp,
            end: End::Success,
            one_address: false,
            excuse: None,
            server_wants: Wants::Texts(&[]),
            client_wants,
        }
    }

    /// Ready in another state.
    pub fn ready(self, ready: Ready) -> Pair {
        Pair { ready, ..self }
    }

    /// A server that runs until it is killed.
    pub fn runs_for_ever(self) -> Pair {
        Pair { end: End::Never, ..self }
    }

    /// Both at one address: the client is a guest of the server.
    pub fn at_one_address(self) -> Pair {
        Pair { one_address: true, ..self }
    }

    /// Either may fail with this line on standard error, because of an error of its own; its output must be right.
    pub fn may_fail_with(self, line: &'static str) -> Pair {
        Pair { excuse: Some(line), ..self }
    }

    /// The output of the server.
    pub fn server_wants(self, server_wants: Wants) -> Pair {
        Pair { server_wants, ..self }
    }

    /// A case of this group, with the command line of the client as its name.
    pub fn case(self, group: &str) -> Case {
        let name = format!("{group}/{}", self.client.replace(" -p PORT", "").replace(" -F", ""));
        Case::new(name, move |place| self.run(place))
    }

    /// Runs both to their ends.
    ///
    /// # Errors
    /// The difference, with the outputs of both.
    pub fn run(self, place: &Place) -> Check {
        let first = place.address();
        let addresses = [first, if self.one_address { first } else { place.address() }];
        let port = sockets::free_port()?;
        let words = |line: &str| {
            let [server, client] = addresses.map(|address| address.to_string());
            line.replace("SERVER", &server).replace("CLIENT", &client).replace("PORT", &port.to_string())
        };
        let mut server = Program::start(&mut place.program(addresses[0], &words(&self.server)))?;
        until_ready(&mut server, self.ready, port)?;
        let mut client = Program::start(&mut place.program(addresses[1], &words(&self.client)))?;
        let outcome = self.outcome(&mut server, &mut client);
        outcome.map_err(|why| {
            let (of_server, of_client) = (server.tail(), client.tail());
            format!("{why}\nserver `{}`:\n{of_server}client `{}`:\n{of_client}", server.name(), client.name())
        })
    }

    fn outcome(&self, server: &mut Program, client: &mut Program) -> Check {
        ended("client", client, &self.client_wants, self.excuse)?;
        match self.end {
            End::Success => ended("server", server, &self.server_wants, self.excuse),
            End::Never if server.is_running() => self.server_wants.check(&server.stdout().join("\n")),
            End::Never => Err("the server has ended".to_owned()),
        }
    }
}

/// Waits for the end of a program with exit code 0 and this output.
fn ended(side: &str, program: &mut Program, wants: &Wants, excuse: Option<&str>) -> Check {
    let done = program.finish(LIMIT)?;
    let excused = excuse.is_some_and(|excuse| done.stderr.lines().any(|line| line == excuse));
    if done.code != 0 && !excused {
        return Err(format!("exit code {} of the {side}", done.code));
    }
    wants.check(&done.stdout).map_err(|why| format!("the {side}'s output: {why}"))
}

/// Waits until the server is ready.
pub fn until_ready(server: &mut Program, ready: Ready, port: u16) -> Check {
    until(server, "get ready", |server| match ready {
        Ready::Tcp => sockets::listens(port),
        Ready::Command(command) => {
            let done = format!("rdma_cm: command {} is done", command as u8);
            server.stderr().iter().any(|line| line.contains(&done))
        }
    })
}

/// Waits until `reached`.
///
/// # Errors
/// The program ends before, or the limit is over.
pub fn until(program: &mut Program, what: &str, mut reached: impl FnMut(&Program) -> bool) -> Check {
    let deadline = Instant::now() + LIMIT;
    loop {
        // In this order, as it may end right after it was reached.
        let running = program.is_running();
        if reached(program) {
            return Ok(());
        }
        if !running || Instant::now() >= deadline {
            let state = if running { "is running" } else { "has ended" };
            return Err(format!("`{}`, which {state}, did not {what}:\n{}", program.name(), program.tail()));
        }
        std::thread::sleep(CHECK);
    }
}

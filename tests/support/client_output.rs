//! What client programs of perftest, libibverbs and librdmacm print on success.

use super::perftest;

/// Nothing, or what is wrong.
type Check = Result<(), String>;

/// The expected output of a client.
pub enum Wants {
    /// All of these.
    Texts(&'static [&'static str]),
    /// perftest: rows of results.
    Rows(Rows),
    /// The ping-pong programs: how many messages of which size went each way.
    Messages {
        /// Bytes of each.
        size: u64,
        /// Number of messages.
        count: u64,
    },
    /// rping -v: this number of pings, each verified.
    Pings(usize),
    /// cmtime: a line for each step, and no unexpected event.
    Steps,
    /// rstream and riostream with sizes of their own: one line of results.
    Custom,
}

/// perftest's rows, which begin with size and number of messages.
pub enum Rows {
    /// One.
    One(u64, u64),
    /// One for each power of two from 2 up to this size.
    All(u64, u64),
    /// One, with as many messages as the time allows.
    Timed(u64),
}

impl Rows {
    fn check(&self, text: &str) -> Check {
        let rows: Vec<(u64, u64)> = perftest::rows(text).iter().map(|row| (row.size, row.count)).collect();
        let right = match *self {
            Rows::One(size, count) => rows == [(size, count)],
            Rows::All(largest, count) => {
                rows.iter().copied().eq((1..=largest.ilog2()).map(|shift| (1 << shift, count)))
            }
            Rows::Timed(size) => matches!(rows[..], [(s, count)] if s == size && count > 0),
        };
        if right { Ok(()) } else { Err(format!("the rows are {rows:?}: {text}")) }
    }
}

/// The output of librdmacm's small programs on success.
pub const UCMATOSE: Wants =
    Wants::Texts(&["receiving data transfers", "sending replies", "data transfers complete", "return status 0"]);
/// See `UCMATOSE`.
pub const UDADDY: Wants = Wants::Texts(&[
    "initiating data transfers",
    "receiving data transfers",
    "data transfers complete",
    "return status 0",
]);
/// The client of rdma-example.
pub const RDMA_EXAMPLE: Wants =
    Wants::Texts(&["SUCCESS, source and destination buffers match", "Client resource clean up is complete"]);

impl Wants {
    /// Compares standard output with it.
    pub fn check(&self, text: &str) -> Check {
        let missing = |texts: &[&str]| texts.iter().find(|t| !text.contains(**t)).map(|t| format!("no {t:?}: {text}"));
        match self {
            Wants::Texts(texts) => missing(texts).map_or(Ok(()), Err),
            Wants::Rows(rows) => rows.check(text),
            Wants::Messages { size, count } => {
                let texts = [format!("{} bytes in", 2 * size * count), format!("{count} iters in")];
                missing(&[&texts[0], &texts[1]]).map_or(Ok(()), Err)
            }
            Wants::Pings(count) => {
                let pings = text.lines().filter(|l| l.starts_with("ping data: rdma-ping-")).count();
                let end = text.lines().last().unwrap_or("");
                if pings == *count { Ok(()) } else { Err(format!("{pings} of {count} pings, then {end}")) }
            }
            Wants::Steps => {
                // Its exit code is 0 whatever happens.
                let bad = text.lines().any(|line| line.starts_with("event:") || line.starts_with("RDMA_CM_EVENT_"));
                let steps =
                    ["create id", "resolve addr", "resolve route", "create qp", "connect", "disconnect", "destroy"];
                let all = steps.iter().all(|step| text.lines().any(|line| line.starts_with(step)));
                if all && !bad { Ok(()) } else { Err(format!("cmtime printed {text}")) }
            }
            Wants::Custom => {
                let rows = text.lines().filter(|line| line.starts_with("custom ")).count();
                let wrong = ["verification failed", "rsend", "rrecv"].iter().any(|word| text.contains(word));
                if rows == 1 && !wrong { Ok(()) } else { Err(format!("it printed: {text}")) }
            }
        }
    }
}

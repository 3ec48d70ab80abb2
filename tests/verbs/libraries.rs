//! Programs of libfabric and UCX, which use verbs through layers of their own. In the nightly run.

use crate::case::Case;
use crate::client_output::Wants;
use crate::pair::Pair;

/// Server, client, and texts in the client's output.
static PAIRS: [(&str, &str, &[&str]); 6] = [
    (
        "fi_pingpong -p verbs -e msg -I 100 -c -B PORT",
        "fi_pingpong -p verbs -e msg -I 100 -c -P PORT SERVER",
        &["1m      100     =100"],
    ),
    (
        "fi_pingpong -p verbs;ofi_rxm -e rdm -I 100 -c -B PORT",
        "fi_pingpong -p verbs;ofi_rxm -e rdm -I 100 -c -P PORT SERVER",
        &["1m      100     =100"],
    ),
    ("UCX_TLS=ud_verbs ucx_perftest -p PORT", "UCX_TLS=ud_verbs ucx_perftest SERVER -p PORT -t tag_lat -n 1000", FINAL),
    (
        "UCX_TLS=ud_verbs ucx_perftest -p PORT",
        "UCX_TLS=ud_verbs ucx_perftest SERVER -p PORT -t tag_bw -s 65536 -n 1000",
        FINAL,
    ),
    // Its connections are made over datagrams.
    (
        "UCX_TLS=rc_verbs,ud_verbs:aux ucx_perftest -p PORT",
        "UCX_TLS=rc_verbs,ud_verbs:aux ucx_perftest SERVER -p PORT -t tag_lat -n 1000",
        FINAL,
    ),
    (
        "UCX_TLS=rc_verbs,ud_verbs:aux ucx_perftest -p PORT",
        "UCX_TLS=rc_verbs,ud_verbs:aux ucx_perftest SERVER -p PORT -t ucp_put_bw -s 65536 -n 1000",
        FINAL,
    ),
];
const FINAL: &[&str] = &["Final: "];
/// The device; and, as on Linux's rxe, no check of addresses in the GRH: UCX 1.13 takes the kind of GRH from the service level
/// of the completion.
const UCX: &str = "env UCX_NET_DEVICES=rxe0:1 UCX_UD_ETH_DGID_CHECK=n UCX_WARN_UNUSED_ENV_VARS=n";

/// All pairs.
pub fn cases() -> Vec<Case> {
    let command = |line: &str| if line.starts_with("UCX_") { format!("{UCX} {line}") } else { line.to_owned() };
    let case = |(server, client, texts): &(&'static str, &'static str, &'static [&'static str])| {
        let (server, client, texts) = (*server, *client, *texts);
        let name = format!("libraries/{}", client.replace(" -P PORT", "").replace(" -p PORT", ""));
        Case::nightly(name, move |place| Pair::new(command(server), command(client), Wants::Texts(texts)).run(place))
    };
    PAIRS.iter().map(case).collect()
}

//! The lcore of a program whose command line chooses none.

use rxe_dpdk::eal;

/// EAL's arguments. Where `args` choose no lcore, one is added, and the log says which.
pub fn or_one(args: &[String]) -> Vec<String> {
    let Some((args, cpu)) = eal::with_one_lcore(args) else { return args.to_vec() };
    tracing::info!(
        "one lcore runs, on CPU {cpu}: choose another CPU, or more of them, with EAL's -l, for example -l 0-3"
    );
    args
}

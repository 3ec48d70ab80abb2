//! One lcore for who asks for none.

use rxe_dpdk::eal;

/// EAL's arguments, with one lcore where they choose none, which the log tells.
pub fn or_one(args: &[String]) -> Vec<String> {
    let Some((args, cpu)) = eal::with_one_lcore(args) else { return args.to_vec() };
    tracing::info!("one lcore works, on CPU {cpu}: name the CPUs for more, or for another, with EAL's -l, as -l 0-3");
    args
}

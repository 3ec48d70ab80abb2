//! The lcore of a program whose arguments name none.

use super::args::EalArgs;

/// CPUs with numbers below this can be lcores of the same numbers.
const MAX_LCORE: u32 = dpdk_sys::RXE_MAX_LCORE;

/// EAL's arguments with one lcore, and its CPU, where they choose none; `None` where they do. EAL's default is every CPU of
/// the machine. The lcore is that of `--main-lcore`, or the first that the process may use.
pub fn with_one_lcore(args: &[String]) -> Option<(Vec<String>, u32)> {
    let eal = EalArgs::new(args);
    // Short options may have their values attached.
    let short = |arg: &String| !arg.starts_with("--") && (arg.starts_with("-l") || arg.starts_with("-c"));
    if eal.has("--lcores") || args.iter().any(short) {
        return None;
    }
    let main = eal.values("--main-lcore").last().and_then(|cpu| cpu.parse().ok());
    let cpu = main.or_else(|| first_cpu(&std::fs::read_to_string("/proc/self/status").unwrap_or_default()))?;
    let lcore =
        if cpu < MAX_LCORE { ["-l".to_owned(), cpu.to_string()] } else { ["--lcores".to_owned(), format!("0@{cpu}")] };
    Some((args.iter().cloned().chain(lcore).collect(), cpu))
}

/// The first CPU in the affinity of a process, from its status file.
fn first_cpu(status: &str) -> Option<u32> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_first_cpu_is_found() {
        let status =
            |list: &str| format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{list}\nMems_allowed:\t1\n");
        assert_eq!(first_cpu(&status("0-1")), Some(0));
        assert_eq!(first_cpu(&status("12,14-15")), Some(12));
        assert_eq!(first_cpu("Name:\tx\n"), None);
    }

    #[test]
    fn lcores_are_chosen_once() {
        for given in ["-l 1", "-l1", "--lcores=1@0", "--lcores 1", "-c 2", "-c2", "--no-pci -l 0,1"] {
            assert_eq!(with_one_lcore(&args(given)), None, "{given}");
        }
        let (with, cpu) = with_one_lcore(&args("--no-pci --legacy-mem --create-uio-dev")).unwrap();
        assert_eq!(with, args(&format!("--no-pci --legacy-mem --create-uio-dev -l {cpu}")));
        assert_eq!(with_one_lcore(&args("--main-lcore 3")).unwrap(), (args("--main-lcore 3 -l 3"), 3));
    }
}

//! Tests of `make bench`: a short run of every kind of step, and all pages written from its results.

mod carry_out;
mod comparisons;
mod disks;
mod fio;
mod guest_disks;
mod guests;
mod machine;
mod matrix;
mod namespaces;
mod pages;
mod plots;
mod programs;
mod results;
mod rig;
mod tables;
mod testpmd;

#[path = "../support/mod.rs"]
mod support;

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use comparisons::{Comparison, Peer};
use matrix::{Block, Far, GOALS, Port, Scope, Section, Server, Step, X};
use results::{Latency, Results, Sample};

#[test]
fn lists_of_cpus_are_read() {
    assert_eq!(machine::range("0-1\n"), Some(vec![0, 1]));
    assert_eq!(machine::range("3,5-7"), Some(vec![3, 5, 6, 7]));
    assert_eq!(machine::range("none"), None);
}

#[test]
fn the_machine_is_known() {
    let machine = machine::describe();
    assert!(machine.cpus > 0 && machine.memory_gib > 0, "{machine:?}");
    let texts = [&machine.date, &machine.cpu, &machine.system, &machine.kernel, &machine.version, &machine.rustc];
    assert!(texts.iter().all(|text| !text.is_empty()), "{machine:?}");
}

#[test]
fn the_rate_is_found_in_testpmd_s_statistics() {
    let text = "\n  ######## NIC statistics for port 0  ########\n  RX-packets: 10 RX-missed: 0\n\n  Throughput (since last \
                show)\n  Rx-pps:     25123456          Rx-bps:  27736295424\n  Tx-pps:     1          Tx-bps:  2\n";
    assert_eq!(testpmd::received_per_second(text), Some(25_123_456.0));
    assert_eq!(testpmd::received_per_second("Tx-pps: 1"), None);
}

#[test]
fn json_of_one_and_of_many_becomes_samples() {
    let one = r#"{"test":"write-lat","size":64,"qps":1,"mtu":4096,"seconds":0.5,"messages":10,"msg_rate":20.0,
        "bw_gbps":0.5,"lat_us":{"min":1,"p50":2,"p99":3,"p99_9":4,"p99_99":5,"max":6,"mean":2},"bulk_gbps":7.5}"#;
    let latency = Latency { min: 1.0, p50: 2.0, p99: 3.0, p99_9: 4.0, p99_99: Some(5.0), max: 6.0 };
    let wanted =
        Sample { rate: 20.0, gbps: 0.5, mtu: 4096, latency: Some(latency), bulk_gbps: Some(7.5), cpu_us: None };
    assert_eq!(rig::samples(one), Ok(vec![(64.0, wanted)]));
    let two = r#"[{"size":2,"mtu":1024,"msg_rate":1.0,"bw_gbps":1},{"size":4,"mtu":1024,"msg_rate":2.0,"bw_gbps":1}]"#;
    let sizes: Vec<f64> = rig::samples(two).expect("an array").iter().map(|(size, _)| *size).collect();
    assert_eq!(sizes, [2.0, 4.0]);
    assert!(rig::samples("nothing").is_err());
    let nothing = rig::samples(r#"{"size":2,"mtu":1024,"msg_rate":0.0,"bw_gbps":0.0}"#);
    assert!(nothing.is_err(), "a run in which nothing happened is no figure");
}

#[test]
fn json_of_nvme_loads_and_of_fio_becomes_samples() {
    let load = r#"{"test":"nvme","size":512,"mtu":4096,"iops":20.0,"bw_gbps":0.5}"#;
    assert_eq!(rig::samples(load).map(|all| all[0].1.rate), Ok(20.0));
    let fio = "fio: a warning\n{\"jobs\": [{\"read\": {\"iops\": 1000.5, \"bw_bytes\": 125000000}}]}";
    assert_eq!(fio::sample(fio), Ok(Sample { rate: 1000.5, gbps: 1.0, ..Sample::default() }));
    let write = r#"{"jobs":[{"read":{"iops":0.0,"bw_bytes":0},"write":{"iops":100.0,"bw_bytes":125000000,"clat_ns":{"min":1000,
        "max":6000,"percentile":{"50.000000":2000,"99.000000":3000,"99.900000":4000,"99.990000":5000}}}}]}"#;
    let latency = Latency { min: 1.0, p50: 2.0, p99: 3.0, p99_9: 4.0, p99_99: Some(5.0), max: 6.0 };
    assert_eq!(fio::sample(write), Ok(Sample { rate: 100.0, gbps: 1.0, latency: Some(latency), ..Sample::default() }));
    assert_eq!(["randread 4096 32", "randread 4096 x"].map(fio::depth), [Some(32), None]);
    assert!(fio::options("randread 4096").is_err());
    assert!(fio::sample(&fio.replace("1000.5", "0")).is_err(), "a run in which nothing happened");
    assert!(fio::sample("fio: engine io_uring not loadable").is_err());
}

/// Most of the output of ib_write_bw and ib_write_lat of perftest 6.06.
const WRITE_BW: &str = "\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : rxe0
 Number of qps   : 1\t\tTransport type : IB
 TX depth        : 128
 CQ Moderation   : 1
 Mtu             : 1024[B]
 local address: LID 0000 QPN 0x0011 PSN 0x17e1e6 RKey 0x00023c VAddr 0x00563df2d5f000
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      200              10.75              9.50   \t\t   0.000152
";
const WRITE_LAT: &str = " Mtu             : 1024[B]
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 64      2000          335.03         7161.48      728.14   \t       1000.00     \t819.00 \t\t4065.87 \t\t7123.91
";

#[test]
fn what_perftest_prints_becomes_a_sample() {
    let sample = guests::sample(WRITE_BW).expect("a row");
    assert!((sample.rate - 152.0).abs() < 1e-6 && (sample.gbps - 152.0 * 65536.0 * 8e-9).abs() < 1e-9, "{sample:?}");
    assert_eq!((sample.mtu, sample.latency), (1024, None));
    let sample = guests::sample(WRITE_LAT).expect("a row");
    let latency = Latency { min: 335.03, p50: 728.14, p99: 4065.87, p99_9: 7123.91, p99_99: None, max: 7161.48 };
    assert_eq!((sample.rate, sample.latency), (1000.0, Some(latency)));
    let head = WRITE_BW.lines().take(9).collect::<Vec<_>>().join("\n");
    assert_eq!(guests::sample(&head), None, "a head without a row");
    let void = WRITE_BW.replace("0.000152", "0.000000");
    assert_eq!(guests::sample(&void), None, "a run in which nothing happened");
    assert!(!guests::is_void(&void), "without the reason");
    let why = "Correlation coefficient r^2: 0.83 < 0.9\n";
    let behind = format!("{}{why}", WRITE_BW.trim_end());
    assert_eq!(guests::sample(&behind), guests::sample(WRITE_BW), "behind the row");
    assert!(guests::is_void(&format!("{void}{why}")) && !guests::is_void(&format!("{WRITE_BW}{why}")));
}

/// The end of the output of `ucx_perftest -f` of UCX 1.13.
const UCX: &str = "\
+--------------+--------------+------------------------------+---------------------+-----------------------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                      300000      1.392     4.900     4.927       12.50      12.39      204800      202984
";

#[test]
fn what_ucx_perftest_prints_becomes_a_sample() {
    let sample = programs::ucx_sample(UCX).expect("a row");
    assert_eq!(sample.rate, 202_984.0);
    assert!((sample.gbps - 12.39 * 1_048_576.0 * 8e-9).abs() < 1e-9, "{sample:?}");
    let final_row = format!("[thread 0] 60000 1 2 3\n{}", UCX.replace("      300000", "Final: 300000"));
    assert_eq!(programs::ucx_sample(&final_row), Some(sample));
    assert_eq!(programs::ucx_sample(&UCX.replace("202984", "0")), None, "a run in which nothing happened");
    assert_eq!(programs::ucx_sample(UCX.rsplit_once('+').unwrap().0), None, "a head without a row");
}

#[test]
fn a_listening_socket_is_found_by_its_port() {
    let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
                 0: 00000000:4853 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0\n   \
                 1: 0100610A:3419 0200610A:B0CC 01 00000000:00000000 00:00000000 00000000     0\n";
    assert!(namespaces::listening(table, 18_515));
    assert!(!namespaces::listening(table, 13_337), "that one is connected");
}

#[test]
fn commands_of_comparisons_say_how_many_messages_they_send() {
    for comparison in &comparisons::ALL {
        let counts: Vec<_> = comparison.commands().map(comparisons::messages).collect();
        assert!(
            counts[0].is_some_and(|count| count > 0) && counts.iter().all(|count| *count == counts[0]),
            "{counts:?}"
        );
    }
    assert_eq!(comparisons::messages("ib_send_bw -s 64"), None);
}

/// Results of a comparison with these figures, one for each round.
fn compared(comparison: &Comparison, base: &[f64], ours: &[f64]) -> Results {
    let mut results = Results::new(machine::describe(), String::new());
    for (command, figures) in [(comparison.base, base), (comparison.ours, ours)] {
        let runs = &mut results.figure_mut(Section::Programs, &comparison.row(command), 0.0, command).runs;
        runs.extend(figures.iter().map(|figure| Sample {
            rate: figure * 1e6,
            gbps: *figure,
            cpu_us: Some(*figure),
            ..Sample::default()
        }));
    }
    results
}

#[test]
fn ratios_of_programs_are_those_of_runs_of_one_round() {
    // The machine becomes faster from round to round.
    let (rate, cpu) = (&comparisons::ALL[0], &comparisons::ALL[2]);
    assert_eq!((rate.measure, cpu.measure), (comparisons::Measure::Rate, comparisons::Measure::Cpu));
    let results = compared(rate, &[1.0, 2.0, 4.0], &[2.5, 4.0, 7.0]);
    assert_eq!(tables::others::ratios(&results, rate, rate.ours), [2.5, 2.0, 1.75]);
    let row = |comparison: &Comparison, results: &Results| {
        let table = tables::programs(results);
        let mut rows = table.lines().filter(|line| {
            line.starts_with(&format!("| {} |", comparison.work))
                && line.contains(&format!("| `{}` |", comparison.ours))
        });
        rows.next_back().unwrap_or_else(|| panic!("{table}")).to_owned()
    };
    let text = row(rate, &results);
    let figures =
        "| 2.00 M/s (1.00 to 4.00) | `ib_send_bw -e -s 64 -n 300000` | 4.00 M/s (2.50 to 7.00) | 2.00 (1.75 to 2.50) |";
    assert!(text.contains(figures) && text.ends_with(" | at least 2.00: reached |"), "{text}");
    let text = row(rate, &compared(rate, &[1.0], &[1.9]));
    assert!(text.ends_with(" | 1.90 (1.90 to 1.90) | at least 2.00: **missed** |"), "{text}");
    let text = row(cpu, &compared(cpu, &[1.0], &[1.2]));
    assert!(text.ends_with(" | at most 1.20: reached |"), "{text}");
    let text = row(cpu, &compared(cpu, &[1.0], &[1.3]));
    assert!(text.contains("| 1.30 us (1.30 to 1.30) |") && text.ends_with(" | at most 1.20: **missed** |"), "{text}");
    // What failed has its message, and no ratio.
    let mut results = compared(rate, &[1.0], &[]);
    let figure = results.figure_mut(Section::Programs, &rate.row(rate.ours), 0.0, rate.ours);
    figure.failures.push("no such device\nwith more".to_owned());
    assert!(row(rate, &results).ends_with(" | - | - | at least 2.00 |"));
    assert!(tables::programs(&results).contains("\nNot all of it was measured: no such device\n"));
}

#[test]
fn a_ratio_above_one_says_that_rxe_target_is_the_faster_one() {
    let mut results = Results::new(machine::describe(), String::new());
    let [(rate, _), .., (time, _)] = matrix::CLIENTS;
    for (server, faster) in [(Server::Kernel, 1.0), (Server::Target, 2.0)] {
        let sample = Sample { rate: 5000.0 * faster, mtu: 1024, ..Sample::default() };
        results.figure_mut(Section::Kernel, &matrix::client_row(server, rate), 0.0, "").runs.push(sample);
        let latency = Some(Latency { p50: 700.0 / faster, ..Latency::default() });
        let sample = Sample { rate: 1.0, latency, ..Sample::default() };
        results.figure_mut(Section::Kernel, &matrix::client_row(server, time), 0.0, "").runs.push(sample);
    }
    assert_eq!([rate, time].map(|work| tables::beside_kernel(&results, Section::Kernel, work)), [Some(2.0), Some(2.0)]);
    let table = tables::kernel(&results);
    for row in [
        format!("| {rate} | `ib_write_bw -s 64 -n 6000` | 5.00 k/s (5.00 to 5.00) | 10.0 k/s (10.0 to 10.0) | 2.00 |"),
        format!("| {time} | `ib_send_lat -s 64 -n 1000` | 700 us (700 to 700) | 350 us (350 to 350) | 2.00 |"),
    ] {
        assert!(table.contains(&row), "{row}: {table}");
    }
    // A failure has its message, and no ratio.
    let figure = results.figure_mut(Section::Kernel, &matrix::client_row(Server::Target, rate), 0.0, "");
    figure.runs.clear();
    figure.failures.push("the guest is gone\nwith more".to_owned());
    let table = tables::kernel(&results);
    assert!(table.ends_with("\nNot all of it was measured: the guest is gone\n"), "{table}");
    assert_eq!(tables::beside_kernel(&results, Section::Kernel, rate), None);
}

fn scope(sections: &[Section]) -> Scope {
    Scope { sections: sections.to_vec(), targets: 1, seconds: 0.5, rounds: matrix::ROUNDS }
}

#[test]
fn the_whole_matrix_is_to_take_less_than_seventeen_minutes_on_two_cores() {
    let scope = scope(&Section::chosen(&[]));
    let seconds = matrix::seconds(&matrix::blocks(&scope), &scope);
    assert!((300.0..1020.0).contains(&seconds), "{seconds}");
}

#[test]
fn more_cpus_are_more_lcores() {
    let targets = |targets| {
        let blocks = matrix::blocks(&Scope { targets, rounds: [1, 1], ..scope(&[Section::Lcores]) });
        let far = |block: &Block| match block.far {
            Far::Target { lcores, queues, .. } => (lcores, queues),
            _ => panic!("{block:?}"),
        };
        blocks.iter().map(far).collect::<Vec<_>>()
    };
    assert_eq!(targets(1), [(1, 1), (1, 1)]);
    assert_eq!(targets(5), [(1, 1), (1, 1), (2, 1), (2, 2), (4, 1), (4, 4)]);
}

/// Results of every step of the matrix, with figures that are made up.
fn made_up() -> Results {
    let scope = Scope { targets: 3, ..scope(&Section::all()) };
    let machine = results::Machine { cpus: 4, ..machine::describe() };
    let mut results = Results::new(machine, "make bench".to_owned());
    for (n, step) in matrix::blocks(&scope).iter().flat_map(|block| &block.steps).enumerate() {
        let sizes = if step.x == X::Size { (1..=23).map(|power| f64::from(1 << power)).collect() } else { vec![64.0] };
        for size in sizes {
            let p50 = 1.0 + size / 1e4;
            let latency =
                Latency { min: 0.5, p50, p99: 2.0 * p50, p99_9: 3.0 * p50, p99_99: Some(4.0 * p50), max: 5.0 * p50 };
            let rate = 1e7 / p50 * (1.0 + n as f64 / 1000.0);
            let sample = Sample {
                rate,
                gbps: rate * size * 8e-9,
                mtu: 4096,
                latency: Some(latency),
                bulk_gbps: Some(9.0),
                cpu_us: Some(1e6 / rate),
            };
            let x = if let X::At(x) = step.x { x } else { size };
            results.figure_mut(step.section, &step.row, x, &step.words).runs.push(sample);
        }
    }
    results
}

#[test]
fn every_figure_has_its_place_on_the_pages() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("bench-pages/docs");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let results = made_up();
    assert!(results.complete() && results.sections() == Section::all());
    let file = folder.join("results.json");
    std::fs::create_dir_all(&folder).unwrap();
    results.write(&file).unwrap();
    pages::write(&Results::read(&file).unwrap(), &docs, &folder).unwrap();
    let page = std::fs::read_to_string(folder.join("performance.md")).unwrap();
    for goal in &GOALS {
        assert!(page.contains(&format!("| {} | `{}` |", goal.row, goal.words)), "{}: {page}", goal.row);
    }
    for row in ["| 8 MiB |", "| 16384 |", "| 100000 |", "| 0.01 |", "| beside 8 QPs of 1 MiB READs |", "| 4 KiB |"] {
        assert!(page.contains(row), "{row}: {page}");
    }
    let readme = std::fs::read_to_string(folder.join("../README.md")).unwrap();
    let summary = tables::summary(&results);
    assert!(page.contains(&summary) && readme.contains(&summary), "{summary}");
    for row in matrix::SUMMARY {
        assert!(GOALS.iter().any(|goal| goal.row == row) && summary.contains(&format!("| {row}")), "{row}: {summary}");
    }
    let parts = page.matches("<!-- bench:end -->").count();
    let empty = page.matches(" -->\n<!-- bench:end -->").count();
    assert!(parts >= 10 && empty == 0, "{page}");
    for plot in page.split("](plots/").skip(1).filter_map(|rest| rest.split(')').next()) {
        let svg = std::fs::read_to_string(folder.join("plots").join(plot)).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains("<polyline"), "{plot}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{plot}: {svg}");
    }
    assert_eq!(page.matches("](plots/").count(), 8);
    for (work, words) in matrix::CLIENTS {
        assert!(page.contains(&format!("| {work} | `{words}` | ")), "{work}: {page}");
    }
    for (work, words) in disks::LOADS {
        assert!(page.contains(&format!("| {work} | `{words}` | ")), "{work}: {page}");
    }
    for goal in &disks::GOALS {
        assert!(page.contains(&format!("| {} | `{}` | ", goal.row, goal.options)), "{}: {page}", goal.row);
        assert!(tables::others::beside_limit(&results, goal).is_some_and(|ratio| ratio > 0.0), "{}", goal.row);
    }
    for comparison in &comparisons::ALL {
        assert!(page.contains(&format!("| {} | `{}` | ", comparison.work, comparison.base)), "{page}");
    }
    let ports = std::fs::read_to_string(folder.join("choosing-a-port.md")).unwrap();
    for port in matrix::PORTS {
        assert!(ports.contains(&format!("| {port} |")), "{port}: {ports}");
    }
    // Two CPUs are one for each end: no lcores to compare, and no plot of them.
    let mut two = results.clone();
    two.figures.retain(|figure| figure.section != Section::Lcores || figure.x == 1.0);
    two.machine.cpus = 2;
    pages::write(&two, &docs, &folder).unwrap();
    let page = std::fs::read_to_string(folder.join("performance.md")).unwrap();
    assert!(
        page.contains("The machine has 2 CPUs, one for each end") && !page.contains("](plots/lcores.svg)"),
        "{page}"
    );
    // A step that cannot run has the reason in its place.
    let mut failed = results;
    for (test, _) in matrix::PORT_TESTS {
        let figure = failed.figure_mut(Section::Ports, &matrix::port_row(Port::AfXdp, test), 0.0, "");
        figure.runs.clear();
        figure.failures.push("no such device".to_owned());
    }
    assert!(!failed.complete() && tables::ports(&failed).contains("does not run here: no such device"));
}

#[test]
fn medians_and_ratios_are_what_they_are_called() {
    let mut results = Results::new(machine::describe(), String::new());
    let goal = &GOALS[4];
    assert_eq!((goal.row, goal.frame), ("64 KiB WRITE, MTU 4096, 8 QPs", 4096));
    for rate in [3.0, 1.0, 2.0] {
        let sample = Sample { rate, mtu: 4096, gbps: rate, ..Sample::default() };
        results.figure_mut(Section::Rows, goal.row, 0.0, "").runs.push(sample);
        let frames = Sample { rate: 64.0, mtu: 4096, ..Sample::default() };
        results.figure_mut(Section::Rows, matrix::ECHO, 4096.0, "").runs.push(frames);
    }
    // Two messages of sixteen packets.
    assert_eq!(tables::ratio(&results, goal, matrix::ECHO), Some(0.5));
    let figure = results.figure(Section::Rows, goal.row, 0.0).unwrap();
    assert_eq!((figure.gbps(), figure.range(|sample| Some(sample.gbps))), (Some(2.0), Some((1.0, 3.0))));
    assert!((tables::go_back_n(0.01, 256.0) - 0.2789).abs() < 1e-3);
}

/// Held by tests that keep all CPUs busy.
static CPUS: Mutex<()> = Mutex::new(());

/// All CPUs for one test at a time, and nothing measured yet; `None`, which CI does not take, where there are too few.
fn all_cpus() -> Option<(MutexGuard<'static, ()>, rig::Rig, Results)> {
    let cpus = match machine::cpus(&[]) {
        Ok(cpus) => cpus,
        Err(why) => {
            assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
            eprintln!("SKIPPED: {why}");
            return None;
        }
    };
    let alone = CPUS.lock().unwrap_or_else(PoisonError::into_inner);
    Some((alone, rig::Rig::new(cpus).unwrap(), Results::new(machine::describe(), String::new())))
}

/// A bit of everything that needs DPDK's ports.
#[test]
fn every_kind_of_step_yields_a_figure() {
    let Some((_alone, rig, mut results)) = all_cpus() else { return };
    let step = |row: &str, words: &str| Step {
        section: Section::Rows,
        row: row.to_owned(),
        x: X::At(0.0),
        // A far end that waits for a CPU loses packets, and the retransmission takes a few timeouts of 67 ms.
        words: if row == "testpmd" { words.to_owned() } else { format!("{words} -D 0.5 --warm-up 0.05") },
        sizes: 1,
    };
    let target = |lcores| Far::Target { lcores, queues: lcores, options: Vec::new() };
    let options = vec!["--region".to_owned(), "many=4K*1000".to_owned()];
    let with_regions = Far::Target { lcores: 1, queues: 1, options };
    for (port, far, row, words) in [
        (Port::Vhost, target(1), "write", "write-bw -s 64 -q 2"),
        (Port::Vhost, target(2), "two queues", "read-lat -s 64"),
        (Port::Vhost, with_regions, "regions", "write-bw -s 64 --region many --regions 1000"),
        (Port::Vhost, Far::Disks, "memory", &disks::GOALS[0].words()),
        (Port::Vhost, Far::Disks, "little memory", &disks::GOALS[1].words()),
        (Port::Vhost, Far::Disks, "file", &disks::GOALS[5].words()),
        (Port::Vhost, Far::Reflector, "echo", "echo -s 64"),
        (Port::Vhost, Far::Testpmd, "testpmd", "5tswap 138"),
        (Port::Vhost, Far::Testpmd, "testpmd", "one-way 4170"),
        (Port::Memif, target(1), "memif", "write-bw -s 4096"),
        (Port::AfPacket, target(1), "af_packet", "write-bw -s 64"),
        (Port::AfPacket, Far::Testpmd, "testpmd", "macswap 138"),
    ] {
        let block = Block { port, far, steps: vec![step(row, words)] };
        carry_out::block(&rig, &block, &mut results);
    }
    assert!(results.complete(), "{:?}", results.figures);
    assert_eq!(results.figures.iter().map(|figure| figure.runs.len()).sum::<usize>(), 12);
    let time = results.figure(Section::Rows, "two queues", 0.0).and_then(|figure| figure.latency(|l| l.p50));
    assert!(time.is_some_and(|p50| p50 > 0.0));
}

/// A run against either server, in guests.
#[test]
fn a_kernel_s_client_is_served_by_a_kernel_and_by_rxe_target() {
    let Some((_alone, rig, mut results)) = all_cpus() else { return };
    let works = [
        ("rate", "ib_write_bw -s 64 -n 200"),
        ("time", "ib_send_lat -s 64 -n 100"),
        ("disk", "fio randwrite 4096 32"),
        ("time of a disk", "fio randread 4096 1"),
    ];
    // The kernel again: its server comes back after rxe-target.
    for server in [Server::Kernel, Server::Target, Server::Kernel] {
        let step = |(work, words): (&str, &str)| Step {
            section: Section::Kernel,
            row: matrix::client_row(server, work),
            x: X::At(0.0),
            words: words.to_owned(),
            sizes: 1,
        };
        let block = Block { port: Port::AfPacket, far: Far::Guest(server), steps: works.map(step).to_vec() };
        carry_out::block(&rig, &block, &mut results);
    }
    assert!(results.complete(), "{:?}", results.figures);
    assert_eq!(results.figures.iter().map(|figure| figure.runs.len()).sum::<usize>(), 12);
    for work in works.map(|(work, _)| work) {
        assert!(tables::beside_kernel(&results, Section::Kernel, work).is_some_and(|ratio| ratio > 0.0), "{work}");
    }
}

/// A run of each program in a namespace, beside rxe-target and beside its own server.
#[test]
fn programs_in_two_namespaces_yield_a_rate_and_their_cpu_time() {
    let Some((_alone, rig, mut results)) = all_cpus() else { return };
    let mut count = 0;
    for (peer, words) in [
        (Peer::Target, &["rxe-bench write-bw -s 64 -n 2000", "ib_write_bw -s 64 -n 2000"][..]),
        (Peer::Target, &["rxe-bench send-bw -s 5000 -n 500", "ib_send_bw -s 5000 -n 500"]),
        (Peer::Same, &["ib_send_bw -e -s 64 -n 2000", "ib_write_bw -s 64 -n 2000"]),
        (Peer::Same, &["ucx_perftest -t tag_bw -s 64 -n 2000 -O 128 -E sleep"]),
    ] {
        if words[0].starts_with("ucx_perftest") && !Path::new("/usr/bin/ucx_perftest").exists() {
            eprintln!("SKIPPED: there is no ucx_perftest: apt install ucx-utils");
            continue;
        }
        let step = |words: &&str| Step {
            section: Section::Programs,
            row: format!("{peer:?}: {words}"),
            x: X::At(0.0),
            words: (*words).to_owned(),
            sizes: 1,
        };
        let block = Block { port: Port::AfPacket, far: Far::Program(peer), steps: words.iter().map(step).collect() };
        carry_out::block(&rig, &block, &mut results);
        count += words.len();
    }
    assert!(results.complete(), "{:?}", results.figures);
    assert_eq!(results.figures.len(), count);
    for figure in &results.figures {
        let rate = figure.mega().unwrap_or_default();
        let cpu = figure.median(|sample| sample.cpu_us).unwrap_or_default();
        assert!(figure.runs.len() == 1 && rate > 0.0 && cpu > 0.0, "{figure:?}");
    }
    // A run that fails leaves no figure of its round.
    let words = ["rxe-bench write-bw -s 64 -n 100", "ib_no_such_program -n 100"];
    let step = |words: &str| Step {
        section: Section::Programs,
        row: format!("fails: {words}"),
        x: X::At(0.0),
        words: words.to_owned(),
        sizes: 1,
    };
    let block = Block { port: Port::AfPacket, far: Far::Program(Peer::Target), steps: words.map(step).to_vec() };
    let mut results = Results::new(machine::describe(), String::new());
    carry_out::block(&rig, &block, &mut results);
    let [figure] = &results.figures[..] else { panic!("{:?}", results.figures) };
    assert!(figure.runs.is_empty() && figure.failures[0].contains("ib_no_such_program"), "{figure:?}");
}

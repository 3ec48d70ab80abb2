//! What programs do with their process: signals, exit, CPUs. Some are in C, in `programs`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rxe_testkit::process::run;

use crate::Check;
use crate::case::Case;
use crate::pair::LIMIT;
use crate::place::{Place, expect_code};

/// All cases.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("process/a signal handler posts work requests while memory is registered", handler),
        Case::new("process/messages are exchanged while memory is registered", registers),
        Case::new("process/a library destroys its objects at the end", |place| exits(place, false)),
        Case::new("process/a thread of a library destroys its objects at the end", |place| exits(place, true)),
        Case::new("process/a thread that is pinned shares its CPU with no thread of the library", pinned),
        Case::new("process/a child uses memory that is registered after ibv_fork_init", |place| forks(place, false)),
        Case::new("process/a child uses memory that is registered with RDMAV_FORK_SAFE", |place| forks(place, true)),
        Case::new("process/polls of a library that was loaded as a plugin yield the CPU", polls),
    ]
}

/// Compiles a program of the folder `programs` with these arguments.
fn compile(place: &Place, source: &str, output: &Path, arguments: &[&str]) -> Check {
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/verbs/programs").join(source);
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Werror", "-o"]).arg(output).arg(source).args(arguments).current_dir(place.work());
    let done = run(&mut command, LIMIT)?;
    expect_code(&done, 0).map_err(|why| format!("apt install gcc libibverbs-dev: {why}"))
}

fn handler(place: &Place) -> Check {
    let program = place.work().join("handler");
    compile(place, "handler.c", &program, &["-libverbs"])?;
    let done = run(&mut place.program(place.address(), &program.display().to_string()), LIMIT)?;
    expect_code(&done, 0)?;
    if done.stdout == "posted and completed, refused 0\n" { Ok(()) } else { Err(done.stdout) }
}

/// The list of mappings is read without the lock. Under it there were 40 messages for each registration at most, and now there are 200 or
/// more, unless other programs have the CPUs: then the run is made again.
fn registers(place: &Place) -> Check {
    let program = place.work().join("registers");
    compile(place, "registers.c", &program, &["-libverbs", "-lpthread"])?;
    let mut said = String::new();
    for _ in 0..6 {
        let done = run(&mut place.program(place.address(), &program.display().to_string()), LIMIT)?;
        expect_code(&done, 0)?;
        let messages = done.stdout.split(' ').next().and_then(|count| count.parse::<u32>().ok()).unwrap_or(0);
        if messages > 3000 {
            return Ok(());
        }
        said += &done.stdout;
    }
    Err(said)
}

fn exits(place: &Place, by_thread: bool) -> Check {
    // Each case has files of its own, as they run beside each other.
    let name = if by_thread { "holder-thread" } else { "holder" };
    let (program, library) = (place.work().join(format!("{name}-exits")), format!("lib{name}.so"));
    compile(place, "holder.c", &place.work().join(&library), &["-shared", "-fPIC", "-libverbs", "-lpthread"])?;
    let rpath = format!("-Wl,-rpath,{}", place.work().display());
    compile(place, "exits.c", &program, &["-L.", &format!("-l{name}"), &rpath])?;
    let mut command = place.program(place.address(), &program.display().to_string());
    if by_thread {
        command.env("HOLDER_THREAD", "1");
    }
    let begin = Instant::now();
    let done = run(&mut command, LIMIT)?;
    expect_code(&done, 0)?;
    if done.stdout != "deregistered: 0, destroyed: 0, deallocated: 0, closed: 0\n" {
        return Err(format!("{}\n{}", done.stdout, done.stderr));
    }
    // A wait at each of the calls took 40 seconds.
    if begin.elapsed() < Duration::from_secs(10) { Ok(()) } else { Err(format!("it took {:?}", begin.elapsed())) }
}

fn polls(place: &Place) -> Check {
    let program = place.work().join("polls");
    compile(place, "polls.c", &program, &["-ldl"])?;
    let done = run(&mut place.program(place.address(), &program.display().to_string()), LIMIT)?;
    expect_code(&done, 0)?;
    let expected = "provider provider\nwrapped wrapped\nfailed 0, polled 0, started 2\n";
    if done.stdout == expected { Ok(()) } else { Err(done.stdout) }
}

fn forks(place: &Place, by_variable: bool) -> Check {
    let program = place.work().join(if by_variable { "forks-by-variable" } else { "forks" });
    compile(place, "forks.c", &program, &["-libverbs"])?;
    let mut command = place.program(place.address(), &program.display().to_string());
    if by_variable {
        command.env("RDMAV_FORK_SAFE", "1");
    }
    let done = run(&mut command, LIMIT)?;
    expect_code(&done, 0)?;
    if done.stdout == "status 0x700, fork is free\n" { Ok(()) } else { Err(done.stdout) }
}

/// Says whether all threads but the main one, which is pinned when it opens the device, may use all CPUs.
const PINNED: &str = "
import os, time, pyverbs.device as d
everything, pinned = os.sched_getaffinity(0), {min(os.sched_getaffinity(0))}
os.sched_setaffinity(0, pinned)
c = d.Context(name='rxe0')
others = [int(t) for t in os.listdir('/proc/self/task') if int(t) != os.getpid()]
free = lambda: len(others) > 0 and all(os.sched_getaffinity(t) == everything for t in others)
end = time.time() + 30
# A thread frees itself when it begins.
while not free() and time.time() < end: time.sleep(0.01)
print('free' if free() else 'pinned')
";

fn pinned(place: &Place) -> Check {
    let done = run(place.program(place.address(), "/usr/bin/python3 -c").arg(PINNED), LIMIT)?;
    expect_code(&done, 0)?;
    if done.stdout == "free\n" { Ok(()) } else { Err(done.stdout) }
}

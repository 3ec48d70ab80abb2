//! Finding the target, or the program under rxe-run.

use std::env;
use std::io::ErrorKind;

use rxe::CliError;
use rxe_inspect::client::Client;
use rxe_inspect::socket::{self, OtherUser};
use rxe_uverbs::instance::{self, Running, socket_in};

/// The environment's `--file-prefix`.
const PREFIX: &str = "RXE_FILE_PREFIX";

/// Connects to the target with this `--file-prefix`, or that of the environment, or to the program with this process number, or
/// the only target that is running, or the only program.
pub fn find(prefix: Option<String>, pid: Option<u32>) -> Result<Client, CliError> {
    if let Some(pid) = pid {
        return program(&instance::running(), pid);
    }
    let given = prefix.or_else(|| env::var(PREFIX).ok().filter(|prefix| !prefix.is_empty()));
    match given {
        Some(prefix) => target(prefix),
        None => {
            let targets = socket::running();
            if targets.is_empty()
                && let Some(pid) = only_program(&instance::running()).map_err(CliError::new)?
            {
                return program(&instance::running(), pid);
            }
            target(only_one(targets, &socket::of_other_users()).map_err(CliError::new)?)
        }
    }
}

/// The process number of the only program under rxe-run; `None` without any.
fn only_program(running: &[Running]) -> Result<Option<u32>, String> {
    match running {
        [] => Ok(None),
        [one] => Ok(Some(one.info.pid)),
        several => {
            let all: Vec<String> = several.iter().map(|running| running.info.pid.to_string()).collect();
            let all = all.join(", ");
            Err(format!("several programs run under rxe-run ({all}): choose one with --pid; rxe-run --list shows them"))
        }
    }
}

/// Connects to a program.
fn program(running: &[Running], pid: u32) -> Result<Client, CliError> {
    let Some(found) = running.iter().find(|running| running.info.pid == pid) else {
        return Err(CliError::new(format!(
            "no program of this user with process number {pid} runs under rxe-run: rxe-run --list shows them"
        )));
    };
    let path = socket_in(&found.folder);
    Client::connect(&path).map_err(|error| {
        CliError::new(match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                format!(
                    "process {pid} has not opened its RDMA device yet, or has ended: try again when it communicates"
                )
            }
            _ => format!("process {pid} cannot be reached on {} ({error})", path.display()),
        })
    })
}

/// Connects to the target with this `--file-prefix`.
fn target(prefix: String) -> Result<Client, CliError> {
    let path = socket::path(&prefix);
    if prefix.contains('/') || matches!(prefix.as_str(), "" | "." | "..") {
        return Err(CliError::new(format!(
            "--file-prefix '{prefix}' is not valid: use the one that the target was started with"
        )));
    }
    // In another user's folder anyone could answer.
    if let Err(error) = socket::check_folder(&socket::base())
        && error.kind() == ErrorKind::PermissionDenied
    {
        return Err(CliError::new(format!("{error}: remove it, then start the target again")));
    }
    Client::connect(&path).map_err(|error| {
        let path = path.display();
        CliError::new(match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                match socket::of_other_users()
                    .iter()
                    .find(|other| other.prefix.as_ref().is_none_or(|name| *name == prefix))
                {
                    Some(other) => refused(other),
                    None => format!("no target with --file-prefix {prefix} is running: nothing listens on {path}"),
                }
            }
            ErrorKind::PermissionDenied => {
                format!("{path} belongs to another user: run rxe-ctl as the user of the target")
            }
            _ => format!("the target cannot be reached on {path} ({error})"),
        })
    })
}

/// Another user's target is for that user only.
fn refused(other: &OtherUser) -> String {
    let user = &other.user;
    let remedy = format!("run rxe-ctl as that user (sudo -u {user} rxe-ctl ...)");
    match &other.prefix {
        Some(prefix) => format!("the target {prefix} is running as user {user}: permission denied; {remedy}"),
        None => format!(
            "no such target of this user is running, and permission to see those of user {user} is denied: {remedy}"
        ),
    }
}

fn only_one(mut running: Vec<String>, others: &[OtherUser]) -> Result<String, String> {
    match (running.pop(), running.as_slice()) {
        (Some(one), []) => Ok(one),
        (Some(last), others) => {
            let all = [others, &[last]].concat().join(", ");
            Err(format!("several targets are running ({all}): choose one with --file-prefix"))
        }
        (None, _) => Err(match others.first() {
            Some(other) => refused(other),
            None => "no target of this user is running: start rxe-target as the user that runs rxe-ctl".to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use rxe_uverbs::instance::Info;

    use super::*;

    #[test]
    fn only_a_single_program_is_chosen() {
        let running = |pid| Running {
            info: Info { address: [127, 0, 0, 1].into(), device: "rxe0".to_owned(), pid, program: "rping".to_owned() },
            uptime: Duration::ZERO,
            folder: PathBuf::from("/nowhere"),
        };
        assert_eq!(only_program(&[]), Ok(None));
        assert_eq!(only_program(&[running(7)]), Ok(Some(7)));
        assert_eq!(
            only_program(&[running(7), running(8)]),
            Err("several programs run under rxe-run (7, 8): choose one with --pid; rxe-run --list shows them"
                .to_owned())
        );
        let said = |pid| program(&[running(7)], pid).err().unwrap().to_string();
        assert_eq!(
            said(8),
            "no program of this user with process number 8 runs under rxe-run: rxe-run --list shows them"
        );
        assert_eq!(
            said(7),
            "process 7 has not opened its RDMA device yet, or has ended: try again when it communicates"
        );
    }

    #[test]
    fn only_a_single_running_target_is_chosen() {
        let only = |names: &[&str]| only_one(names.iter().map(|name| (*name).to_owned()).collect(), &[]);
        assert_eq!(only(&["rte"]), Ok("rte".to_owned()));
        assert_eq!(
            only(&["a", "b", "c"]),
            Err("several targets are running (a, b, c): choose one with --file-prefix".to_owned())
        );
        assert!(only(&[]).unwrap_err().starts_with("no target of this user is running"));
        let other = |prefix: Option<&str>| OtherUser { user: "ann".to_owned(), prefix: prefix.map(str::to_owned) };
        assert_eq!(
            only_one(Vec::new(), &[other(Some("rte"))]),
            Err("the target rte is running as user ann: permission denied; run rxe-ctl as that user (sudo -u ann rxe-ctl ...)"
                .to_owned())
        );
        assert_eq!(
            only_one(Vec::new(), &[other(None)]),
            Err("no such target of this user is running, and permission to see those of user ann is denied: run rxe-ctl as that user \
                 (sudo -u ann rxe-ctl ...)"
                .to_owned())
        );
        assert_eq!(only_one(vec!["own".to_owned()], &[other(Some("rte"))]), Ok("own".to_owned()));
    }
}

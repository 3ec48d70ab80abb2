//! Finding the target.

use std::io::ErrorKind;

use rxe::CliError;
use rxe_inspect::client::Client;
use rxe_inspect::socket;

/// Connects to the target with this `--file-prefix`, or the only one that is running.
pub fn find(prefix: Option<&str>) -> Result<Client, CliError> {
    let prefix = match prefix {
        Some(prefix) => prefix.to_owned(),
        None => only_one(socket::running()).map_err(CliError::new)?,
    };
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
                format!("no target with --file-prefix {prefix} is running: nothing listens on {path}")
            }
            ErrorKind::PermissionDenied => {
                format!("{path} belongs to another user: run rxe-ctl as the user of the target")
            }
            _ => format!("the target cannot be reached on {path} ({error})"),
        })
    })
}

fn only_one(mut running: Vec<String>) -> Result<String, String> {
    match (running.pop(), running.as_slice()) {
        (Some(one), []) => Ok(one),
        (Some(last), others) => {
            let all = [others, &[last]].concat().join(", ");
            Err(format!("several targets are running ({all}): choose one with --file-prefix"))
        }
        (None, _) => {
            Err("no target of this user is running: start rxe-target as the user that runs rxe-ctl".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_single_running_target_is_chosen() {
        let only = |names: &[&str]| only_one(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(only(&["rte"]), Ok("rte".to_owned()));
        assert_eq!(
            only(&["a", "b", "c"]),
            Err("several targets are running (a, b, c): choose one with --file-prefix".to_owned())
        );
        assert!(only(&[]).unwrap_err().starts_with("no target of this user is running"));
    }
}

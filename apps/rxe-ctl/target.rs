//! Finding the target.

use std::io::ErrorKind;

use rxe_inspect::client::Client;
use rxe_inspect::socket;

use crate::Failure;

/// Calls the target with this `--file-prefix`, or the only one that is running.
pub fn find(prefix: Option<&str>) -> Result<Client, Failure> {
    let prefix = match prefix {
        Some(prefix) => prefix.to_owned(),
        None => only_one(socket::running()).map_err(Failure::Mistake)?,
    };
    let path = socket::path(&prefix);
    if prefix.contains('/') || matches!(prefix.as_str(), "" | "." | "..") {
        return Err(Failure::Mistake(format!("'{prefix}' is no --file-prefix: give the one of the target")));
    }
    // Whose folder it is says who answers there.
    if let Err(error) = socket::check_folder(&socket::base())
        && error.kind() == ErrorKind::PermissionDenied
    {
        return Err(Failure::Mistake(format!("{error}: have it removed, then start the target again")));
    }
    Client::connect(&path).map_err(|error| {
        let path = path.display();
        Failure::Mistake(match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                format!("no target with --file-prefix {prefix} is running: there is nobody behind {path}")
            }
            ErrorKind::PermissionDenied => {
                format!("{path} is another user's: run rxe-ctl as the user that runs the target")
            }
            _ => format!("the target cannot be reached by {path} ({error})"),
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
            Err("no target is running that can be asked: start rxe-target, as the same user as rxe-ctl".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_taken_and_anything_else_is_a_sentence() {
        let only = |names: &[&str]| only_one(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(only(&["rte"]), Ok("rte".to_owned()));
        assert_eq!(
            only(&["a", "b", "c"]),
            Err("several targets are running (a, b, c): choose one with --file-prefix".to_owned())
        );
        assert!(only(&[]).unwrap_err().starts_with("no target is running"));
    }
}

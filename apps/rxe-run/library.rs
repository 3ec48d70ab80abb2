//! Finds the preload library.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use rxe::{CliError, cli_error};

const NAME: &str = "librxe_verbs.so";
/// Environment variable: the path of the library.
const VARIABLE: &str = "RXE_VERBS_LIBRARY";

/// The path of the library: named in the environment, beside this program, or in `../lib/rxe` from there.
///
/// # Errors
/// It is not there, or `LD_PRELOAD` cannot name it.
pub fn find() -> Result<PathBuf, CliError> {
    let named = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    let own = std::env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned)).unwrap_or_default();
    let path = find_from(named, &own)?;
    // The loader takes both for a separator.
    if path.as_os_str().as_encoded_bytes().iter().any(|byte| b": \t\n".contains(byte)) {
        let path = path.display();
        return cli_error!(
            "{path} has a space or colon, which LD_PRELOAD separates names by: move it, or set {VARIABLE}"
        );
    }
    Ok(path)
}

fn find_from(named: Option<OsString>, own: &Path) -> Result<PathBuf, CliError> {
    if let Some(named) = named {
        // The program may change its folder.
        return match PathBuf::from(&named).canonicalize() {
            Ok(path) => Ok(path),
            Err(error) => cli_error!("{VARIABLE} is {named:?}, which cannot be read: {error}"),
        };
    }
    let candidates = [own.join(NAME), own.join("../lib/rxe").join(NAME)];
    match candidates.iter().find_map(|path| path.canonicalize().ok()) {
        Some(path) => Ok(path),
        None => {
            let own = own.display();
            cli_error!(
                "{NAME} is neither in {own} nor in {own}/../lib/rxe: install it there, or set {VARIABLE} to its path"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_in_three_places() {
        let prefix = std::env::temp_dir().join(format!("rxe-run-library-{}", std::process::id()));
        let (bin, lib) = (prefix.join("bin"), prefix.join("lib/rxe"));
        for folder in [&bin, &lib] {
            std::fs::create_dir_all(folder).unwrap();
        }
        let prefix = prefix.canonicalize().unwrap();
        let missing = find_from(None, &bin).unwrap_err();
        assert_eq!(missing.exit_code(), 2);
        assert!(missing.to_string().contains("set RXE_VERBS_LIBRARY to its path"), "{missing}");

        std::fs::write(lib.join(NAME), "").unwrap();
        assert_eq!(find_from(None, &bin).unwrap(), prefix.join("lib/rxe/librxe_verbs.so"));
        std::fs::write(bin.join(NAME), "").unwrap();
        assert_eq!(find_from(None, &bin).unwrap(), prefix.join("bin/librxe_verbs.so"));
        let named = lib.join(NAME).into_os_string();
        assert_eq!(find_from(Some(named), &bin).unwrap(), prefix.join("lib/rxe/librxe_verbs.so"));
        let wrong = find_from(Some("/no/such.so".into()), &bin).unwrap_err();
        assert!(wrong.to_string().starts_with(r#"RXE_VERBS_LIBRARY is "/no/such.so", which"#), "{wrong}");
        std::fs::remove_dir_all(prefix).unwrap();
    }
}

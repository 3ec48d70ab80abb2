//! Manual pages and shell completions, generated from the definition of a command line.

use std::path::Path;

use clap_complete::Shell;

use crate::cli_error::CliError;

/// Writes the manual pages (section 1, one for each subcommand) and the completions for bash, zsh and fish into `folder`.
///
/// # Errors
/// A file cannot be written.
pub fn generate(mut command: clap::Command, folder: &Path) -> Result<(), CliError> {
    let name = command.get_name().to_owned();
    let write = |command: &mut clap::Command| {
        std::fs::create_dir_all(folder)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, command, &name, folder)?;
        }
        clap_mangen::generate_to(command.clone(), folder)
    };
    write(&mut command).map_err(|error| {
        let folder = folder.display();
        CliError::new(format!(
            "manual pages and completions cannot be written to {folder} ({error}): check its permissions"
        ))
    })
}

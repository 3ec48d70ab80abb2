//! Manual pages and shell completions, generated from the definition of a command line.

use std::fmt::Write;
use std::path::Path;

use clap_complete::Shell;

use crate::cli_error::CliError;

/// What the manual page of a program has besides its command line.
#[derive(Clone, Copy, Debug)]
pub struct Sections {
    /// Sentences with the command that does it.
    pub examples: &'static [(&'static str, &'static str)],
    /// Files with their meaning.
    pub files: &'static [(&'static str, &'static str)],
    /// Other pages: name and section.
    pub see_also: &'static [(&'static str, u8)],
}

/// Writes the manual pages (section 1, one for each subcommand) and the completions for bash, zsh and fish into `folder`.
///
/// # Errors
/// A file cannot be written.
pub fn generate(mut command: clap::Command, sections: &Sections, folder: &Path) -> Result<(), CliError> {
    let name = command.get_name().to_owned();
    let write = |command: &mut clap::Command| {
        std::fs::create_dir_all(folder)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, command, &name, folder)?;
        }
        clap_mangen::generate_to(command.clone(), folder)?;
        complete_pages(&name, sections, folder)
    };
    write(&mut command).map_err(|error| {
        let folder = folder.display();
        CliError::new(format!(
            "manual pages and completions cannot be written to {folder} ({error}): check its permissions"
        ))
    })
}

/// Appends the sections to the pages of the program `name`: all of them to its own page, SEE ALSO to those of subcommands.
fn complete_pages(name: &str, sections: &Sections, folder: &Path) -> std::io::Result<()> {
    let main = format!("{name}.1");
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let file = entry.file_name().to_string_lossy().into_owned();
        let text = if file == main {
            sections.text()
        } else if file.starts_with(&format!("{name}-")) && file.ends_with(".1") {
            see_also(&[(name, 1)])
        } else {
            continue;
        };
        let page = std::fs::read_to_string(entry.path())?;
        std::fs::write(entry.path(), page + &text)?;
    }
    Ok(())
}

impl Sections {
    fn text(&self) -> String {
        let mut text = String::new();
        if !self.files.is_empty() {
            text += ".SH FILES\n";
        }
        for (file, meaning) in self.files {
            let _ = writeln!(text, ".TP\n\\fI{}\\fR\n{}", escaped(file), escaped(meaning));
        }
        text += ".SH EXAMPLES\n";
        for (sentence, command) in self.examples {
            let _ = writeln!(text, "{}\n.PP\n.nf\n.RS\n{}\n.RE\n.fi\n.PP", escaped(sentence), escaped(command));
        }
        text + &see_also(self.see_also)
    }
}

fn see_also(pages: &[(&str, u8)]) -> String {
    let pages: Vec<String> =
        pages.iter().map(|(page, section)| format!("\\fB{}\\fR({section})", escaped(page))).collect();
    format!(".SH SEE ALSO\n{}\n", pages.join(", "))
}

/// Text as troff prints it: a dash is a hyphen, and a line that begins with a dot or a quote is a request.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines =
        text.split('\n').map(|line| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.to_owned() });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_get_the_sections_and_those_of_subcommands_name_the_program() {
        const SECTIONS: Sections = Sections {
            examples: &[("Do it:", "x do --it \\\n.")],
            files: &[("/run/x-y", "What is done.")],
            see_also: &[("x-more", 8), ("y", 1)],
        };
        let folder = std::env::temp_dir().join(format!("rxe-manual-{}", std::process::id()));
        let command = clap::Command::new("x").about("X").subcommand(clap::Command::new("do").about("Does"));
        generate(command, &SECTIONS, &folder).unwrap();
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let expected = ".SH FILES\n.TP\n\\fI/run/x\\-y\\fR\nWhat is done.\n.SH EXAMPLES\nDo it:\n.PP\n.nf\n.RS\nx do \\-\\-it \\e\n\\&.\n\
                        .RE\n.fi\n.PP\n.SH SEE ALSO\n\\fBx\\-more\\fR(8), \\fBy\\fR(1)\n";
        assert!(read("x.1").ends_with(expected), "{}", read("x.1"));
        assert!(read("x-do.1").ends_with(".SH SEE ALSO\n\\fBx\\fR(1)\n"));
        std::fs::remove_dir_all(folder).unwrap();
    }
}

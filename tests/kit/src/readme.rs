//! The commands that documents show and tests execute.

/// The commands of all ```sh blocks that follow `marker` in `text`; a backslash joins lines, comments and empty lines are left
/// out.
///
/// # Errors
/// There is no `marker`, or no block right after one.
pub fn commands(text: &str, marker: &str) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for part in text.split(marker).skip(1) {
        let block = part.trim_start().strip_prefix("```sh\n").and_then(|rest| rest.split_once("\n```"));
        let Some((block, _)) = block else {
            return Err(format!("README.md: no ```sh block right after {marker}"));
        };
        let lines = block.replace("\\\n", " ");
        found.extend(lines.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')).map(str::to_owned));
    }
    if found.is_empty() {
        return Err(format!("README.md: no {marker}"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::commands;

    #[test]
    fn commands_of_marked_blocks_are_found() {
        let text = "# A\n```sh\nnot this\n```\n<!-- m -->\n```sh\none \\\n  1\n# why\n\n two &\n```\ntext\n<!-- m -->\n\n```sh\nthree\n```\n";
        assert_eq!(commands(text, "<!-- m -->").unwrap(), ["one    1", "two &", "three"]);
        assert!(commands(text, "<!-- n -->").unwrap_err().contains("no <!-- n -->"));
        assert!(commands("<!-- m -->\ntext", "<!-- m -->").unwrap_err().contains("no ```sh block"));
    }
}

//! What clap has to complain about, in one line.

/// clap's complaint as one sentence that ends with where to look; `program` is the binary's name.
pub fn sentence(program: &str, error: &clap::Error) -> String {
    let text = error.to_string();
    let body = text.split("\n\nUsage:").next().unwrap_or(&text);
    let body = body.split("\n\nFor more information").next().unwrap_or(body);
    let body = body.strip_prefix("error: ").unwrap_or(body).replace("\n\n  tip: ", "; ");
    let line = body.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{line} (see {program} --help)")
}

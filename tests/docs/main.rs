//! The hand-written pages: links lead somewhere, the walkthrough names functions that exist, and the service table exists once.

mod faults;
mod limits;
mod package;
mod protocol;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All pages of documentation.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docker/README.md"].map(PathBuf::from).to_vec();
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name();
        if Path::new(&name).extension().is_some_and(|extension| extension == "md") {
            pages.push(Path::new("docs").join(name));
        }
    }
    pages
}

/// The lines of a page outside of fenced blocks.
fn prose(page: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    page.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let anchor = |heading: &str| heading.to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-");
    headings.map(anchor).collect()
}

/// The links of a page to other files and to its own headings.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let links = prose(page).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| rest.split(')').next());
    links.filter(|link| !link.contains("://"))
}

#[test]
fn links_between_pages_resolve() {
    let mut count = 0;
    for page in pages() {
        let text = read(&page);
        let folder = page.parent().unwrap();
        for link in links(&text) {
            count += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { folder.join(path) };
            assert!(root().join(&target).exists(), "{}: the link {link} leads to no file", page.display());
            if !anchor.is_empty() {
                let found = anchors(&read(&target)).contains(anchor);
                assert!(found, "{}: the link {link} leads to no heading", page.display());
            }
        }
    }
    assert!(count > 100, "{count} links");
}

#[test]
fn pages_keep_their_length() {
    for (page, most) in [("README.md", 125), ("docs/walkthrough.md", 120), ("docs/architecture.md", 240)] {
        let lines = read(page).lines().count();
        assert!(lines <= most, "{page} has {lines} lines, {most} are allowed");
    }
}

#[test]
fn the_walkthrough_names_functions_that_exist() {
    let text = read("docs/walkthrough.md");
    let mut file = None;
    let mut functions = 0;
    // Text and code take turns: a function is in the file that was named last.
    for code in text.split('`').skip(1).step_by(2) {
        if code.ends_with(".rs") {
            file = Some((code, read(code)));
        } else if let Some(name) = code.strip_prefix("fn ") {
            let (path, source) = file.as_ref().expect("a file before the first function");
            let found = ["(", "<"].iter().any(|end| source.contains(&format!("fn {name}{end}")));
            assert!(found, "docs/walkthrough.md: there is no fn {name} in {path}");
            functions += 1;
        }
    }
    assert!(functions >= 30, "{functions} functions");
    // A step is a line with a number and the lines up to the next one.
    let mut steps: Vec<String> = Vec::new();
    for line in text.lines() {
        match (line.starts_with(|c: char| c.is_ascii_digit()), steps.last_mut()) {
            (true, _) => steps.push(line.to_owned()),
            (false, Some(step)) => step.push_str(line),
            (false, None) => {}
        }
    }
    assert!(steps.len() > 20, "{steps:?}");
    for step in steps {
        assert!(step.contains("`fn "), "docs/walkthrough.md: a step without a function: {step}");
    }
}

#[test]
fn readme_shows_the_figures_of_the_performance_page() {
    let summary = |page: &str| {
        let text = read(page);
        let (_, rest) = text.split_once("<!-- bench:summary -->\n").unwrap_or_else(|| panic!("{page}: no summary"));
        rest.split_once("<!-- bench:end -->").unwrap_or_else(|| panic!("{page}: no end of the summary")).0.to_owned()
    };
    let (readme, page) = (summary("README.md"), summary("docs/performance.md"));
    assert_eq!(readme, page, "`make bench` writes both");
    // Each value is the median in the table of goals.
    let performance = read("docs/performance.md");
    let rows = readme.lines().filter(|line| line.starts_with("| 64"));
    let mut count = 0;
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let name = cells[0].trim_end_matches(", p50");
        let value = format!(" | {} (", cells[1]);
        let found = performance.lines().any(|line| line.starts_with(&format!("| {name} |")) && line.contains(&value));
        assert!(found, "{row}");
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn the_table_of_services_exists_once_and_is_complete() {
    let services = read("docs/services.md");
    let names: Vec<&str> =
        services.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name)).collect();
    let config = read("conf/target.toml");
    let list = config.lines().find_map(|line| line.strip_prefix("#: services = ")).expect("a list of all services");
    let known: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>(), known.iter().collect::<BTreeSet<_>>());
    assert_eq!(names.len(), known.len());
    // A page that has two of these ports beside their services has a second table.
    let mut sources = pages();
    sources.extend(["conf/target.toml", "apps/rxe-target/services/mod.rs"].map(PathBuf::from));
    let with_table = |path: &PathBuf| {
        let text = read(path);
        let has = |name: &str, port: &str| text.lines().any(|line| line.contains(name) && line.contains(port));
        has("rdma-example", "20886") && has("rc-example", "19875")
    };
    let tables: Vec<PathBuf> = sources.into_iter().filter(with_table).collect();
    assert_eq!(tables, [PathBuf::from("docs/services.md")]);
}

//! Writes the generated parts of the pages, and the plots beside them.
//!
//! A part is between `<!-- bench:NAME -->` and `<!-- bench:end -->`; the text around it is written by hand. A part that
//! there are no figures for stays as it is.

use std::path::Path;

use crate::matrix::Section;
use crate::plots;
use crate::results::Results;
use crate::tables;

/// The pages that have such parts, seen from the folder of the first. One part may be on several pages.
const PAGES: [&str; 3] = ["performance.md", "choosing-a-port.md", "../README.md"];
const END: &str = "<!-- bench:end -->";

/// The parts that there are figures for, with those plots that could be drawn.
fn parts(results: &Results, plots: &[(&str, String)]) -> Vec<(&'static str, String)> {
    let sections = results.sections();
    let table = |section, name, make: fn(&Results) -> String, drawn: &[&str]| {
        let drawn = drawn.iter().filter(|name| plots.iter().any(|(plot, _)| plot == *name));
        let images = drawn.map(|plot| format!("\n![{plot}](plots/{plot}.svg)\n")).collect::<String>();
        sections.contains(&section).then(|| (name, make(results) + &images))
    };
    [
        Some(("head", tables::head(results))),
        table(Section::Rows, "summary", tables::summary, &[]),
        table(Section::Rows, "rows", tables::rows, &["ratio"]),
        table(Section::Rows, "limits", tables::limits, &[]),
        table(Section::Sizes, "sizes", tables::sizes, &["rate", "bandwidth"]),
        table(Section::Latency, "latency", tables::latency, &["latency"]),
        table(Section::QueuePairs, "queue-pairs", tables::queue_pairs, &["queue-pairs"]),
        table(Section::Regions, "regions", tables::regions, &["regions"]),
        table(Section::Lcores, "lcores", tables::lcores, &["lcores"]),
        table(Section::Fairness, "fairness", tables::fairness, &[]),
        table(Section::Loss, "loss", tables::loss, &["loss"]),
        table(Section::Ports, "ports", tables::ports, &[]),
        table(Section::Nvmf, "nvmf", tables::nvmf, &[]),
        table(Section::Nvmf, "nvmf-kernel", tables::guest_disks, &[]),
        table(Section::Programs, "programs", tables::programs, &[]),
        table(Section::Kernel, "kernel", tables::kernel, &[]),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The page with the part `name` replaced; `None` where it has none of that name.
fn with_part(page: &str, name: &str, text: &str) -> Option<String> {
    let begin = format!("<!-- bench:{name} -->\n");
    let (before, rest) = page.split_once(&begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}{text}{END}{after}"))
}

/// Writes the pages of the folder `from`, with `results`, to the folder `to`, and the plots; README.md goes to the folder
/// above `to`.
///
/// # Errors
/// A page cannot be read or written, a part has no place, or a plot cannot be drawn.
pub fn write(results: &Results, from: &Path, to: &Path) -> Result<(), String> {
    let folder = to.join("plots");
    let say = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(&folder).map_err(|error| say(&folder, error))?;
    let mut pages = Vec::new();
    for name in PAGES {
        let path = from.join(name);
        pages.push(std::fs::read_to_string(&path).map_err(|error| say(&path, error))?);
    }
    let plots = plots::all(results)?;
    for (name, text) in parts(results, &plots) {
        let mut found = false;
        for page in &mut pages {
            if let Some(written) = with_part(page, name, &text) {
                (*page, found) = (written, true);
            }
        }
        if !found {
            return Err(format!("no page has a place for the part {name}: <!-- bench:{name} --> and {END}"));
        }
    }
    for (name, page) in PAGES.iter().zip(pages) {
        let path = to.join(name);
        std::fs::write(&path, page).map_err(|error| say(&path, error))?;
    }
    for (name, svg) in plots {
        let path = folder.join(format!("{name}.svg"));
        std::fs::write(&path, svg).map_err(|error| say(&path, error))?;
    }
    println!("{}", to.join(PAGES[0]).display());
    Ok(())
}

//! Imports run down only: modules with the same parent never import each other in a circle.
//!
//! An edge of the graph is a `use` of a path in the same crate, followed through re-exports to the module that defines
//! the name. A module and its own parts may import each other; test modules are not looked at. Between crates Cargo
//! allows no circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The sources of each crate and program.
const ROOTS: [&str; 16] = [
    "apps/common",
    "apps/rxe-bench",
    "apps/rxe-ctl",
    "apps/rxe-run/kernel/src",
    "apps/rxe-run/preload/src",
    "apps/rxe-target",
    "rxe-dpdk/adapter/src",
    "rxe-dpdk/inspect/src",
    "rxe-dpdk/nvmf/src",
    "rxe-dpdk/proto/src",
    "rxe-dpdk/service/src",
    "rxe-dpdk/src",
    "rxe-dpdk/storage/src",
    "rxe-dpdk/udp/src",
    "tests/fuzz/src",
    "tests/kit/src",
];

/// The segments of a module's path from the root of its crate.
type Module = Vec<String>;

/// One crate: the `use` declarations of each module, as paths.
struct Sources {
    uses: BTreeMap<Module, Vec<Use>>,
}

/// One path of a `use` declaration.
struct Use {
    path: Vec<String>,
    /// The name that it gets here.
    name: String,
    public: bool,
}

#[test]
fn no_modules_with_the_same_parent_import_each_other_in_a_circle() {
    let mut circles = Vec::new();
    for root in ROOTS {
        let sources = Sources::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(root));
        assert!(sources.uses.len() > 3, "{root} has {} modules: is it the right folder?", sources.uses.len());
        circles.extend(sources.circles().into_iter().map(|circle| format!("{root}: {circle}")));
    }
    assert!(circles.is_empty(), "circles of imports:\n{}", circles.join("\n"));
}

#[test]
fn a_circle_through_a_re_export_is_found() {
    let mut sources = Sources { uses: BTreeMap::new() };
    sources.add(&["a"], "mod one;\nmod two;\npub use two::{Two as Second, other};");
    sources.add(&["a", "one"], "use crate::a::Second;\nuse std::fmt;");
    sources.add(&["a", "two"], "use super::one::{self, One};");
    assert_eq!(sources.circles(), ["a: one -> two -> one"]);
    sources.add(&["a", "two"], "// use super::one::One;\nuse super::Second;");
    assert_eq!(sources.circles(), [""; 0]);
}

impl Sources {
    fn read(root: PathBuf) -> Sources {
        let mut sources = Sources { uses: BTreeMap::new() };
        let mut folders = vec![(root, Module::new())];
        while let Some((folder, module)) = folders.pop() {
            let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            for path in entries.map(|entry| entry.unwrap().path()) {
                let stem = path.file_stem().unwrap().to_str().unwrap();
                let part = |name: &str| module.iter().map(String::as_str).chain([name]).map(str::to_owned).collect();
                if ["tests", "test_env"].contains(&stem) {
                    continue;
                }
                if path.is_dir() {
                    folders.push((path.clone(), part(stem)));
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let of_folder = ["lib", "main", "mod"].contains(&stem);
                    let module: Module = if of_folder { module.clone() } else { part(stem) };
                    let text = std::fs::read_to_string(&path).unwrap();
                    sources.uses.insert(module, uses(&text));
                }
            }
        }
        sources
    }

    fn add(&mut self, module: &[&str], text: &str) {
        self.uses.insert(module.iter().map(|&segment| segment.to_owned()).collect(), uses(text));
    }

    /// The path from the root of the crate that `path` means in `module`; `None` for a path into another crate.
    fn absolute(&self, module: &Module, path: &[String]) -> Option<Module> {
        let mut base = module.clone();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => return Some(rest[1..].to_vec()),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|segment| segment == "super") {
                    base.pop();
                    rest = &rest[1..];
                }
            }
            first => {
                let part: Module = module.iter().cloned().chain([first.to_owned()]).collect();
                if !self.uses.contains_key(&part) {
                    return None;
                }
            }
        }
        base.extend_from_slice(rest);
        Some(base)
    }

    /// The module that defines what `path`, from the root of the crate, names.
    fn defining(&self, path: &Module, depth: usize) -> Option<Module> {
        let known = (0..=path.len()).rev().find(|&len| self.uses.contains_key(&path[..len]))?;
        let (module, rest) = (path[..known].to_vec(), &path[known..]);
        let exported = rest
            .first()
            .and_then(|name| self.uses[&module].iter().find(|import| import.public && import.name == *name))
            .filter(|_| depth < 8)
            .and_then(|import| self.absolute(&module, &import.path))
            .and_then(|target| self.defining(&target, depth + 1));
        Some(exported.unwrap_or(module))
    }

    /// Every circle, as `parent: child -> child -> child`.
    fn circles(&self) -> Vec<String> {
        // By parent: which of its children imports which.
        let mut graphs: BTreeMap<Module, BTreeMap<&str, BTreeSet<String>>> = BTreeMap::new();
        for (module, imports) in &self.uses {
            for import in imports {
                let Some(path) = self.absolute(module, &import.path) else { continue };
                let Some(target) = self.defining(&path, 0) else { continue };
                let common = module.iter().zip(&target).take_while(|(a, b)| a == b).count();
                if common < module.len() && common < target.len() {
                    let graph = graphs.entry(module[..common].to_vec()).or_default();
                    graph.entry(&module[common]).or_default().insert(target[common].clone());
                }
            }
        }
        let mut circles = Vec::new();
        for (parent, graph) in graphs {
            if let Some(circle) = graph.keys().find_map(|start| circle_from(&graph, &mut vec![start])) {
                let parent = if parent.is_empty() { "crate".to_owned() } else { parent.join("::") };
                circles.push(format!("{parent}: {circle}"));
            }
        }
        circles
    }
}

/// The circle that a walk along `path` can close at its start.
fn circle_from<'a>(graph: &'a BTreeMap<&str, BTreeSet<String>>, path: &mut Vec<&'a str>) -> Option<String> {
    for next in graph.get(path.last()?)? {
        if next == path[0] {
            return Some(format!("{} -> {next}", path.join(" -> ")));
        }
        if !path.contains(&next.as_str()) {
            path.push(next);
            let circle = circle_from(graph, path);
            path.pop();
            if circle.is_some() {
                return circle;
            }
        }
    }
    None
}

/// The paths of all `use` declarations of a file outside its inline test module.
fn uses(text: &str) -> Vec<Use> {
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let mut found = Vec::new();
    for statement in code.join("\n").split(';') {
        // The text before the declaration in the same statement ends with a brace or an attribute's bracket.
        let Some(at) = statement.rfind("use ").filter(|&at| {
            let before = statement[..at].trim_end();
            before.is_empty() || before.ends_with(['}', '{', ']', ')']) || before.ends_with("pub")
        }) else {
            continue;
        };
        let before = statement[..at].trim_end();
        let public = before.ends_with("pub") || before.ends_with(')') && before.contains("pub(");
        let mut paths = Vec::new();
        expand(statement[at + 4..].trim(), &mut Vec::new(), &mut paths);
        found.extend(paths.into_iter().map(|(path, name)| Use { path, name, public }));
    }
    found
}

/// Appends the paths of a tree such as `a::{b, c::{self, d as e}}`, with the names that they get.
fn expand(tree: &str, prefix: &mut Vec<String>, paths: &mut Vec<(Vec<String>, String)>) {
    let tree = tree.trim();
    let (head, group) = match tree.split_once('{') {
        Some((head, group)) => (head, group.trim_end().strip_suffix('}')),
        None => (tree, None),
    };
    let (head, alias) = head.split_once(" as ").unwrap_or((head, ""));
    let before = prefix.len();
    let segments = head.split("::").map(str::trim).filter(|segment| !segment.is_empty());
    prefix.extend(segments.filter(|&segment| segment != "self" || before == 0).map(str::to_owned));
    match group {
        Some(group) => {
            for part in split_at_commas(group) {
                expand(part, prefix, paths);
            }
        }
        None => {
            let last = prefix.last().cloned().unwrap_or_default();
            paths.push((prefix.clone(), if alias.is_empty() { last } else { alias.trim().to_owned() }));
        }
    }
    prefix.truncate(before);
}

/// The parts of a group, which commas inside of inner groups do not separate.
fn split_at_commas(group: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}

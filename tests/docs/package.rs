//! The Debian package has every file that its pages link to, at the place where the link leads. Nothing in it names a command that
//! only a checkout has.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{links, read, root};

/// Where the package installs pages.
const DOC: &str = "usr/share/doc/rxe-target/";

/// The files of the repository that the package installs below [`DOC`], in the same tree.
fn shipped() -> BTreeSet<PathBuf> {
    let manifest: toml::Table = read("Cargo.toml").parse().unwrap();
    let assets = manifest["package"]["metadata"]["deb"]["assets"].as_array().unwrap();
    let mut shipped = BTreeSet::new();
    for asset in assets {
        let [source, target] = [0, 1].map(|index| asset[index].as_str().unwrap());
        let Some(target) = target.strip_prefix(DOC).filter(|_| !source.starts_with("target/")) else { continue };
        let source = Path::new(source);
        let folder = source.parent().unwrap();
        assert_eq!(folder, Path::new(target.trim_end_matches('/')), "another tree than here: {}", source.display());
        let name = source.file_name().unwrap().to_str().unwrap();
        let (start, end) = name.split_once('*').unwrap_or((name, ""));
        let before = shipped.len();
        for entry in std::fs::read_dir(root().join(folder)).unwrap() {
            let found = entry.unwrap();
            let name_found = found.file_name().into_string().unwrap();
            let matches = name_found.starts_with(start) && name_found.ends_with(end);
            if matches && (name.contains('*') || name_found == name) && found.path().is_file() {
                shipped.insert(folder.join(name_found));
            }
        }
        assert!(shipped.len() > before, "no file is {}", source.display());
    }
    shipped
}

#[test]
fn the_package_has_what_its_pages_link_to() {
    let shipped = shipped();
    let pages: Vec<&PathBuf> = shipped.iter().filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    assert!(pages.len() > 15, "{pages:?}");
    let mut count = 0;
    for page in pages {
        for link in links(&read(page)) {
            let path = link.split('#').next().unwrap_or_default();
            if path.is_empty() {
                continue;
            }
            count += 1;
            // Without `..`, as the set has it.
            let mut leads_to = PathBuf::new();
            for part in page.parent().unwrap().join(path).components() {
                match part {
                    std::path::Component::ParentDir => assert!(leads_to.pop(), "{}: {link}", page.display()),
                    part => leads_to.push(part),
                }
            }
            assert!(shipped.contains(&leads_to), "{}: the package lacks {}", page.display(), leads_to.display());
        }
    }
    assert!(count > 100, "{count} links");
}

/// The texts of programs and pages, apart from the pages for those who build the project.
#[test]
fn users_of_the_package_are_not_told_to_run_make() {
    let for_builders = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"];
    let mut files: Vec<PathBuf> =
        shipped().into_iter().filter(|path| !for_builders.iter().any(|own| path == Path::new(own))).collect();
    for folder in [
        "apps",
        "conf",
        "rxe-dpdk/src",
        "rxe-dpdk/adapter/src",
        "rxe-dpdk/udp/src",
        "rxe-dpdk/service/src",
        "rxe-dpdk/proto/src",
        "rxe-dpdk/inspect/src",
    ] {
        files.extend(below(&root().join(folder)));
    }
    assert!(files.len() > 300, "{} files", files.len());
    for file in files {
        let text = std::fs::read(root().join(&file)).unwrap();
        let names = text.windows(b"make setup".len()).any(|part| part == b"make setup");
        assert!(!names, "{} names `make setup`", file.display());
    }
}

fn below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect()
}

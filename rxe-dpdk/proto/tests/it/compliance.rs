//! docs/compliance.md against code and tests: each rule has a source, its id tags the code that implements it and the
//! tests that check it, and there are no other ids. Tags in code repeat the rule in words: `// compliance.md [ID]: the
//! rule.`, where the words are the beginning of the rule's text. Tags of tests are ids only: `// [ID]`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Where paths in the columns of code and tests begin, if not at the root of the repository.
const CODE: &str = "rxe-dpdk/proto/src/";
const TESTS: &str = "rxe-dpdk/proto/tests/it/";

/// Path from the root of the repository, and text.
type Files = BTreeMap<String, String>;

/// A row of the document.
struct Row<'a> {
    line: usize,
    id: &'a str,
    /// The text between the id and the files. In the table of deviations: what, and why.
    text: &'a str,
    source: &'a str,
    is_deviation: bool,
    code: BTreeSet<String>,
    tests: BTreeSet<String>,
}

/// A tag: an id at a line of a file.
struct Tag<'a> {
    id: &'a str,
    path: &'a str,
    line: usize,
    in_test: bool,
    /// The rule as the tag states it, without the full stop. Empty in tests.
    words: String,
}

/// Capital letters, digits and at least one hyphen, a letter first.
fn is_id(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.contains('-')
        && text.split('-').all(|part| {
            !part.is_empty() && part.chars().all(|letter| letter.is_ascii_uppercase() || letter.is_ascii_digit())
        })
}

/// Beginning of tags in code.
const PREFIX: &str = "compliance.md ";

/// The comment of a line.
fn comment(line: &str) -> Option<&str> {
    line.split_once("// ").map(|(_, comment)| comment.trim_end())
}

/// The ids at the beginning of a line's comment, and the text behind them.
fn ids(line: &str) -> (Vec<&str>, &str) {
    let mut rest = comment(line).unwrap_or_default();
    rest = rest.strip_prefix(PREFIX).unwrap_or(rest);
    let mut ids = Vec::new();
    while let Some((id, behind)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && is_id(id)
    {
        ids.push(id);
        rest = behind.trim_start();
    }
    (ids, rest)
}

/// The words of a tag: `rest` of its line, and the comments of the lines that follow, up to a full stop at the end of a
/// line. Empty without the right beginning or end.
fn words<'a>(rest: &str, following: impl Iterator<Item = &'a str>) -> String {
    let Some(first) = rest.strip_prefix(": ") else { return String::new() };
    let mut words = first.to_owned();
    for line in following {
        if words.ends_with('.') {
            break;
        }
        let Some(more) = line.trim_start().strip_prefix("// ") else { break };
        words = format!("{words} {}", more.trim_end());
    }
    words.strip_suffix('.').unwrap_or_default().to_owned()
}

fn tags(files: &Files) -> Vec<Tag<'_>> {
    let mut tags = Vec::new();
    for (path, text) in files {
        let all_tests = path.contains("/tests/") || path.starts_with("tests/") || path.ends_with("/tests.rs");
        // Unit tests are at the end of their file.
        let unit_tests = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
        let mut at = 0;
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            let in_test = all_tests || at >= unit_tests;
            at += line.len();
            let (ids, rest) = ids(line);
            let words = if in_test { String::new() } else { words(rest, text[at..].lines()) };
            tags.extend(ids.into_iter().map(|id| Tag { id, path, line: number, in_test, words: words.clone() }));
        }
    }
    tags
}

/// Whether `words` are the beginning of a rule's text, up to the end of a clause.
fn states(words: &str, rule: &str) -> bool {
    !words.is_empty() && rule.strip_prefix(words).is_some_and(|rest| rest.starts_with([',', ';', ':', '.']))
}

/// The files of a cell, as paths from the root where there is such a file.
fn paths(cell: &str, base: &str, files: &Files) -> BTreeSet<String> {
    let names = cell.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let based = format!("{base}{name}");
            if files.contains_key(&based) { based } else { name.to_owned() }
        })
        .collect()
}

/// The rows of all tables. What is no row as it should be goes to `faults`.
fn rows<'a>(document: &'a str, files: &Files, faults: &mut Vec<String>) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    let mut is_deviation = false;
    for (number, line) in (1..).zip(document.lines()) {
        let Some(inner) = line.trim().strip_prefix('|') else { continue };
        let cells: Vec<&str> = inner.strip_suffix('|').unwrap_or(inner).split('|').map(str::trim).collect();
        match cells[..] {
            ["id", "rule", "source", "code", "tests"] => is_deviation = false,
            ["id", "what", "why", "code", "tests"] => is_deviation = true,
            [dashes, ..] if dashes.starts_with("---") => {}
            [id, text, source, code, tests] if is_id(id) => {
                let (code, tests) = (paths(code, CODE, files), paths(tests, TESTS, files));
                rows.push(Row { line: number, id, text, source, is_deviation, code, tests });
            }
            [id, _, _, _, _] => faults.push(format!("docs/compliance.md:{number}: `{id}` is no id")),
            _ => faults.push(format!("docs/compliance.md:{number}: {} cells where there should be 5", cells.len())),
        }
    }
    rows
}

/// The numbers of the sections of docs/protocol-notes.md.
fn sections(notes: &str) -> BTreeSet<&str> {
    let headings = notes.lines().filter_map(|line| line.strip_prefix("###").or(line.strip_prefix("##")));
    headings
        .filter_map(|heading| heading.split_whitespace().next())
        .map(|number| number.trim_end_matches('.'))
        .collect()
}

/// The section numbers that stand behind "notes" in a text.
fn cited(text: &str) -> impl Iterator<Item = &str> {
    text.split("notes ").skip(1).flat_map(|list| {
        let end = list.find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',' | ' ')).unwrap_or(list.len());
        list[..end].split(',').map(|number| number.trim().trim_end_matches('.')).filter(|number| !number.is_empty())
    })
}

/// Whether one part of a source is something that can be looked up: a title of the standard, sections of the notes, or
/// an RFC.
fn is_source(part: &str) -> bool {
    let title = part.strip_prefix("IBTA annex ").or(part.strip_prefix("IBTA "));
    let title = title.and_then(|title| title.strip_prefix('"')?.strip_suffix('"'));
    let rfc = part.strip_prefix("RFC ").is_some_and(|number| number.parse::<u16>().is_ok());
    title.is_some_and(|title| !title.is_empty() && !title.contains('"'))
        || rfc
        || part.starts_with("notes ") && cited(part).next().is_some()
}

/// Everything that is wrong.
fn faults(document: &str, notes: &str, files: &Files) -> Vec<String> {
    let mut faults = Vec::new();
    let rows = rows(document, files, &mut faults);
    if rows.is_empty() {
        faults.push("docs/compliance.md: no rules".to_owned());
    }
    let sections = sections(notes);
    let tags = tags(files);
    let mut by_id: BTreeMap<&str, &Row<'_>> = BTreeMap::new();
    for row in &rows {
        let here = format!("docs/compliance.md:{}: {}", row.line, row.id);
        if let Some(first) = by_id.insert(row.id, row) {
            faults.push(format!("{here} is in line {} already", first.line));
        }
        if row.text.is_empty() {
            faults.push(format!("{here} says nothing"));
        }
        if row.source.is_empty() {
            faults.push(format!("{here} has no source"));
        } else if !row.is_deviation {
            let unknown = row.source.split(';').map(str::trim).filter(|part| !is_source(part));
            faults.extend(unknown.map(|part| format!("{here}: `{part}` is no source")));
        }
        for number in cited(row.source).filter(|number| !sections.contains(number)) {
            faults.push(format!("{here}: docs/protocol-notes.md has no section {number}"));
        }
        for (what, named, in_test) in [("code", &row.code, false), ("test", &row.tests, true)] {
            if named.is_empty() {
                faults.push(format!("{here} names no {what}"));
            }
            for path in named {
                if !files.contains_key(path) {
                    faults.push(format!("{here}: there is no {path}"));
                } else if !tags.iter().any(|tag| tag.id == row.id && tag.path == path && tag.in_test == in_test) {
                    faults.push(format!("{here}: {path} does not carry it as {what}"));
                }
            }
        }
    }
    for Tag { id, path, line, in_test, words } in tags {
        let Some(row) = by_id.get(id) else {
            faults.push(format!("{path}:{line}: {id} is not in docs/compliance.md"));
            continue;
        };
        if !in_test && !row.text.is_empty() && !states(&words, row.text) {
            faults.push(format!("{path}:{line}: {id} is not followed by the beginning of its rule: `{words}`"));
        }
        let (what, named) = if in_test { ("test", &row.tests) } else { ("code", &row.code) };
        if !named.contains(path) {
            faults.push(format!("{path}:{line}: docs/compliance.md does not name this file as {what} of {id}"));
        }
    }
    faults
}

/// Every Rust file below `dir`, which is `path` from the root.
fn collect(dir: &Path, path: &str, files: &mut Files) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{path}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&entry.path(), &path, files);
        } else if path.ends_with(".rs") {
            files.insert(path, fs::read_to_string(entry.path()).unwrap());
        }
    }
}

#[test]
fn document_code_and_tests_agree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut files = Files::new();
    for dir in ["rxe-dpdk", "apps", "tests"] {
        collect(&root.join(dir), dir, &mut files);
    }
    // The ids in this file are examples.
    assert!(files.remove(&format!("{TESTS}compliance.rs")).is_some());
    let faults = faults(&read("docs/compliance.md"), &read("docs/protocol-notes.md"), &files);
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

const DOCUMENT: &str = "\
# Compliance

| id | rule | source | code | tests |
|---|---|---|---|---|
| A-ONE | One is one. | IBTA \"Numbers\"; notes 1.1, 2 | one.rs, wire/all.rs | one.rs |
| A-TWO | Two is two. | IBTA annex \"More Numbers\" | wire/all.rs | rxe-dpdk/proto/src/wire/all.rs |

## Deviations

| id | what | why | code | tests |
|---|---|---|---|---|
| B-THREE | Three is five. | It is shorter (notes 1.1). | rxe-dpdk/src/three.rs | one.rs |
";

const NOTES: &str = "# Notes\n\n## 1. First\n\n### 1.1 First of first\n\n## 2. Second\n";

fn sources() -> Files {
    let files = [
        ("rxe-dpdk/proto/src/one.rs", "fn one() {\n    // compliance.md [A-ONE]: One is one.\n    1;\n}\n"),
        (
            "rxe-dpdk/proto/src/wire/all.rs",
            "// compliance.md [A-ONE]: One is\n// one.\n// compliance.md [A-TWO]: Two is two.\nconst ALL: [u8; 2] = [1, 2];\n\n\
             #[cfg(test)]\nmod tests {\n    // [A-TWO]\n    #[test]\n}\n",
        ),
        (
            "rxe-dpdk/src/three.rs",
            "// compliance.md [B-THREE]: Three is five.\nlet three = 5;\n// [not an id], [RFC 826], [a-b]\n",
        ),
        ("rxe-dpdk/proto/tests/it/one.rs", "// [A-ONE] [B-THREE] both\n#[test]\n"),
    ];
    files.map(|(path, text)| (path.to_owned(), text.to_owned())).into()
}

const ONE: &str = "rxe-dpdk/proto/src/one.rs";

/// Faults found after one change of the document.
#[track_caller]
fn after(from: &str, to: &str) -> Vec<String> {
    assert_eq!(DOCUMENT.matches(from).count(), 1, "{from}");
    faults(&DOCUMENT.replace(from, to), NOTES, &sources())
}

/// Faults found after one change of a file.
#[track_caller]
fn after_in(path: &str, from: &str, to: &str) -> Vec<String> {
    let mut files = sources();
    let text = files.get_mut(path).unwrap();
    assert_eq!(text.matches(from).count(), 1, "{from}");
    *text = text.replace(from, to);
    faults(DOCUMENT, NOTES, &files)
}

#[test]
fn a_document_that_agrees_has_no_faults() {
    assert_eq!(faults(DOCUMENT, NOTES, &sources()), [""; 0]);
}

#[test]
fn an_id_without_code_or_test_is_found() {
    assert_eq!(after("one.rs, wire/all.rs | one.rs |", " | one.rs |")[0], "docs/compliance.md:5: A-ONE names no code");
    assert_eq!(after("| rxe-dpdk/src/three.rs | one.rs |", "| rxe-dpdk/src/three.rs | |").len(), 2);
    assert_eq!(
        after_in("rxe-dpdk/proto/src/one.rs", "[A-ONE]", "A-ONE"),
        ["docs/compliance.md:5: A-ONE: rxe-dpdk/proto/src/one.rs does not carry it as code"]
    );
    assert_eq!(
        after_in("rxe-dpdk/proto/tests/it/one.rs", "// [A-ONE] [B-THREE]", "// [B-THREE]"),
        ["docs/compliance.md:5: A-ONE: rxe-dpdk/proto/tests/it/one.rs does not carry it as test"]
    );
    // The tag of the code is none of a test in the same file.
    assert_eq!(
        after_in("rxe-dpdk/proto/src/wire/all.rs", "    // [A-TWO]\n", ""),
        ["docs/compliance.md:6: A-TWO: rxe-dpdk/proto/src/wire/all.rs does not carry it as test"]
    );
    assert_eq!(
        after_in("rxe-dpdk/proto/src/wire/all.rs", "// compliance.md [A-TWO]: Two is two.\n", ""),
        ["docs/compliance.md:6: A-TWO: rxe-dpdk/proto/src/wire/all.rs does not carry it as code"]
    );
}

#[test]
fn a_file_that_does_not_exist_is_found() {
    assert_eq!(
        after("| one.rs, wire/all.rs |", "| one.rs, wire/all.rs, wire/none.rs |"),
        ["docs/compliance.md:5: A-ONE: there is no wire/none.rs"]
    );
    let mut files = sources();
    files.remove("rxe-dpdk/src/three.rs");
    assert_eq!(faults(DOCUMENT, NOTES, &files), ["docs/compliance.md:12: B-THREE: there is no rxe-dpdk/src/three.rs"]);
}

#[test]
fn an_id_that_is_not_in_the_document_is_found() {
    assert_eq!(
        after_in("rxe-dpdk/src/three.rs", "let", "// compliance.md [B-FOUR]: Four is four.\nlet"),
        ["rxe-dpdk/src/three.rs:2: B-FOUR is not in docs/compliance.md"]
    );
    assert_eq!(
        after_in("rxe-dpdk/proto/tests/it/one.rs", "#[test]\n", "#[test]\nfn two() {} // [A-FIVE]\n"),
        ["rxe-dpdk/proto/tests/it/one.rs:3: A-FIVE is not in docs/compliance.md"]
    );
}

#[test]
fn an_id_in_a_file_that_its_row_does_not_name_is_found() {
    assert_eq!(
        after_in("rxe-dpdk/src/three.rs", "let", "// compliance.md [A-TWO]: Two is two.\nlet"),
        ["rxe-dpdk/src/three.rs:2: docs/compliance.md does not name this file as code of A-TWO"]
    );
    assert_eq!(
        after("| one.rs, wire/all.rs |", "| one.rs |"),
        ["rxe-dpdk/proto/src/wire/all.rs:1: docs/compliance.md does not name this file as code of A-ONE"]
    );
}

#[test]
fn a_tag_in_code_without_the_words_of_its_rule_is_found() {
    for (from, to, words) in [
        ("[A-ONE]: One is one.", "[A-ONE]", ""),
        ("[A-ONE]: One is one.", "[A-ONE]: One is one", ""),
        ("[A-ONE]: One is one.", "[A-ONE]: One is.", "One is"),
        ("[A-ONE]: One is one.", "[A-ONE]: One is two.", "One is two"),
    ] {
        let fault = format!("{path}:2: A-ONE is not followed by the beginning of its rule: `{words}`", path = ONE);
        assert_eq!(after_in(ONE, from, to), [fault], "{to}");
    }
}

#[test]
fn an_id_that_is_there_twice_is_found() {
    let twice = "| A-ONE | One is one, again. | notes 2 | one.rs, wire/all.rs | one.rs |\n\n## Deviations";
    assert_eq!(after("\n## Deviations", twice), ["docs/compliance.md:7: A-ONE is in line 5 already"]);
}

#[test]
fn a_row_without_source_is_found() {
    assert_eq!(after("IBTA annex \"More Numbers\"", ""), ["docs/compliance.md:6: A-TWO has no source"]);
    assert_eq!(after("It is shorter (notes 1.1).", " "), ["docs/compliance.md:12: B-THREE has no source"]);
    for bad in ["common sense", "IBTA 9.7.1", "IBTA", "IBTA \"\"", "notes", "notes of mine", "RFC", "IBTA \"A\" 9.1"] {
        let expected = format!("docs/compliance.md:6: A-TWO: `{bad}` is no source");
        assert_eq!(after("IBTA annex \"More Numbers\"", bad), [expected]);
    }
    assert_eq!(after("IBTA annex \"More Numbers\"", "RFC 826; notes 2"), [""; 0]);
}

#[test]
fn a_section_that_does_not_exist_is_found() {
    assert_eq!(
        after("notes 1.1, 2 |", "notes 1.1, 1.2, 2 |"),
        ["docs/compliance.md:5: A-ONE: docs/protocol-notes.md has no section 1.2"]
    );
    assert_eq!(
        after("(notes 1.1)", "(notes 3)"),
        ["docs/compliance.md:12: B-THREE: docs/protocol-notes.md has no section 3"]
    );
}

#[test]
fn malformed_rows_are_found() {
    assert_eq!(
        after("| A-TWO | Two is two. |", "| A-TWO |")[0],
        "docs/compliance.md:6: 4 cells where there should be 5"
    );
    assert_eq!(after("| A-TWO |", "| Two |")[0], "docs/compliance.md:6: `Two` is no id");
    assert_eq!(after("One is one.", ""), ["docs/compliance.md:5: A-ONE says nothing"]);
    assert_eq!(faults("# Compliance\n", NOTES, &Files::new()), ["docs/compliance.md: no rules"]);
}

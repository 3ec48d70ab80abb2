//! Runs every fuzz target on its corpus and on mutations of it, the same ones each time.
//!
//! `RXE_SEED=N` chooses other mutations, `RXE_NIGHTLY=1` runs 25 times as many. `RXE_WRITE_CORPUS=1` writes the seeds, which
//! come from the recorded captures, into the corpora.

mod seeds;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use rxe_fuzz::{TARGETS, Target};
use rxe_testkit::mutate::{check_input, check_mutations};

/// Mutations per target.
const MUTATIONS: u64 = 8_000;
/// Bounds of the committed corpora: they are read by people and run by every `cargo test`.
const MOST_FILES: usize = 200;
const LARGEST_FILE: usize = 8_192;

/// The inputs of a target by file name, in order.
type Corpus = BTreeMap<String, Vec<u8>>;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target)
}

fn corpus(target: &str) -> Corpus {
    let folder = folder(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        (path.file_name().expect("a name").to_string_lossy().into_owned(), bytes)
    };
    entries.map(|entry| read(entry.expect("an entry of the folder").path())).collect()
}

fn replay(target: &str) {
    let Target { run, .. } = TARGETS.into_iter().find(|known| known.name == target).expect("a target of that name");
    let mut corpus = corpus(target);
    // The committed ones may be of an older protocol.
    corpus.extend(seeds::of(target));
    for (name, input) in &corpus {
        check_input(&format!("{target}-{name}"), input, run);
    }
    let inputs: Vec<&[u8]> = corpus.values().map(Vec::as_slice).collect();
    check_mutations(target, &inputs, MUTATIONS, run);
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_is_replayed() {
            assert_eq!([$(stringify!($name)),*], TARGETS.map(|target| target.name));
        }
    };
}

targets!(wire, mad, cm, responder, requester, inspect, nvmf_target, nvmf_host, checksum_file);

#[test]
fn corpora_contain_the_seeds_and_are_small() {
    let mut files = 0;
    for target in TARGETS.map(|target| target.name) {
        let seeds = seeds::of(target);
        assert!(seeds.len() >= 5, "{target} has {} seeds", seeds.len());
        if env::var_os("RXE_WRITE_CORPUS").is_some() {
            fs::create_dir_all(folder(target)).expect("a folder");
            for (name, input) in &seeds {
                fs::write(folder(target).join(name), input).expect("a seed written");
            }
        }
        let corpus = corpus(target);
        for name in seeds.keys() {
            assert!(corpus.contains_key(name), "{target}/{name} is missing: run this test with RXE_WRITE_CORPUS=1");
        }
        for (name, input) in &corpus {
            assert!(input.len() <= LARGEST_FILE, "{target}/{name} has {} bytes", input.len());
        }
        files += corpus.len();
    }
    assert!(files <= MOST_FILES, "{files} files");
    let folders = fs::read_dir(folder("wire").with_file_name("")).expect("the folder of all corpora").count();
    assert_eq!(folders, TARGETS.len(), "each folder is the corpus of a target");
}

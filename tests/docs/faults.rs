//! The table "Faults and recovery" in docs/security.md is that of the tests that inject the faults.

use rxe_testkit::recovery::{self, FAULTS};

use super::read;

#[test]
fn the_table_of_faults_is_that_of_the_tests() {
    for fault in FAULTS {
        let (file, function) = fault.test;
        let source = read(file);
        assert!(source.contains(&format!("fn {function}(")), "{}: there is no fn {function} in {file}", fault.name);
    }
    recovery::check().unwrap_or_else(|error| panic!("{error}"));
}

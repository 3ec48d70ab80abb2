//! Named regions, which every worker registers under the same keys.
//!
//! One setting names one region, or with a count numbered regions: `NAME0`, `NAME1` and so on, each with a key of its own,
//! adjacent in one piece of memory.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use rxe_proto::mem::{MemoryRegion, PdId};

/// Suffix for all numbered regions together.
const ALL: char = '*';

/// The names of one setting's regions: one name, or with a count that many, numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionNames<'a> {
    /// The name, or the prefix of numbered names.
    pub name: &'a str,
    /// The number of regions; `None` for a region without a number.
    pub count: Option<u32>,
}

/// The regions of a setting that a name refers to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The region with this number; 0 for a region without a number.
    Number(u32),
    /// `NAME*`: all numbered regions together.
    All,
}

impl RegionNames<'_> {
    /// The name of the region with this number.
    pub fn numbered(&self, number: u32) -> String {
        if self.count.is_some() { format!("{}{number}", self.name) } else { self.name.to_owned() }
    }

    /// The name of all numbered regions together.
    pub fn all(&self) -> String {
        format!("{}{ALL}", self.name)
    }

    /// The longest of the names.
    pub fn longest(&self) -> String {
        self.numbered(self.count.unwrap_or(1).saturating_sub(1))
    }

    /// Finds the region that `name` refers to.
    pub fn find(&self, name: &str) -> Option<Which> {
        let rest = name.strip_prefix(self.name)?;
        match self.count {
            None => rest.is_empty().then_some(Which::Number(0)),
            Some(_) if rest.strip_prefix(ALL) == Some("") => Some(Which::All),
            Some(count) => number(rest).filter(|number| *number < count).map(Which::Number),
        }
    }

    /// The first name that two of `settings` have, with the position of the later one.
    pub fn given_twice<'a>(settings: impl Iterator<Item = RegionNames<'a>> + Clone) -> Option<(usize, String)> {
        let counts: HashMap<&str, u32> =
            settings.clone().filter_map(|names| Some((names.name, names.count?))).collect();
        let mut seen = HashSet::new();
        settings.enumerate().find_map(|(at, names)| {
            // When two settings with counts have a name in common, one of them has the other's first name. So only first names
            // are compared, and the work does not grow with the counts.
            let first = names.numbered(0);
            let begins =
                |prefix: &str| counts.get(prefix).copied().filter(|_| names.count.is_none() || prefix != names.name);
            let numbered = splits(&first).any(|(prefix, number)| begins(prefix).is_some_and(|count| number < count));
            let all = first.strip_suffix(ALL).is_some_and(|prefix| counts.contains_key(prefix));
            (numbered || all || !seen.insert(first.clone())).then_some((at, first))
        })
    }
}

/// For messages to users.
impl fmt::Display for RegionNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            Some(2..) => write!(f, "{} to {}", self.numbered(0), self.longest()),
            _ => f.write_str(&self.numbered(0)),
        }
    }
}

/// Parses the number at the end of a name: digits without leading zeros.
fn number(digits: &str) -> Option<u32> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'));
    digits.parse().ok().filter(|_| plain)
}

/// All ways to split `name` into a prefix and a number.
fn splits(name: &str) -> impl Iterator<Item = (&str, u32)> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    (name.len() - digits..name.len()).filter_map(|at| Some((&name[..at], number(&name[at..])?)))
}

/// The regions of one setting, as one worker has registered them.
#[derive(Clone, Debug)]
pub struct NamedRegion {
    /// The name that clients ask for, or the prefix of numbered names.
    pub name: String,
    /// Whether the regions are numbered, even if there is only one.
    pub is_numbered: bool,
    /// The protection domain that queue pairs must be in to reach them.
    pub pd: PdId,
    /// Address, length and key of the region, or of the numbered regions in order.
    pub mrs: Vec<MemoryRegion>,
    /// The name of the protection domain, which regions that name the same share; `None` for one of its own.
    pub domain: Option<String>,
    /// The file with its bytes, which other local processes may map; `None` for anonymous memory.
    pub file: Option<PathBuf>,
}

impl NamedRegion {
    /// The names of its regions.
    pub fn names(&self) -> RegionNames<'_> {
        // A setting's count is a u32.
        RegionNames { name: &self.name, count: self.is_numbered.then_some(self.mrs.len() as u32) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(name: &str, count: Option<u32>) -> RegionNames<'_> {
        RegionNames { name, count }
    }

    #[test]
    fn numbered_regions_are_found_by_number() {
        let one = names("a", None);
        assert_eq!(
            (one.find("a"), one.find("a0"), one.find("a*"), one.find("")),
            (Some(Which::Number(0)), None, None, None)
        );
        let many = names("a", Some(1000));
        for (name, which) in [
            ("a0", Some(Which::Number(0))),
            ("a7", Some(Which::Number(7))),
            ("a999", Some(Which::Number(999))),
            ("a*", Some(Which::All)),
            ("a", None),
            ("a1000", None),
            ("a007", None),
            ("a+7", None),
            ("a**", None),
            ("a99999999999", None),
            ("b0", None),
        ] {
            assert_eq!(many.find(name), which, "{name}");
        }
        assert_eq!((one.to_string(), many.to_string()), ("a".to_owned(), "a0 to a999".to_owned()));
        assert_eq!((names("a", Some(1)).to_string(), many.all()), ("a0".to_owned(), "a*".to_owned()));
    }

    #[test]
    fn duplicate_names_are_found() {
        let twice = |settings: &[(&str, Option<u32>)]| {
            RegionNames::given_twice(settings.iter().map(|(name, count)| names(name, *count)))
        };
        let found = |at, name: &str| Some((at, name.to_owned()));
        assert_eq!(twice(&[("a", None), ("b", None), ("ab", Some(10)), ("a", Some(10))]), None);
        assert_eq!(twice(&[("a", None), ("b", None), ("a", None)]), found(2, "a"));
        assert_eq!(twice(&[("a", Some(2)), ("a", Some(3))]), found(1, "a0"));
        assert_eq!(twice(&[("a", Some(10)), ("a9", None)]), found(1, "a9"));
        assert_eq!(twice(&[("a9", None), ("a", Some(10))]), found(0, "a9"));
        assert_eq!(twice(&[("a", Some(10)), ("a10", None), ("a09", None)]), None);
        assert_eq!(twice(&[("a", Some(10)), ("a*", None)]), found(1, "a*"));
        // a10 is the first of the second and the eleventh of the first.
        assert_eq!(twice(&[("a", Some(10)), ("a1", Some(5))]), None);
        assert_eq!(twice(&[("a", Some(11)), ("a1", Some(5))]), found(1, "a10"));
        assert_eq!(twice(&[("a1", Some(5)), ("a", Some(11))]), found(0, "a10"));
        assert_eq!(twice(&[("a", Some(1000)), ("a0", Some(5))]), None, "a00 is none of the first");
        assert_eq!(twice(&[("7", None), ("1", Some(5))]), None);
    }

    #[test]
    fn comparing_first_names_finds_every_duplicate() {
        // All names of small settings, compared one by one.
        let all = |name: &str, count: u32| (0..count).map(|n| format!("{name}{n}")).collect::<HashSet<_>>();
        let prefixes = ["a", "a0", "a1", "a2", "a10", "a11", "a100"];
        for (first, second) in prefixes.iter().flat_map(|a| prefixes.iter().map(move |b| (*a, *b))) {
            for (m, n) in [(1, 1), (11, 2), (2, 11), (21, 3), (101, 101), (200, 20), (1005, 1)] {
                let meet = all(first, m).intersection(&all(second, n)).next().is_some();
                let settings = [names(first, Some(m)), names(second, Some(n))];
                let found = RegionNames::given_twice(settings.into_iter()).is_some();
                assert_eq!(found, meet, "{first}*{m} {second}*{n}");
            }
        }
    }
}

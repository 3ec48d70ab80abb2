//! Memory regions to export: single ones, and numbered ones, of which there may be very many.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rxe::{CliError, cli_error};
use rxe_adapter::manage::RegionSettings;
use rxe_proto::wire::PrefixList;
use rxe_service::RegionNames;

use super::sourced::{Origin, Sourced};
use super::values::{MAX_BYTES, Size};

/// Longest region name that fits the REP's private data.
pub const MAX_REGION_NAME: usize = 32;
/// Maximum number of regions in total: each takes some hundred bytes per lcore besides its own.
const MAX_REGIONS: u32 = 1_000_000;

/// The name of a region: printable ASCII without `=`, `,` and blanks, which command lines use otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionName(pub String);

impl FromStr for RegionName {
    type Err = CliError;

    fn from_str(text: &str) -> Result<RegionName, CliError> {
        let legal = text.bytes().all(|b| b.is_ascii_graphic() && b != b'=' && b != b',');
        if legal && (1..=MAX_REGION_NAME).contains(&text.len()) {
            return Ok(RegionName(text.to_owned()));
        }
        cli_error!(
            "'{}' is not a region name: up to {MAX_REGION_NAME} letters, digits and signs without blanks, '=' and ','",
            text.escape_default()
        )
    }
}

/// The name of a protection domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DomainName(pub String);

impl FromStr for DomainName {
    type Err = CliError;

    fn from_str(text: &str) -> Result<DomainName, CliError> {
        match text.parse::<RegionName>() {
            Ok(RegionName(name)) => Ok(DomainName(name)),
            Err(_) => cli_error!(
                "'{}' is not the name of a protection domain: up to {MAX_REGION_NAME} letters, digits and signs without \
                 blanks, '=' and ','",
                text.escape_default()
            ),
        }
    }
}

/// Number of numbered regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionCount(pub u32);

impl FromStr for RegionCount {
    type Err = CliError;

    fn from_str(text: &str) -> Result<RegionCount, CliError> {
        match text.parse() {
            Ok(count @ 1..=MAX_REGIONS) => Ok(RegionCount(count)),
            _ => cli_error!("'{text}' is not a number of regions: it goes from 1 to {MAX_REGIONS}"),
        }
    }
}

/// Memory to export, written `NAME=SIZE[*COUNT][,watch][,read-only][,domain=NAME][,file=PATH]`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionSpec {
    /// The name that clients ask for.
    pub name: String,
    /// Length in bytes.
    pub size: usize,
    /// Number of numbered regions, whose names are this name with a number from 0 on; `None` for a single region.
    pub count: Option<u32>,
    /// Print its text whenever its first byte changes.
    pub watch: bool,
    /// Clients may only READ it.
    pub read_only: bool,
    /// Its protection domain, which it shares with the regions that name the same; `None` for one of its own.
    pub domain: Option<String>,
    /// The file that other local processes may map.
    pub file: Option<PathBuf>,
    /// The addresses that it serves; `None` for all.
    pub peers: Option<PrefixList>,
}

impl FromStr for RegionSpec {
    type Err = CliError;

    fn from_str(text: &str) -> Result<RegionSpec, CliError> {
        let Some((name, rest)) = text.split_once('=') else {
            return cli_error!(
                "'{text}' is not a region: write NAME=SIZE[*COUNT][,watch][,read-only][,domain=NAME][,file=PATH], as \
                 scratch=64M"
            );
        };
        let (size, mut options) = rest.split_once(',').map_or((rest, None), |(size, options)| (size, Some(options)));
        let (size, count) = size.split_once('*').map_or((size, None), |(size, count)| (size, Some(count)));
        let mut region = RegionSpec::plain(&name.parse::<RegionName>()?.0, size.parse::<Size>()?.0);
        region.count = count.map(str::parse).transpose()?.map(|RegionCount(count)| count);
        while let Some(rest) = options {
            // A path may contain commas, so it is the last option.
            if let Some(path) = rest.strip_prefix("file=").filter(|path| !path.is_empty()) {
                region.file = Some(PathBuf::from(path));
                break;
            }
            let (option, others) = rest.split_once(',').map_or((rest, None), |(option, others)| (option, Some(others)));
            match (option, option.strip_prefix("domain=")) {
                ("watch", _) => region.watch = true,
                ("read-only", _) => region.read_only = true,
                (_, Some(domain)) => region.domain = Some(domain.parse::<DomainName>()?.0),
                _ => {
                    return cli_error!(
                        "'{option}' is not an option of a region: they are watch, read-only and domain=NAME, and file=PATH \
                         behind them"
                    );
                }
            }
            options = others;
        }
        Ok(region)
    }
}

impl RegionSpec {
    /// A region with a name and a length only.
    pub fn plain(name: &str, size: usize) -> RegionSpec {
        RegionSpec {
            name: name.to_owned(),
            size,
            count: None,
            watch: false,
            read_only: false,
            domain: None,
            file: None,
            peers: None,
        }
    }

    /// The names that clients ask for.
    pub fn names(&self) -> RegionNames<'_> {
        RegionNames { name: &self.name, count: self.count }
    }

    /// The settings of its memory and keys.
    pub fn settings(&self) -> RegionSettings {
        RegionSettings {
            name: self.name.clone(),
            size: self.size,
            count: self.count,
            read_only: self.read_only,
            domain: self.domain.clone(),
            file: self.file.clone(),
        }
    }

    /// A conflict between the options of the region, if there is one.
    fn conflict(&self) -> Option<String> {
        let RegionSpec { name, size, count, watch, .. } = self;
        let count = (*count)?;
        let longest = self.names().longest();
        if *watch {
            return Some(format!("the numbered regions '{name}' cannot be watched: leave watch out, or their count"));
        }
        if longest.len() > MAX_REGION_NAME {
            return Some(format!(
                "the numbered regions '{name}' go up to '{longest}', and a name has at most {MAX_REGION_NAME} signs: \
                 choose a shorter one"
            ));
        }
        if size.saturating_mul(count as usize) > MAX_BYTES {
            return Some(format!("no machine has {count} times {size} bytes: give the regions '{name}' less"));
        }
        None
    }
}

/// As the summary of the configuration shows it.
impl fmt::Display for RegionSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (names, size) = (self.names(), self.size);
        match self.count {
            Some(count @ 2..) => write!(f, "{count} regions {names} of {size} bytes each"),
            _ => write!(f, "region {names} of {size} bytes"),
        }
    }
}

/// `regions` and one more that is added to a running target, checked as a whole.
pub fn with_another(regions: &[RegionSpec], another: RegionSpec) -> Result<Vec<RegionSpec>, CliError> {
    if let Some(file) = another.file.as_deref().filter(|file| !file.is_absolute()) {
        return cli_error!(
            "the file '{}' of the region '{}' is named by a relative path: write it from / on",
            file.display(),
            another.name
        );
    }
    let origin = Origin::Flag("region add");
    let all = regions.iter().cloned().chain([another]);
    resolve(all.map(|value| Sourced { value, origin: origin.clone() }).collect())
}

/// Checks the regions as a whole. The work depends on the number of settings, not on their counts.
pub fn resolve(given: Vec<Sourced<RegionSpec>>) -> Result<Vec<RegionSpec>, CliError> {
    let mut files: HashMap<&Path, &str> = HashMap::new();
    let mut total = 0;
    for Sourced { value, origin } in &given {
        if let Some(conflict) = value.conflict() {
            return cli_error!("{origin}: {conflict}");
        }
        total += u64::from(value.count.unwrap_or(1));
        if total > MAX_REGIONS.into() {
            return cli_error!(
                "{origin}: there are {total} regions now, and {MAX_REGIONS} is the most: leave some out"
            );
        }
        if let Some(file) = &value.file
            && let Some(first) = files.insert(file, &value.name)
        {
            let name = &value.name;
            return cli_error!("{origin}: the regions '{first}' and '{name}' have the same file: give each its own");
        }
    }
    if let Some((at, name)) = RegionNames::given_twice(given.iter().map(|given| given.value.names())) {
        let origin = &given[at].origin;
        return cli_error!("{origin}: the region '{name}' is given twice: give each region its own name");
    }
    Ok(given.into_iter().map(|given| given.value).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> String {
        text.parse::<RegionSpec>().expect_err(text).to_string()
    }

    #[test]
    fn regions_are_parsed() {
        let region: RegionSpec = "scratch=64M,file=/dev/hugepages/a,b".parse().expect("a region");
        assert_eq!((region.name.as_str(), region.size, region.count), ("scratch", 64 << 20, None));
        assert_eq!(region.file, Some(PathBuf::from("/dev/hugepages/a,b")));
        let watched = |text: &str| text.parse().map(|region: RegionSpec| (region.watch, region.file.is_some()));
        assert_eq!(watched("a=1M").ok(), Some((false, false)));
        assert_eq!(watched("a=1M,watch").ok(), Some((true, false)));
        assert_eq!(watched("a=1M,watch,file=/f").ok(), Some((true, true)));
        assert_eq!(watched("a=1M,file=/f,watch").ok(), Some((false, true)), "part of the path");
        let strict: RegionSpec = "a=1M,domain=tenant,read-only,watch,file=/f,read-only".parse().expect("a region");
        assert_eq!((strict.read_only, strict.domain.as_deref(), strict.watch), (true, Some("tenant"), true));
        assert_eq!(strict.file, Some(PathBuf::from("/f,read-only")));
        assert_eq!("a=1M".parse().map(|one: RegionSpec| (one.read_only, one.domain)).ok(), Some((false, None)));
        let many: RegionSpec = "many=4K*100000,file=/dev/shm/many*".parse().expect("regions");
        assert_eq!((many.name.as_str(), many.size, many.count), ("many", 4096, Some(100_000)));
        assert_eq!(many.to_string(), "100000 regions many0 to many99999 of 4096 bytes each");
        assert_eq!(
            "a=4K*1".parse().map(|one: RegionSpec| one.to_string()).ok().as_deref(),
            Some("region a0 of 4096 bytes")
        );
    }

    #[test]
    fn errors_of_regions_name_the_text() {
        for (text, words) in [
            ("scratch", "write NAME=SIZE[*COUNT]"),
            ("=1M", "is not a region name"),
            ("a b=1M", "is not a region name"),
            (&format!("{}=1M", "x".repeat(33)), "is not a region name"),
            ("a=1M,mode=rw", "they are watch, read-only and domain=NAME, and file=PATH behind them"),
            ("a=1M,domain=", "'' is not the name of a protection domain"),
            ("a=1M,domain=a b", "'a b' is not the name of a protection domain"),
            ("a=1M,watch,", "'' is not an option"),
            ("a=4K*0", "'0' is not a number of regions: it goes from 1 to 1000000"),
            ("a=4K*1000001", "'1000001' is not a number of regions"),
            ("a=4K*", "'' is not a number of regions"),
            ("a=4K*1K", "'1K' is not a number of regions"),
            ("a=*7", "'' is not a size"),
        ] {
            assert!(wrong(text).contains(words), "{text}: {}", wrong(text));
        }
    }

    #[test]
    fn conflicting_regions_are_refused() {
        let resolve = |texts: &[&str]| {
            let sourced = |text: &&str| Sourced { value: text.parse().expect(text), origin: Origin::Flag("--region") };
            resolve(texts.iter().map(sourced).collect()).map(|all| all.len()).map_err(|error| error.to_string())
        };
        assert_eq!(resolve(&["a=1M", "b=4K*1000", "c=1M"]), Ok(3));
        let long = "x".repeat(31);
        for (texts, sentence) in [
            (
                &["a=1M", "a=2M"][..],
                "--region: the region 'a' is given twice: give each region its own name".to_owned(),
            ),
            (
                &["a=4K*100", "a99=1M"],
                "--region: the region 'a99' is given twice: give each region its own name".to_owned(),
            ),
            (
                &["a=4K*100", "a=1M", "a=64*2"],
                "--region: the region 'a0' is given twice: give each region its own name".to_owned(),
            ),
            (
                &["a=1M,file=/f", "b=4K*2,file=/f"],
                "--region: the regions 'a' and 'b' have the same file: give each its own".to_owned(),
            ),
            (
                &["a=4K*2,watch"],
                "--region: the numbered regions 'a' cannot be watched: leave watch out, or their count".to_owned(),
            ),
            (
                &["a=1G*1000000"],
                "--region: no machine has 1000000 times 1073741824 bytes: give the regions 'a' less".to_owned(),
            ),
            (
                &["a=64*1000000", "b=64"],
                "--region: there are 1000001 regions now, and 1000000 is the most: leave some out".to_owned(),
            ),
            (
                &[&format!("{long}=64*11")],
                format!(
                    "--region: the numbered regions '{long}' go up to '{long}10', and a name has at most 32 signs: choose a shorter one"
                ),
            ),
        ] {
            assert_eq!(resolve(texts), Err(sentence));
        }
        assert_eq!(resolve(&[&format!("{long}=64*10")]), Ok(1));
    }
}

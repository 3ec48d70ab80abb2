//! Names for the keys of named regions, in reports.

use std::collections::HashMap;

use rxe_service::RegionNames;

/// The keys that one region setting stands for.
#[derive(Debug)]
pub(crate) struct RegionKeys {
    /// The name; of numbered regions what comes before the number.
    pub(crate) name: String,
    /// Number of numbered regions, if they are numbered.
    pub(crate) count: Option<u32>,
    /// In the order of their numbers.
    pub(crate) keys: Vec<u32>,
}

/// The names of regions, by their keys, which are the same on all workers.
#[derive(Debug, Default)]
pub(crate) struct KeyNames {
    /// Names and counts, by setting.
    settings: Vec<(String, Option<u32>)>,
    /// Setting and number of each key.
    keys: HashMap<u32, (usize, u32)>,
}

/// The name of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyName {
    /// The region's name.
    pub(crate) name: String,
    /// `NAME*`, if the region is numbered.
    pub(crate) numbered: Option<String>,
}

impl KeyNames {
    pub(super) fn new(regions: Vec<RegionKeys>) -> KeyNames {
        let mut names = KeyNames::default();
        for (setting, RegionKeys { name, count, keys }) in regions.into_iter().enumerate() {
            names.keys.extend((0..).zip(keys).map(|(number, key)| (key, (setting, number))));
            names.settings.push((name, count));
        }
        names
    }

    /// The name of `key`, if it belongs to a named region.
    pub(crate) fn get(&self, key: u32) -> Option<KeyName> {
        let (setting, number) = *self.keys.get(&key)?;
        let (name, count) = self.settings.get(setting)?;
        let names = RegionNames { name, count: *count };
        Some(KeyName { name: names.numbered(number), numbered: count.map(|_| names.all()) })
    }
}

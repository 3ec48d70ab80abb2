//! Names for the keys of named regions, in reports.

use std::collections::HashMap;
use std::sync::Arc;

use rxe_service::RegionNames;

/// The names of regions, by their keys, which are the same on all workers.
#[derive(Debug, Default)]
pub struct KeyNames(HashMap<u32, (Arc<Setting>, u32)>);

/// The name of a region setting, and the number of its regions if they are numbered.
#[derive(Debug)]
struct Setting {
    name: String,
    count: Option<u32>,
}

/// The name of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyName {
    /// The region's name.
    pub name: String,
    /// `NAME*`, if the region is numbered.
    pub numbered: Option<String>,
}

impl KeyNames {
    /// Adds the keys of a setting, in the order of the regions' numbers.
    pub(super) fn add(&mut self, names: RegionNames<'_>, keys: impl Iterator<Item = u32>) {
        let setting = Arc::new(Setting { name: names.name.to_owned(), count: names.count });
        self.0.extend((0..).zip(keys).map(|(number, key)| (key, (Arc::clone(&setting), number))));
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: u32) {
        self.0.remove(&key);
    }

    /// The name of `key`, if it belongs to a named region.
    pub fn get(&self, key: u32) -> Option<KeyName> {
        let (setting, number) = self.0.get(&key)?;
        let names = RegionNames { name: &setting.name, count: setting.count };
        Some(KeyName { name: names.numbered(*number), numbered: setting.count.map(|_| names.all()) })
    }
}

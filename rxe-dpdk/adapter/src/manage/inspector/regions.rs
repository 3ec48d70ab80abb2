//! Named regions of a running adapter.

use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use rxe_inspect::report::Region;
use rxe_proto::mem::Memory;
use rxe_service::change::Change;

use super::{InspectError, Inspector};
use crate::manage::regions::{RegionSettings, SharedRegions};

/// Keys that a worker adopts or deregisters in one turn of its loop.
const PART: usize = 256;
/// Most numbered regions of a setting that is added to a running adapter: the key tables of the workers grow, and the service
/// makes their directory, in one turn of the loop.
const MAX_ADDED: u32 = 1 << 16;

/// Why the regions were not changed. Each message is one sentence.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RegionError {
    /// A worker does not answer. All workers have the regions of before, or get them back when they go on.
    #[error(transparent)]
    Inspect(#[from] InspectError),
    /// The name is in use.
    #[error("there is a region '{0}' already: choose another name, or remove that region before")]
    NameTaken(String),
    /// There is no region of this name.
    #[error("there is no region '{0}': rxe-ctl region list shows the regions")]
    NoSuchRegion(String),
    /// Queue pairs can reach it.
    #[error(
        "{users} queue pairs can reach the region '{name}': disconnect them before, or add --force, and they get remote \
         access errors"
    )]
    InUse {
        /// The region.
        name: String,
        /// Number of queue pairs in its protection domain.
        users: u32,
    },
    /// Too many numbered regions.
    #[error(
        "at most {MAX_ADDED} numbered regions can be added to a running target: put more into its configuration file"
    )]
    TooMany,
    /// It cannot be made.
    #[error("the region '{name}' cannot be added: {problem}")]
    Problem {
        /// The region.
        name: String,
        /// The problem.
        problem: String,
    },
}

impl Inspector {
    /// The named regions, in the order of the configuration.
    ///
    /// # Errors
    /// [`InspectError::Stopped`], [`InspectError::NoAnswer`].
    pub fn regions(&self) -> Result<Vec<Region>, InspectError> {
        let list = self.region_list().lock();
        let report = |region: &SharedRegions| {
            let SharedRegions { settings, .. } = region;
            Ok(Region {
                name: settings.name.clone(),
                size: settings.size as u64,
                count: settings.count,
                read_only: settings.read_only,
                domain: settings.domain.clone(),
                file: settings.file.as_ref().map(|file| file.display().to_string()),
                users: u64::from(self.region_users(&settings.name)?),
                lost: region.is_lost(),
                ..Region::default()
            })
        };
        list.list().iter().map(report).collect()
    }

    /// Zeroed memory for a service, as that of regions without a file: it must be given back before the adapter ends.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn allocate(&self, bytes: usize) -> Result<Memory, String> {
        self.region_list().lock().allocate(bytes)
    }

    /// Adds a named region: makes its memory, and registers it with every worker under the same keys. Services know it when
    /// this returns.
    ///
    /// # Errors
    /// [`RegionError`]; there is no such region then.
    pub fn add_region(&self, settings: &RegionSettings) -> Result<(), RegionError> {
        if settings.count.is_some_and(|count| count > MAX_ADDED) {
            return Err(RegionError::TooMany);
        }
        let mut list = self.region_list().lock();
        if let Some(name) = list.taken(settings) {
            return Err(RegionError::NameTaken(name));
        }
        let problem = |problem| RegionError::Problem { name: settings.name.clone(), problem };
        let region = list.make(settings).map_err(problem)?;
        match self.hand_out(&region) {
            Ok(()) => {
                list.push(region);
                Ok(())
            }
            Err(error) => {
                self.take_back(&settings.name);
                list.discard(region);
                Err(error)
            }
        }
    }

    /// Removes a named region, by its name in the configuration. Its memory is given back when this returns.
    ///
    /// Without `force` a region that queue pairs can reach stays: those in its protection domain. With `force` their requests
    /// for it are refused from now on.
    ///
    /// # Errors
    /// [`RegionError`]; the region stays then.
    pub fn remove_region(&self, name: &str, force: bool) -> Result<(), RegionError> {
        let mut list = self.region_list().lock();
        let at = list.position(name).ok_or_else(|| RegionError::NoSuchRegion(name.to_owned()))?;
        let in_use = |users| RegionError::InUse { name: name.to_owned(), users };
        // Most refusals end here, before any service has heard of it.
        match self.region_users(name)? {
            users @ 1.. if !force => return Err(in_use(users)),
            _ => {}
        }
        let withdrawn = self.change_all(|reply| Change::WithdrawRegion { name: name.to_owned(), force, reply });
        let refused = match withdrawn {
            Ok(answers) => {
                let users: Vec<u32> = answers.into_iter().filter_map(Result::err).collect();
                (!users.is_empty()).then(|| in_use(users.iter().sum()))
            }
            Err(error) => Some(error.into()),
        };
        if let Some(refused) = refused {
            // Where nothing was withdrawn this changes nothing. A worker that is busy gets both in this order.
            let _ = self.change_all(|reply| Change::PublishRegion { at, reply });
            return Err(refused);
        }
        (0..self.workers()).for_each(|worker| self.release(worker));
        let region = list.take(at);
        list.discard(region);
        Ok(())
    }

    /// Makes all workers adopt and publish a region.
    fn hand_out(&self, region: &SharedRegions) -> Result<(), RegionError> {
        let head = Arc::new(region.settings.head());
        for part in region.mrs.chunks(PART) {
            let stage = |reply| Change::StageRegion { head: Arc::clone(&head), part: part.to_vec(), reply };
            for staged in self.change_all(stage)? {
                let name = region.settings.name.clone();
                staged.map_err(|error| RegionError::Problem { name, problem: error.to_string() })?;
            }
        }
        self.change_all(|reply| Change::PublishRegion { at: usize::MAX, reply })?;
        Ok(())
    }

    /// Undoes [`hand_out`](Self::hand_out), as far as it got.
    fn take_back(&self, name: &str) {
        let _ = self.change_all(|reply| Change::WithdrawRegion { name: name.to_owned(), force: true, reply });
        (0..self.workers()).for_each(|worker| self.release(worker));
    }

    /// Makes a worker deregister the staged region. A worker that does not answer in time does so when it goes on.
    fn release(&self, worker: usize) {
        let mut left = Ok(PART);
        while matches!(left, Ok(1..)) {
            left = self.change(worker, |reply| Change::ReleaseRegion { most: PART, reply });
        }
        if left.is_err() {
            let (reply, _) = sync_channel(1);
            let _ = self.send_change(worker, Change::ReleaseRegion { most: usize::MAX, reply });
        }
    }

    /// Number of queue pairs that can reach a region.
    fn region_users(&self, name: &str) -> Result<u32, InspectError> {
        let users = self.change_all(|reply| Change::CountRegionUsers { name: name.to_owned(), reply })?;
        Ok(users.into_iter().sum())
    }

    /// Changes a worker and waits for its answer.
    pub(super) fn change<T>(
        &self,
        worker: usize,
        change: impl FnOnce(SyncSender<T>) -> Change,
    ) -> Result<T, InspectError> {
        self.exchange(worker, |reply| self.send_change(worker, change(reply)))
    }

    /// Changes all workers, then waits for all answers, by worker number.
    pub(super) fn change_all<T>(&self, change: impl Fn(SyncSender<T>) -> Change) -> Result<Vec<T>, InspectError> {
        self.exchange_all(|worker, reply| self.send_change(worker, change(reply)))
    }

    fn send_change(&self, worker: usize, change: Change) -> Result<(), InspectError> {
        let (inspector, orders) = self.worker(worker)?;
        inspector.change(change).map_err(|_| InspectError::Stopped)?;
        orders.wake();
        Ok(())
    }
}

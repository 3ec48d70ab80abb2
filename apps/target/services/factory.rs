//! How the services here are made: all of them need a tally and nothing else.

use std::sync::Arc;

use rxe_dpdk::service::{Listen, Service, ServiceFactory};

use super::tally::{Book, Tally};

/// Makes the instances of one service.
pub struct Factory {
    name: &'static str,
    listens: Vec<Listen>,
    create: fn(Arc<Tally>) -> Box<dyn Service>,
    book: Book,
}

impl Factory {
    /// The factory of the service `name`, whose instances listen to `listens` and count in `book`.
    pub fn new(
        name: &'static str,
        listens: Vec<Listen>,
        create: fn(Arc<Tally>) -> Box<dyn Service>,
        book: &Book,
    ) -> Factory {
        Factory { name, listens, create, book: book.clone() }
    }
}

impl ServiceFactory for Factory {
    fn name(&self) -> &'static str {
        self.name
    }

    fn listen(&self) -> Vec<Listen> {
        self.listens.clone()
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        (self.create)(self.book.open(self.name))
    }
}

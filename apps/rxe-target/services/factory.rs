//! How most services here are made: all of them need a tally.

use rxe_dpdk::service::{Listen, Service, ServiceFactory};

use super::tally::{Book, Tally};

/// Makes one instance.
type Create = Box<dyn Fn(Tally) -> Box<dyn Service> + Send + Sync>;

/// Makes the instances of one service.
pub struct Factory {
    name: &'static str,
    listens: Vec<Listen>,
    create: Create,
    book: Book,
}

impl Factory {
    /// The factory of the service `name`, whose instances listen to `listens` and count in `book`.
    pub fn new(
        name: &'static str,
        listens: Vec<Listen>,
        create: impl Fn(Tally) -> Box<dyn Service> + Send + Sync + 'static,
        book: &Book,
    ) -> Factory {
        Factory { name, listens, create: Box::new(create), book: book.clone() }
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

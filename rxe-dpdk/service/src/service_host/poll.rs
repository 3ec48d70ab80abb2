//! Services that are polled in each turn.

use rxe_proto::Instant;
use rxe_proto::transport::Engine;

use super::ServiceHost;

impl ServiceHost {
    /// Polls the services that want it. Returns whether fewer operations are outstanding than before: some have completed.
    pub(super) fn poll_services(&mut self, now: Instant, engine: &mut Engine) -> bool {
        let before = self.outstanding;
        self.outstanding = (0..self.polled.len())
            .map(|index| {
                let service = self.polled[index];
                self.call(now, engine, service, |s, cx| s.poll(cx))
            })
            .sum();
        self.outstanding < before
    }
}

//! Hooks that a runtime attaches below the devices that it returns.

use crate::transport::{
    AhError, Engine, QpAttrChange, QpError, QpInit, QpTransition, Qpn, SrqAttr, SrqError, SrqId, SrqInit,
};
use crate::wire::Path;

/// A runtime's accounting below a [`Device`](super::Device): it is called when a program creates, changes or destroys an
/// object, never when it posts work.
///
/// A runtime that lends one engine to several programs must know whose a queue pair is, keep completion queues deep
/// enough, and join multicast groups on the network. The `before_*` methods can refuse the verb, which then changes
/// nothing; the others report what has been done. Every method does nothing by default.
pub trait DeviceHooks {
    /// A queue pair is about to be created. Reserve its places in the completion queues here: the queue pair can complete
    /// `max_send_wr` and `max_recv_wr` work requests before the program polls.
    ///
    /// # Errors
    /// Any [`QpError`]; the verb returns it.
    fn before_create_qp(&mut self, _engine: &mut Engine, _init: &QpInit) -> Result<(), QpError> {
        Ok(())
    }

    /// A queue pair was created.
    fn qp_created(&mut self, _engine: &mut Engine, _qpn: Qpn, _init: &QpInit) {}

    /// A queue pair is about to change its state.
    ///
    /// # Errors
    /// Any [`QpError`]; the verb returns it.
    fn before_modify_qp(&mut self, _qpn: Qpn, _transition: &QpTransition) -> Result<(), QpError> {
        Ok(())
    }

    /// Attributes of a queue pair are about to be changed, with its state or without.
    ///
    /// # Errors
    /// Any [`QpError`]; the verb returns it.
    fn before_modify_attributes(&mut self, _qpn: Qpn, _change: &QpAttrChange) -> Result<(), QpError> {
        Ok(())
    }

    /// A queue pair is about to be destroyed, by the program.
    ///
    /// # Errors
    /// Any [`QpError`]; the verb returns it.
    fn before_destroy_qp(&mut self, _qpn: Qpn) -> Result<(), QpError> {
        Ok(())
    }

    /// A queue pair was destroyed. Its completions may still wait in the completion queues.
    fn qp_destroyed(&mut self, _qpn: Qpn) {}

    /// A shared receive queue is about to be created, whose `max_wr` receives complete to the queue pairs' completion
    /// queues.
    ///
    /// # Errors
    /// Any [`SrqError`]; the verb returns it.
    fn before_create_srq(&mut self, _engine: &mut Engine, _init: &SrqInit) -> Result<(), SrqError> {
        Ok(())
    }

    /// A shared receive queue was created.
    fn srq_created(&mut self, _srq: SrqId, _init: &SrqInit) {}

    /// The size or limit of a shared receive queue is about to be changed.
    ///
    /// # Errors
    /// Any [`SrqError`]; the verb returns it.
    fn before_modify_srq(&mut self, _engine: &mut Engine, _srq: SrqId, _attr: &SrqAttr) -> Result<(), SrqError> {
        Ok(())
    }

    /// The size or limit of a shared receive queue was changed.
    fn srq_modified(&mut self, _srq: SrqId, _attr: &SrqAttr) {}

    /// A shared receive queue was destroyed.
    fn srq_destroyed(&mut self, _srq: SrqId) {}

    /// An address handle is about to be created.
    ///
    /// # Errors
    /// Any [`AhError`]; the verb returns it.
    fn before_create_ah(&mut self, _path: &Path) -> Result<(), AhError> {
        Ok(())
    }

    /// The engine's [multicast groups](Engine::multicast_groups) may have changed.
    fn multicast_changed(&mut self, _engine: &Engine) {}
}

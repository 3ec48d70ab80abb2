//! DPDK's buffers as the packets of injectors and bursts.

use rxe_adapter::worker::burst::Burst;
use rxe_adapter::worker::capture::TxRecorder;
use rxe_adapter::worker::injector::Packet;

use crate::eal::{Mbuf, RxBurst, TxTap};

impl Packet for Mbuf {
    fn bytes(&self) -> &[u8] {
        self.data()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.data_mut()
    }

    fn try_copy(&self) -> Option<Mbuf> {
        Mbuf::try_copy(self)
    }
}

impl Burst for RxBurst {
    type Packet = Mbuf;

    #[inline]
    fn len(&self) -> usize {
        RxBurst::len(self)
    }

    #[inline]
    fn data(&self, index: usize) -> &[u8] {
        RxBurst::data(self, index)
    }

    #[inline]
    fn take(&mut self, index: usize) -> Option<Mbuf> {
        RxBurst::take(self, index)
    }

    #[inline]
    fn clear(&mut self) {
        RxBurst::clear(self);
    }
}

impl TxTap for TxRecorder {
    fn see(&mut self, frame: &[u8]) {
        TxRecorder::see(self, frame);
    }
}

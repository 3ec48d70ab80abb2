//! A RoCEv2 service in a program of its own: it sends every message back. Try it with
//! `echo --in-memory --no-pci --vdev=net_af_packet0,iface=veth1` and any client of librdmacm on port 7000.

use rxe_dpdk::prelude::*;

type Failure = Box<dyn std::error::Error>;

/// One instance per lcore.
#[derive(Default)]
struct Echo {
    pd: Option<ProtectionDomain>,
    /// 4 KiB for each connection: a message, until the peer has acknowledged its echo.
    buffers: QpMap<MemoryRegion>,
}

impl Service for Echo {
    fn connect_request(&mut self, cx: &mut Context<'_>, _request: &ConnectRequest) -> Decision {
        self.accept(cx).unwrap_or_else(|error| Decision::refuse(error.to_string()))
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        // A queue pair in error takes no work; the runtime ends its connection.
        let _ = self.answer(&mut cx.device(), wc);
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, qp: Qpn, _reason: EndReason) {
        if let Some(mr) = self.buffers.remove(&qp) {
            let _ = cx.device().dereg_mr(&mr);
        }
    }
}

impl Echo {
    fn accept(&mut self, cx: &mut Context<'_>) -> Result<Decision, Failure> {
        let attr = cx.qp_attr();
        let mut dev = cx.device();
        let pd = *self.pd.get_or_insert_with(|| dev.alloc_pd());
        let mr = dev.reg_mr(pd, Memory::heap(4096), Access::LOCAL_WRITE)?;
        let qp = match dev.create_qp_in_init::<Rc>(pd, attr, Access::empty()) {
            Ok(qp) => qp,
            Err(error) => {
                dev.dereg_mr(&mr)?;
                return Err(error.into());
            }
        };
        dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[mr.sge(..)?] })?;
        self.buffers.insert(qp.qpn(), mr);
        Ok(Decision::accept(qp))
    }

    fn answer(&self, dev: &mut Device<'_>, wc: &WorkCompletion) -> Result<(), Failure> {
        let (mr, qp) = (self.buffers.get(&wc.qpn).ok_or("no connection")?, dev.find_qp::<Rc>(wc.qpn)?);
        match wc.success()?.opcode {
            WcOpcode::Recv => dev.post_send(qp, WorkRequest::send(&[mr.sge(..wc.byte_len as usize)?]).signaled())?,
            // The echo is acknowledged, so its buffer takes the next message.
            _ => dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[mr.sge(..)?] })?,
        }
        Ok(())
    }
}

fn main() -> Result<(), Failure> {
    let eal = Eal::init(&std::env::args().skip(1).collect::<Vec<_>>())?;
    let address: Cidr = "10.77.0.1/24".parse()?;
    let port = PortSettings { addresses: vec![address], ..PortSettings::default() };
    let config = RuntimeConfig { ports: vec![port], ..RuntimeConfig::default() };
    let echo = service_factory("echo", [Listen::cm(7000)], |_worker| Echo::default());
    let runtime = Runtime::new(eal, config, vec![echo])?;
    println!("{}", runtime.ready_line());
    print!("{}", runtime.run()?);
    Ok(())
}

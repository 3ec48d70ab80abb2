//! A RoCEv2 service in a program of its own: it sends every message back. Try it with
//! `echo --in-memory --no-pci --vdev=net_af_packet0,iface=veth1` and any client of librdmacm on port 7000.

use rxe_dpdk::prelude::*;

type Failure = Box<dyn std::error::Error>;

/// One buffer of 4 KiB for all connections of an lcore: each message is answered before the next one is handled.
#[derive(Default)]
struct Echo(Option<MemoryRegion>);

impl Service for Echo {
    fn start(&mut self, cx: &mut Context<'_>) {
        let mut dev = cx.device();
        let pd = dev.alloc_pd();
        self.0 = dev.reg_mr(pd, Memory::heap(4096), Access::LOCAL_WRITE).ok();
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, _request: &ConnectRequest) -> Decision {
        self.accept(cx).unwrap_or_else(|error| Decision::refuse(error.to_string()))
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        if wc.opcode == WcOpcode::Recv {
            // A queue pair in error takes no work; the runtime ends its connection.
            let _ = self.answer(&mut cx.device(), wc);
        }
    }
}

impl Echo {
    fn accept(&self, cx: &mut Context<'_>) -> Result<Decision, Failure> {
        let mr = self.0.as_ref().ok_or("no memory")?;
        let attr = cx.qp_attr();
        let mut dev = cx.device();
        let qp = dev.create_qp_in_init::<Rc>(mr.pd().into(), attr, Access::empty())?;
        dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[mr.sge(..)?] })?;
        Ok(Decision::accept(qp))
    }

    fn answer(&self, dev: &mut Device<'_>, wc: &WorkCompletion) -> Result<(), Failure> {
        let (mr, qp) = (self.0.as_ref().ok_or("no memory")?, dev.find_qp::<Rc>(wc.qpn)?);
        dev.post_recv(qp, RecvWr { wr_id: 0, sges: &[mr.sge(..)?] })?;
        Ok(dev.post_send(qp, WorkRequest::send(&[mr.sge(..wc.byte_len as usize)?]).signaled())?)
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

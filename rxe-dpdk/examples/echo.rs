//! A RoCEv2 service in a program of one's own: every SEND comes back. Try it with
//! `echo --in-memory --no-pci --vdev=net_af_packet0,iface=veth1` and any client of librdmacm on port 7000.

use rxe_dpdk::eal::Eal;
use rxe_dpdk::host::Cidr;
use rxe_dpdk::runtime::{PortSettings, Runtime, RuntimeConfig};
use rxe_dpdk::rxe_proto::cm::ConnectRequest;
use rxe_dpdk::rxe_proto::verbs::{
    Access, MemoryRegion, RecvWr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WorkCompletion,
};
use rxe_dpdk::service::{Accept, Context, Decision, Listen, QpSpec, Service, ServiceFactory};
use rxe_dpdk::worker::QpCaps;

const CAPS: QpCaps = QpCaps { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };

struct EchoFactory;

impl ServiceFactory for EchoFactory {
    fn name(&self) -> &'static str {
        "echo"
    }
    fn listen(&self) -> Vec<Listen> {
        vec![Listen::cm(7000)]
    }
    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(Echo(None))
    }
}

/// One 4 KiB buffer that all connections of this lcore share: fine for an example, since each message is answered
/// before the next one is looked at.
struct Echo(Option<MemoryRegion>);

impl Service for Echo {
    fn start(&mut self, cx: &mut Context<'_>) {
        let pd = cx.alloc_pd();
        self.0 = cx.alloc_memory(4096).ok().and_then(|m| cx.register(pd, m, Access::LOCAL_WRITE).ok());
    }

    fn connect_request(&mut self, cx: &mut Context<'_>, _request: &ConnectRequest) -> Decision {
        let Some(mr) = &self.0 else { return Decision::refuse("no memory") };
        let Ok(qp) = cx.create_qp(&QpSpec::rc(mr.pd(), CAPS, Access::empty())) else {
            return Decision::refuse("no queue pair");
        };
        let posted = cx.post_recv(qp, &RecvWr { wr_id: 0, sges: &[buffer(mr, 4096)] });
        if posted.is_err() {
            return Decision::refuse("no receive");
        }
        Decision::Accept(Accept { qp, responder_resources: 0, initiator_depth: 0, private_data: Vec::new() })
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        if let (WcOpcode::Recv, Some(mr)) = (wc.opcode, &self.0) {
            let echo = SendWr {
                wr_id: 1,
                op: SendOp::Send { imm: None },
                sges: &[buffer(mr, wc.byte_len)],
                flags: SendFlags::SIGNALED,
            };
            // A queue pair that died meanwhile takes no more work; the runtime ends the connection.
            let _ = cx.post_recv(wc.qpn, &RecvWr { wr_id: 0, sges: &[buffer(mr, 4096)] });
            let _ = cx.post_send(wc.qpn, &echo);
        }
    }
}

fn buffer(mr: &MemoryRegion, length: u32) -> Sge {
    Sge { addr: mr.addr(), length, lkey: mr.lkey() }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let eal = Eal::init(&std::env::args().skip(1).collect::<Vec<_>>())?;
    let address: Cidr = "10.77.0.1/24".parse()?;
    let config = RuntimeConfig {
        ports: vec![PortSettings { addresses: vec![address], ..PortSettings::default() }],
        ..RuntimeConfig::default()
    };
    let runtime = Runtime::new(eal, config, vec![Box::new(EchoFactory)])?;
    println!("{}", runtime.ready_line());
    print!("{}", runtime.run()?);
    Ok(())
}

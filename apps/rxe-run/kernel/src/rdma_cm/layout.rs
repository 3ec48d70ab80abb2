//! A test that the structures in [`abi`](super::abi) are laid out as in the C headers: a C compiler computes sizes and offsets.

use std::fmt::Write;
use std::process::Command;

use super::abi;

/// The layout of a structure as Rust has it.
pub trait Layout {
    /// Names of the fields, and where they start.
    const FIELDS: &'static [(&'static str, usize)];
}

/// A structure: its name in C, its size, its fields.
fn of<T: Layout>(c_name: &'static str) -> (&'static str, usize, &'static [(&'static str, usize)]) {
    (c_name, size_of::<T>(), T::FIELDS)
}

#[test]
fn structures_are_laid_out_as_in_the_c_headers() {
    let structures = [
        of::<abi::CmdHdr>("rdma_ucm_cmd_hdr"),
        of::<abi::CreateId>("rdma_ucm_create_id"),
        of::<abi::CreateIdResp>("rdma_ucm_create_id_resp"),
        of::<abi::DestroyId>("rdma_ucm_destroy_id"),
        of::<abi::DestroyIdResp>("rdma_ucm_destroy_id_resp"),
        of::<abi::BindIp>("rdma_ucm_bind_ip"),
        of::<abi::Bind>("rdma_ucm_bind"),
        of::<abi::ResolveIp>("rdma_ucm_resolve_ip"),
        of::<abi::ResolveAddr>("rdma_ucm_resolve_addr"),
        of::<abi::ResolveRoute>("rdma_ucm_resolve_route"),
        of::<abi::Query>("rdma_ucm_query"),
        of::<abi::UserPathRec>("ib_user_path_rec"),
        of::<abi::QueryRouteResp>("rdma_ucm_query_route_resp"),
        of::<abi::QueryAddrResp>("rdma_ucm_query_addr_resp"),
        of::<abi::QueryPathResp>("rdma_ucm_query_path_resp"),
        of::<abi::PathRecData>("ib_path_rec_data"),
        of::<abi::ConnParam>("rdma_ucm_conn_param"),
        of::<abi::UdParam>("rdma_ucm_ud_param"),
        of::<abi::Ece>("rdma_ucm_ece"),
        of::<abi::Connect>("rdma_ucm_connect"),
        of::<abi::Listen>("rdma_ucm_listen"),
        of::<abi::Accept>("rdma_ucm_accept"),
        of::<abi::Reject>("rdma_ucm_reject"),
        of::<abi::Disconnect>("rdma_ucm_disconnect"),
        of::<abi::InitQpAttr>("rdma_ucm_init_qp_attr"),
        of::<abi::Notify>("rdma_ucm_notify"),
        of::<abi::JoinIpMcast>("rdma_ucm_join_ip_mcast"),
        of::<abi::JoinMcast>("rdma_ucm_join_mcast"),
        of::<abi::GetEvent>("rdma_ucm_get_event"),
        of::<abi::EventResp>("rdma_ucm_event_resp"),
        of::<abi::SetOption>("rdma_ucm_set_option"),
        of::<abi::MigrateId>("rdma_ucm_migrate_id"),
        of::<abi::MigrateResp>("rdma_ucm_migrate_resp"),
        of::<abi::GlobalRoute>("ib_uverbs_global_route"),
        of::<abi::AhAttr>("ib_uverbs_ah_attr"),
        of::<abi::QpAttr>("ib_uverbs_qp_attr"),
    ];
    let (mut program, mut ours) = (String::from(C_START), String::new());
    for (name, size, fields) in structures {
        writeln!(program, "printf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        writeln!(ours, "{name} {size}").unwrap();
        for (field, offset) in fields {
            let field = field.trim_start_matches("r#");
            writeln!(program, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {field}));").unwrap();
            writeln!(ours, "{name}.{field} {offset}").unwrap();
        }
    }
    program.push_str("return 0; }\n");

    let dir = std::env::temp_dir().join(format!("rxe-uverbs-layout-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, binary) = (dir.join("layout.c"), dir.join("layout"));
    std::fs::write(&source, program).unwrap();
    let built = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let built = built.expect("cc is not installed: install gcc and librdmacm-dev");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let theirs = Command::new(&binary).output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(ours, String::from_utf8(theirs.stdout).unwrap());
}

const C_START: &str = "
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <netinet/in.h>
#include <rdma/rdma_user_cm.h>
#include <rdma/ib_user_sa.h>
int main(void) {
";

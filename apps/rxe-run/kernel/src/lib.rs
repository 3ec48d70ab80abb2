//! The kernel's side of a Linux rxe device, in the process of the program that uses it.
//!
//! librdmacm talks to the kernel by `write` to `/dev/infiniband/rdma_cm`. This crate answers that on top of rxe-proto's connection
//! manager.
//!
//! | module | subject |
//! |---|---|
//! | [`rdma_cm`] | the connection manager's device: ids, event channels, commands |
//! | [`local`] | the address of the adapter and the interface below it |
//! | [`user`] | copies from and to the program's memory |
//!
//! The commands and their structures are those of `/usr/include/rdma/rdma_user_cm.h`.

pub mod local;
pub mod rdma_cm;
pub mod user;

//! The kernel's side of a Linux rxe device, in the process of the program that uses it.
//!
//! libibverbs, its rxe provider and librdmacm talk to the kernel by three things: files in sysfs, `write` to
//! `/dev/infiniband/uverbs0` and `/dev/infiniband/rdma_cm`, and queues that both sides map. This crate answers all three on
//! top of rxe-proto's engine. A preload library passes it the calls of the program.
//!
//! | module | subject |
//! |---|---|
//! | [`uverbs`] | the verbs device: contexts, objects, the queues of the rxe provider, completion and asynchronous events |
//! | [`rdma_cm`] | the connection manager's device: ids, event channels, commands |
//! | [`local`] | the address of the adapter and the interface below it |
//! | [`user`] | copies from and to the program's memory |
//!
//! The commands and their structures are those of `/usr/include/rdma/ib_user_verbs.h`, `rdma_user_rxe.h` and
//! `rdma_user_cm.h`.

pub mod local;
pub mod rdma_cm;
pub mod user;
pub mod uverbs;

//! The kernel's side of a Linux rxe device, in the process of the program that uses it.
//!
//! libibverbs, its rxe provider and librdmacm talk to the kernel by three things: files in sysfs, `write` to
//! `/dev/infiniband/uverbs0` and `/dev/infiniband/rdma_cm`, and queues that both sides map. This crate answers all three on
//! top of rxe-proto's engine and a UDP port. A preload library passes it the calls of the program.
//!
//! | module | subject |
//! |---|---|
//! | [`adapter`] | the adapter of a process: engine, connection manager, UDP port, and the thread that drives them |
//! | [`uverbs`] | the verbs device: contexts, objects, the queues of the rxe provider, completion and asynchronous events |
//! | [`rdma_cm`] | the connection manager's device: ids, event channels, commands |
//! | [`local`] | the address of the adapter and the interface below it |
//! | [`address`] | which address a process takes |
//! | [`instance`] | the private folder of a process, and the list of all |
//! | [`sysfs`] | the files that the libraries read |
//! | [`netlink`] | answers to requests of RDMA netlink |
//! | [`backend`] | the interface of an adapter to the preload library |
//! | [`descriptors`] | which descriptors of the process are ours |
//! | [`settings`] | what `rxe-run` passes in the environment |
//! | [`inside`] | whether a thread is in the library |
//! | [`polling`] | empty polls of the program |
//! | [`user`] | copies from and to the program's memory |
//!
//! The commands and their structures are those of `/usr/include/rdma/ib_user_verbs.h`, `rdma_user_rxe.h` and
//! `rdma_user_cm.h`.

pub mod adapter;
pub mod address;
pub mod backend;
pub mod descriptors;
mod gids;
pub mod inside;
pub mod instance;
pub mod local;
pub mod netlink;
pub mod polling;
pub mod rdma_cm;
pub mod settings;
pub mod sysfs;
pub mod user;
pub mod uverbs;

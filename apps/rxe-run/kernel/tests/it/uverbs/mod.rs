//! The verbs device, driven as libibverbs and its rxe provider drive it: commands as bytes, queues in the memfd.

mod advice;
mod bytes;
mod change;
mod commands;
mod connected;
mod datagrams;
mod events;
mod faults;
mod filtered;
mod garbage;
mod long;
mod pages;
mod program;
mod queue_pairs;
mod queues;
mod rings;
mod shared_receives;
mod together;
mod windows;
mod work;
mod world;

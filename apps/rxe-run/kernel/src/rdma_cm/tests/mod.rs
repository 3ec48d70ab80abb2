//! Programs' sequences of commands, as librdmacm writes them, against each other and against recorded peers.

mod addresses;
mod channels;
mod connections;
mod datagrams;
mod endings;
mod hostile;
mod replay;
mod support;

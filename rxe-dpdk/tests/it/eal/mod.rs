//! EAL, its ports and lcores.

mod af_packet;
mod default_rings;
mod init;
mod lcores;
mod ports;

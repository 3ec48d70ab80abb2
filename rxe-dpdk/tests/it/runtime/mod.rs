//! Whole adapters.

mod capture;
mod faults;
mod fuzz;
mod instances;
mod operations;
mod outbound;
mod pcap_port;
mod peer;
mod streams;
mod test_service;
mod verbs;
mod watchdog;

//! Tests of the network from a guest's point of view: a guest with its own stack (smoltcp's, over
//! Ethernet) is at one end of the cable, and servers on this host's loopback address are at the
//! other.

mod errors;
mod floods;
mod fragments;
mod guest;
mod hostile;
mod inner_service;
mod rules;
mod services;
mod transfers;

//! The network as a guest finds it: a guest with a stack of its own (smoltcp's, over
//! Ethernet) on one end of the cable, servers on this host's loopback address at the other.

mod errors;
mod floods;
mod fragments;
mod guest;
mod hostile;
mod services;
mod transfers;

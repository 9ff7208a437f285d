//! Attacks on the API of a running server over real sockets: what a hostile or careless client tries, and what it must not get.

mod callers;
mod malformed;
mod reserved;
mod starvation;
mod takeover;

//! The commands that work on a database or on a running server, the configuration, and the examples: the real binary, over real sockets.

mod config;
mod endpoints;
mod examples;
mod ledger;
mod receiver;
mod replay;
mod tail;
mod tokens;
mod world;

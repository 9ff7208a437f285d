//! Tokens: who may talk to `redrive serve`, and the commands that give them out.

pub(crate) mod book;
mod command;
pub(crate) mod scope;
mod secret;
pub(crate) mod token;

pub(crate) use self::command::Tokens;

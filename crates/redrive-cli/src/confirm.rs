//! Asks for confirmation before something that cannot be undone, or that changes many things.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::failure::Failure;

/// Asks whether to do `what`, such as `delete 7 dead letters`. Without a terminal to ask on, fails with the remedy.
pub(crate) fn is_meant(what: &str) -> Result<bool, Failure> {
    if !io::stdin().is_terminal() {
        return Err(Failure::Failed(format!(
            "this would {what}, and there is no terminal to ask on: add --yes, or --dry-run to see the number"
        )));
    }
    let mut stderr = io::stderr().lock();
    let mut letters = what.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
    write!(stderr, "{first}{}? [y/N] ", letters.as_str())?;
    stderr.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

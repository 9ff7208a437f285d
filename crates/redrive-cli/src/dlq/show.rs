//! `redrive dlq show`: shows the dead letters of one event.

use std::io;

use redrive::EventId;
use redrive_api::dlq::DeadLetter;

use super::list::failures;
use crate::api::{Session, when};
use crate::failure::Failure;
use crate::screen::Style;
use crate::{events, format};

pub(super) async fn show(id: EventId, api: &mut Session<'_>) -> Result<(), Failure> {
    let letters = api.dlq().get(*id.as_uuid()).await?;
    api.print_response(letters, |api, letters| {
        letters.data.iter().try_for_each(|dead| print(dead, api))?;
        let flag = &api.flag;
        writeln!(api.out, "\nRedrive it:           redrive dlq retry {id}{flag}")?;
        Ok(writeln!(api.out, "With another payload: redrive dlq retry {id}{flag} --payload '{{…}}'")?)
    })
}

fn print(dead: &DeadLetter, api: &mut Session<'_>) -> io::Result<()> {
    let title = format!("{} {}", format::one_line(&dead.event_type), dead.id);
    let died = format!("{}, {}", when(dead.dlq_at), failures(&dead.reason, &dead.errors));
    let died = api.screen.paint(Style::Bad, died);
    api.details(
        &title,
        [
            ("published", Some(when(dead.created_at))),
            ("died", Some(died)),
            ("by", dead.subscription.as_deref().map(format::one_line)),
        ],
    )?;
    events::content(&dead.metadata, dead.payload.get(), api)?;
    if dead.attempts.is_empty() && !dead.errors.is_empty() {
        api.section("errors")?;
        for error in &dead.errors {
            writeln!(api.out, "  {}", format::one_line(error))?;
        }
    }
    events::attempts(&dead.attempts, api)
}

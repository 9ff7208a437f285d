//! `redrive endpoints test`: sends one message now and shows the response.

use redrive_api::endpoints::AttemptRecord;
use redrive_webhook::EndpointId;

use crate::api::Session;
use crate::failure::Failure;
use crate::format;
use crate::screen::Style;

pub(super) async fn test(id: &EndpointId, api: &mut Session<'_>) -> Result<(), Failure> {
    let record = api.endpoints().test(id.as_str()).await?;
    api.print_response(&record, print)?;
    match record.failed {
        None => Ok(()),
        Some(why) => {
            Err(Failure::Failed(format!("the endpoint did not accept it: {}", format::one_line(&why))))
        }
    }
}

fn print(api: &mut Session<'_>, record: &AttemptRecord) -> Result<(), Failure> {
    let (out, screen) = (&mut *api.out, api.screen);
    let (url, took) = (format::one_line(&record.url), format::duration(record.latency_ms));
    match record.status {
        Some(status) => {
            let style = if record.failed.is_none() { Style::Good } else { Style::Bad };
            writeln!(out, "{url} answered {} after {took}", screen.paint(style, status))?;
        }
        None => writeln!(out, "{url} did not answer ({took})")?,
    }
    if let Some(body) = &record.body {
        writeln!(out, "{}", screen.cut(&format::one_line(body), screen.width))?;
    }
    Ok(())
}

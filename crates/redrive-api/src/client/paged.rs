//! [`Paged`]: iterates over the entries of a list and fetches its pages as it goes.

use std::fmt;

use serde::de::DeserializeOwned;

use super::call::Call;
use super::error::Error;
use super::{Client, Result};
use crate::page::{Page, PageQuery};

/// The entries of all pages of a list, fetched page by page as they are taken.
///
/// ```no_run
/// # async fn run(client: redrive_api::client::Client) -> redrive_api::client::Result<()> {
/// use redrive_api::dlq::DlqFilter;
///
/// let mut dead = client.dlq().all(&DlqFilter::default());
/// while let Some(letter) = dead.next().await? {
///     println!("{} {}", letter.id, letter.reason);
/// }
/// # Ok(()) }
/// ```
pub struct Paged<T> {
    client: Client,
    /// The list and its filter.
    list: Option<Call>,
    /// Error of a filter that cannot be sent.
    invalid: Option<Error>,
    limit: Option<u32>,
    after: Option<String>,
    entries: std::vec::IntoIter<T>,
    end: End,
}

/// What follows the page that was fetched last.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum End {
    /// Another page.
    None,
    /// Nothing: it was the last page.
    Reached,
    /// A page whose cursor leads to itself.
    Never,
}

impl<T: DeserializeOwned> Paged<T> {
    pub(super) fn new(client: Client, list: Result<Call>) -> Self {
        let (list, invalid) = match list {
            Ok(list) => (Some(list), None),
            Err(error) => (None, Some(error)),
        };
        Paged {
            client,
            list,
            invalid,
            limit: None,
            after: None,
            entries: Vec::new().into_iter(),
            end: End::None,
        }
    }

    /// Sets the number of entries of one page; the server's default is 100, its maximum 200.
    #[must_use]
    pub fn page_size(self, entries: u32) -> Self {
        Paged { limit: Some(entries), ..self }
    }

    /// Begins after this cursor: the `next` of an earlier page.
    #[must_use]
    pub fn after(self, cursor: impl Into<String>) -> Self {
        Paged { after: Some(cursor.into()), ..self }
    }

    /// Returns the next entry; `None` after the last one. After an error, the next call fetches the same page again.
    pub async fn next(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(entry) = self.entries.next() {
                return Ok(Some(entry));
            }
            match self.next_page().await? {
                Some(page) => self.entries = page.into_iter(),
                None => return Ok(None),
            }
        }
    }

    /// Returns the entries of the next page; `None` after the last one. A page may be empty.
    pub async fn next_page(&mut self) -> Result<Option<Vec<T>>> {
        let taken: Vec<T> = self.entries.by_ref().collect();
        if !taken.is_empty() {
            return Ok(Some(taken));
        }
        if let Some(invalid) = self.invalid.take() {
            return Err(invalid);
        }
        let (End::None, Some(list)) = (self.end, &self.list) else {
            return self.ended().map(|()| None);
        };
        let query = PageQuery { limit: self.limit, after: self.after.clone() };
        let Page { data, next } = self.client.send(&list.of_page(&query)?).await?;
        match next {
            None => self.end = End::Reached,
            same if same == self.after => self.end = End::Never,
            _ => self.after = next,
        }
        Ok(Some(data))
    }

    /// Collects at most this many entries.
    pub async fn take(&mut self, entries: usize) -> Result<Vec<T>> {
        let mut taken = Vec::new();
        while taken.len() < entries
            && let Some(entry) = self.next().await?
        {
            taken.push(entry);
        }
        Ok(taken)
    }

    fn ended(&self) -> Result<()> {
        match (self.end, &self.after) {
            (End::Never, Some(cursor)) => Err(Error::Unreadable(format!(
                "the server returned the cursor {cursor:?} twice: the list would not end"
            ))),
            _ => Ok(()),
        }
    }
}

impl<T> fmt::Debug for Paged<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paged").field("list", &self.list).field("after", &self.after).finish_non_exhaustive()
    }
}

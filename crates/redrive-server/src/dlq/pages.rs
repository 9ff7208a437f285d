//! Reading the dead-letter queue page by page.

use redrive::{DeadLetter, DlqCursor, DlqFilter, DlqPage, Store};

use crate::failure::Failure;

/// Where the reading stands.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    store: &'a dyn Store,
    filter: DlqFilter,
    limit: u32,
    /// Of the last entry that was read; `None` after the last page.
    after: Option<Option<DlqCursor>>,
}

impl<'a> Pages<'a> {
    pub(super) fn new(store: &'a dyn Store, filter: DlqFilter, limit: u32, after: Option<DlqCursor>) -> Self {
        Pages { store, filter, limit, after: Some(after) }
    }

    /// The next page; `None` if there is no more.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<DeadLetter>>, Failure> {
        let Some(after) = self.after else { return Ok(None) };
        // One more than asked for says whether there is more.
        let page = DlqPage { offset: 0, limit: self.limit.saturating_add(1), after };
        let mut page = self.store.dead_letters(self.filter.clone(), page).await?;
        let has_more = page.len() > self.limit as usize;
        page.truncate(self.limit as usize);
        self.after = if has_more { Some(page.last().map(|dead| dead.cursor)) } else { None };
        Ok((!page.is_empty()).then_some(page))
    }

    /// The cursor of the page that `next` would read, if there is one.
    pub(super) fn cursor(&self) -> Option<DlqCursor> {
        self.after.flatten()
    }
}

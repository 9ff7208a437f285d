//! The message of one webhook request.

/// Content of one webhook request. Its id is the same at every attempt, so the receiver can detect duplicates.
#[derive(Copy, Clone, Debug)]
pub struct Message<'a> {
    /// Value of the `webhook-id` header.
    pub id: &'a str,
    /// Time of this attempt in seconds since 1970 (not of the event, because receivers refuse old timestamps).
    pub timestamp: i64,
    /// The signed body.
    pub body: &'a [u8],
}

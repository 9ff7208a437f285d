//! What is sent.

/// One message. Its id is the same at every attempt, so that the receiver can tell whether it has had it before.
#[derive(Copy, Clone, Debug)]
pub struct Message<'a> {
    /// The value of `webhook-id`.
    pub id: &'a str,
    /// When this attempt is made, in seconds since 1970: receivers refuse what is old, so it is not the time of the event.
    pub timestamp: i64,
    /// The body, as it is signed.
    pub body: &'a [u8],
}

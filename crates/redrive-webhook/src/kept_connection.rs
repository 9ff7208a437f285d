//! Connection of the pool that fails before a further request while bytes of the receiver are unread.
//!
//! HTTP/1 matches answers to requests by their order. An answer that arrives after its request was abandoned, or twice, would
//! otherwise be taken for the answer to the next message.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::net::TcpStream;

/// The receiver sent bytes that belong to no request. The next request was not sent.
#[derive(Debug, thiserror::Error)]
#[error("the receiver sent an answer that belongs to no request")]
pub(crate) struct UnreadBytes;

/// TCP or TLS connection that is kept between requests.
pub(crate) struct KeptConnection {
    stream: MaybeHttpsStream<TokioIo<TcpStream>>,
    /// Whether an answer has been read since the last write: the next write begins a request.
    is_answered: bool,
}

impl KeptConnection {
    pub(crate) fn new(stream: MaybeHttpsStream<TokioIo<TcpStream>>) -> Self {
        KeptConnection { stream, is_answered: false }
    }

    /// Fails at the begin of a request if the socket has unread bytes. The operating system is asked, because the runtime may not
    /// have noticed their arrival yet.
    fn check_unread(&mut self) -> io::Result<()> {
        if !std::mem::take(&mut self.is_answered) {
            return Ok(());
        }
        let socket = match &self.stream {
            MaybeHttpsStream::Http(tcp) => tcp.inner(),
            MaybeHttpsStream::Https(tls) => tls.inner().get_ref().0.inner().inner(),
        };
        match SockRef::from(socket).peek(&mut [MaybeUninit::uninit()]) {
            Ok(1..) => Err(io::Error::other(UnreadBytes)),
            Ok(0) | Err(_) => Ok(()), // closed, empty, or an error that the write reports
        }
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut MaybeHttpsStream<TokioIo<TcpStream>>> {
        Pin::new(&mut self.get_mut().stream)
    }
}

impl Read for KeptConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.as_mut().stream().poll_read(context, buffer);
        if matches!(read, Poll::Ready(Ok(()))) {
            self.is_answered = true;
        }
        read
    }
}

impl Write for KeptConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_unread()?;
        self.stream().poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_unread()?;
        self.stream().poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(context)
    }
}

impl Connection for KeptConnection {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

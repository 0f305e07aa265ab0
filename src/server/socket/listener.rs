//! [`Listener`]: where a server accepts connections, a TCP port or a Unix socket.
//!
//! A Unix socket is a file that only its owner and group may use. It outlives a server that was killed, so a socket on
//! which nothing listens is replaced, and a server that ends removes its own.

use super::link::Stream;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use tokio::net::TcpListener;

/// What accepts a server's connections.
#[derive(Debug)]
pub enum Listener {
    /// A TCP port.
    Tcp(TcpListener),
    /// A Unix socket.
    #[cfg(unix)]
    Unix(unix::Socket),
}

/// Where a [`Listener`] listens, as users write it.
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    /// An address and a port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "http://{address}"),
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl Listener {
    /// Listens on a Unix socket. What is there already is replaced if it is a socket on which nothing listens.
    #[cfg(unix)]
    pub fn bind_unix(path: &std::path::Path) -> io::Result<Self> {
        unix::Socket::bind(path).map(Self::Unix)
    }

    /// Where it listens.
    pub fn address(&self) -> io::Result<Address> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Address::Tcp),
            #[cfg(unix)]
            Self::Unix(socket) => Ok(Address::Unix(socket.path().to_owned())),
        }
    }

    /// The next connection, and its peer. All clients of a Unix socket count as this machine.
    pub(super) async fn accept(&self) -> io::Result<(Box<dyn Stream>, IpAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection was lost");
                }
                Ok((Box::new(stream), peer.ip()))
            }
            #[cfg(unix)]
            Self::Unix(socket) => Ok((
                Box::new(socket.accept().await?),
                std::net::Ipv4Addr::LOCALHOST.into(),
            )),
        }
    }
}

#[cfg(unix)]
mod unix {
    use super::Stream;
    use std::fs::{self, Permissions};
    use std::io::{self, ErrorKind};
    use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
    use std::path::{Path, PathBuf};
    use std::pin::Pin;
    use std::task::{Context, Poll, ready};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tokio::net::{UnixListener, UnixStream};

    /// Owner and group may connect.
    const MODE: u32 = 0o660;

    /// A Unix socket; its file is removed when it is dropped.
    #[derive(Debug)]
    pub struct Socket {
        listener: UnixListener,
        path: PathBuf,
        /// Device and inode of the file, which another server may have replaced.
        file: (u64, u64),
    }

    impl Socket {
        pub(super) fn bind(path: &Path) -> io::Result<Self> {
            match fs::symlink_metadata(path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(there) if !there.file_type().is_socket() => {
                    return Err(io::Error::new(
                        ErrorKind::AlreadyExists,
                        "the file exists and is not a socket",
                    ));
                }
                Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
                    Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                        fs::remove_file(path)?;
                    }
                    Err(error) => return Err(error),
                    Ok(_) => {
                        return Err(io::Error::new(
                            ErrorKind::AddrInUse,
                            "another server listens on it",
                        ));
                    }
                },
            }
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, Permissions::from_mode(MODE))?;
            let there = fs::symlink_metadata(path)?;
            Ok(Self {
                listener,
                path: path.to_owned(),
                file: (there.dev(), there.ino()),
            })
        }

        pub(super) fn path(&self) -> &Path {
            &self.path
        }

        pub(super) async fn accept(&self) -> io::Result<Peeked> {
            let (stream, _) = self.listener.accept().await?;
            Ok(Peeked { stream, byte: None })
        }
    }

    impl Drop for Socket {
        fn drop(&mut self) {
            if fs::symlink_metadata(&self.path)
                .as_ref()
                .is_ok_and(|there| (there.dev(), there.ino()) == self.file)
                && let Err(error) = fs::remove_file(&self.path)
            {
                tracing::warn!(%error, path = %self.path.display(), "the socket cannot be removed");
            }
        }
    }

    /// A stream that keeps the byte it was peeked at, which the system does for TCP only.
    #[derive(Debug)]
    pub(super) struct Peeked {
        stream: UnixStream,
        byte: Option<u8>,
    }

    impl Stream for Peeked {
        fn poll_peek(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
            if self.byte.is_none() {
                let mut byte = [0];
                let mut buffer = ReadBuf::new(&mut byte);
                ready!(Pin::new(&mut self.stream).poll_read(context, &mut buffer))?;
                self.byte = buffer.filled().first().copied();
            }
            Poll::Ready(Ok(self.byte.iter().len()))
        }

        fn try_write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.stream.try_write(bytes)
        }
    }

    impl AsyncRead for Peeked {
        fn poll_read(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if buffer.remaining() > 0
                && let Some(byte) = self.byte.take()
            {
                buffer.put_slice(&[byte]);
                return Poll::Ready(Ok(()));
            }
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Peeked {
        fn poll_write(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write(context, bytes)
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            slices: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write_vectored(context, slices)
        }

        fn is_write_vectored(&self) -> bool {
            self.stream.is_write_vectored()
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(context)
        }

        fn poll_shutdown(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
        ) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(context)
        }
    }
}

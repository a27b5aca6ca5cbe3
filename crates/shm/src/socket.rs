//! The Unix socket beside the rings: it carries the memory's descriptor once, then bells.

use rustix::io::{Errno, IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Bells received at once. They are fewer than that unless the other side floods.
const BELLS_MAX: usize = 64;

/// Connects to a server's socket, without waiting.
///
/// # Errors
/// No process listens there, or it accepts so slowly that others wait already.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = rustix::net::socket_with(family, kind, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let socket = UnixStream::from(socket);
    socket.set_nonblocking(false)?;
    Ok(socket)
}

/// Sends `bytes` with a descriptor, on a socket whose buffer is empty.
///
/// # Errors
/// The other side is gone, or the socket did not take all bytes.
pub fn send_with_fd(socket: impl AsFd, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let sent = rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(Errno::AGAIN.into())
    }
}

/// Receives bytes, and the descriptor that came with them, if any.
///
/// # Errors
/// Those of `recvmsg`.
pub fn receive_with_fd(
    socket: impl AsFd,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut buffers = [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&socket, &mut buffers, &mut control, flags)
    })?;
    let mut fd = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            fd = fd.or(fds.into_iter().last());
        }
    }
    Ok((received.bytes, fd))
}

/// Wakes the other side. Every failure is as good as a success: a full socket holds bells that the
/// other side has not heard yet, and the end of a broken one is noticed anyway.
pub fn ring_bell(socket: impl AsFd) {
    let _ = rustix::net::send(socket, &[0], SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
}

/// Takes the bells that have come, without waiting. Returns false if the other side is gone.
pub fn bells(socket: impl AsFd) -> bool {
    let mut bytes = [0u8; BELLS_MAX];
    match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((count, _)) => count > 0,
        Err(Errno::AGAIN | Errno::INTR) => true,
        Err(_) => false,
    }
}

//! Where scrapers come: a port, or a unix socket, whose file goes with it.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener as StdTcp},
    os::unix::net::UnixListener as StdUnix,
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, Stat},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
    process::{geteuid, umask},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};

use crate::{error::Failure, files::Place, request::Listen};

/// What a socket's file doesn't allow: anything to others, and execution.
const UNMASKED: Mode = Mode::from_raw_mode(0o117);
const OTHER: &str = "there is something else of that name; choose another one";

/// A socket that listens. No request is answered yet.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: Opened,
    /// The file, if it has one.
    pub(super) name: Option<Name>,
    address: Listen,
}

#[derive(Debug)]
enum Opened {
    Tcp(StdTcp),
    Unix(StdUnix),
}

impl Listener {
    /// Opens it.
    ///
    /// # Errors
    /// A usage failure if there can be no such socket, or this user may not make it; a failure while running if something else listens
    /// there.
    pub(crate) fn open(listen: &Listen) -> Result<Self, Failure> {
        match listen {
            Listen::Port(address) => Self::open_port(*address),
            Listen::Unix(path) => Self::open_unix(path),
        }
    }

    fn open_port(address: SocketAddr) -> Result<Self, Failure> {
        let opened = StdTcp::bind(address).and_then(|socket| {
            socket.set_nonblocking(true)?;
            let address = Listen::Port(socket.local_addr()?);
            Ok(Self { socket: Opened::Tcp(socket), name: None, address })
        });
        let place = Listen::Port(address);
        opened.map_err(|error| match error.kind() {
            io::ErrorKind::AddrInUse => is_taken(&place, "port"),
            io::ErrorKind::AddrNotAvailable => {
                refused(&place, "this machine has no such address; `ip address` lists those that it has")
            }
            io::ErrorKind::PermissionDenied => {
                refused(&place, "this user may not; choose a port from 1024 up")
            }
            _ => refused(&place, error),
        })
    }

    /// A file that an earlier run of this user has left is replaced, nothing else.
    fn open_unix(path: &Path) -> Result<Self, Failure> {
        let address = Listen::Unix(path.to_owned());
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::AddrInUse => refused(&address, OTHER),
            _ => refused(&address, error),
        };
        // One that is a link can't be bound to.
        if path.is_symlink() {
            return Err(refused(&address, OTHER));
        }
        let place = Place::find(path).map_err(failed)?;
        match place.status() {
            Ok(status) => make_way(path, &place, &status, &address)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        // No other thread makes a file at this time.
        let usual = umask(UNMASKED);
        let bound = StdUnix::bind(path);
        umask(usual);
        let socket = bound.map_err(failed)?;
        let name = Name::of(place).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { socket: Opened::Unix(socket), name: Some(name), address })
    }

    /// Where it is.
    pub(crate) fn address(&self) -> Listen {
        self.address.clone()
    }

    /// Whether a page in a browser can send requests here: by a port.
    pub(super) fn is_port(&self) -> bool {
        matches!(self.socket, Opened::Tcp(_))
    }

    /// To accept connections, within a runtime, and the file that goes with it.
    pub(super) fn into_socket(self) -> io::Result<(Socket, Option<Name>)> {
        let socket = match self.socket {
            Opened::Tcp(socket) => Socket::Tcp(TcpListener::from_std(socket)?),
            Opened::Unix(socket) => Socket::Unix(UnixListener::from_std(socket)?),
        };
        Ok((socket, self.name))
    }
}

/// Removes a socket that nothing listens on any more, if it is this user's.
fn make_way(path: &Path, place: &Place, status: &Stat, address: &Listen) -> Result<(), Failure> {
    if FileType::from_raw_mode(status.st_mode) != FileType::Socket {
        return Err(refused(address, OTHER));
    }
    if status.st_uid != geteuid().as_raw() {
        let owner = status.st_uid;
        return Err(refused(
            address,
            format_args!(
                "a socket of another user (uid {owner}) is there; choose another name, or remove it"
            ),
        ));
    }
    if !is_left(path) {
        return Err(is_taken(address, "name"));
    }
    place.remove().map_err(|error| {
        let why = format_args!("cannot remove the socket that an earlier run left there: {error}");
        refused(address, why)
    })
}

/// Whether nothing listens on a socket that is there.
fn is_left(path: &Path) -> bool {
    // One that has no room for a connection says so, where it would have us wait otherwise.
    let probe = SocketAddrUnix::new(path).and_then(|address| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        connect(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?, &address)
    });
    probe == Err(Errno::CONNREFUSED)
}

fn is_taken(address: &Listen, what: &str) -> Failure {
    Failure::Runtime(anyhow::anyhow!(
        "cannot listen on {address}: another program does; stop it, or choose another {what} with --listen"
    ))
}

fn refused(address: &Listen, why: impl fmt::Display) -> Failure {
    Failure::Usage(format!("cannot listen on {address}: {why}"))
}

/// A socket's file, which is removed with this value, unless something else has its name by then.
#[derive(Debug)]
pub(super) struct Name {
    place: Place,
    file: (u64, u64),
}

impl Name {
    fn of(place: Place) -> io::Result<Self> {
        let file = identity(&place.status()?);
        Ok(Self { place, file })
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if self.place.status().is_ok_and(|status| identity(&status) == self.file) {
            // What can't be removed is replaced by the next run.
            let _ = self.place.remove();
        }
    }
}

fn identity(status: &Stat) -> (u64, u64) {
    (status.st_dev, status.st_ino)
}

/// What scrapers connect to.
pub(super) enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Socket {
    /// The next connection.
    pub(super) async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match self {
            Self::Tcp(socket) => Box::new(socket.accept().await?.0),
            Self::Unix(socket) => Box::new(socket.accept().await?.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        net::Ipv4Addr,
        os::unix::{
            fs::{MetadataExt as _, chown, symlink},
            net::UnixStream,
        },
        path::PathBuf,
        time::{Duration, Instant},
    };

    use tempfile::TempDir;

    use super::*;

    fn scratch() -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("metrics.sock");
        (directory, path)
    }

    fn open(path: &Path) -> Result<Listener, Failure> {
        Listener::open(&Listen::Unix(path.to_owned()))
    }

    /// Its exit code, and its sentence without the path.
    fn refusal(path: &Path) -> (u8, String) {
        let failure = open(path).expect_err("refused");
        let sentence = failure.to_string();
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
        (failure.exit_code(), sentence.replace(&path.display().to_string(), "PATH"))
    }

    #[test]
    fn an_address_that_cannot_be_is_one_sentence() {
        let listener = Listener::open(&Listen::Port((Ipv4Addr::LOCALHOST, 0).into())).expect("a free port");
        let busy = Listener::open(&listener.address()).expect_err("it is taken");
        assert_eq!((busy.exit_code(), busy.to_string().lines().count()), (1, 1));
        // Of TEST-NET-1 (RFC 5737).
        let other = Listener::open(&Listen::Port(([192, 0, 2, 1], 9823).into()))
            .expect_err("no address of this machine");
        assert_eq!(other.exit_code(), 2);
        insta::assert_snapshot!(other.to_string());
    }

    #[test]
    fn a_unix_socket_is_for_owner_and_group_and_goes_with_its_run() {
        let (_directory, path) = scratch();
        let listener = open(&path).expect("made");
        assert_eq!(fs::metadata(&path).expect("there").mode() & 0o7777, 0o660);
        UnixStream::connect(&path).expect("it listens");
        drop(listener);
        assert!(!path.exists());
        // Files that are made later have the usual mode. Another test may be at the same place just now.
        let is_usual = || !fs::read_to_string("/proc/self/status").expect("procfs").contains("Umask:\t0117");
        let begun = Instant::now();
        while !is_usual() {
            assert!(begun.elapsed() < Duration::from_secs(10), "later files have the socket's mode");
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_an_earlier_run_has_left_is_replaced() {
        let (_directory, path) = scratch();
        // As after SIGKILL.
        drop(StdUnix::bind(&path).expect("made"));
        assert!(path.exists());
        let listener = open(&path).expect("replaced");
        UnixStream::connect(&path).expect("it listens");
        assert_eq!(
            refusal(&path),
            (1, "cannot listen on unix:PATH: another program does; stop it, or choose another name with --listen".into())
        );
        // That one goes on, with its file.
        UnixStream::connect(&path).expect("it listens");
        drop(listener);
    }

    #[test]
    fn one_that_has_no_room_for_another_connection_listens() {
        let (_directory, path) = scratch();
        let socket =
            socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("made");
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path).expect("short")).expect("bound");
        rustix::net::listen(&socket, 0).expect("it listens");
        let _first = UnixStream::connect(&path).expect("room for one");
        assert_eq!(refusal(&path).0, 1);
        assert!(path.exists());
    }

    #[test]
    fn nothing_but_our_own_socket_is_replaced() {
        let (directory, path) = scratch();
        fs::write(&path, "a file").expect("written");
        assert_eq!(
            refusal(&path),
            (
                2,
                "cannot listen on unix:PATH: there is something else of that name; choose another one".into()
            )
        );
        assert_eq!(fs::read(&path).expect("there"), b"a file");
        fs::remove_file(&path).expect("ours");
        symlink(directory.path().join("nowhere"), &path).expect("linked");
        assert!(refusal(&path).1.ends_with(OTHER));
        assert!(path.is_symlink() && !directory.path().join("nowhere").exists());
        fs::remove_file(&path).expect("ours");
        assert_eq!(
            refusal(&directory.path().join("none/x")),
            (2, "cannot listen on unix:PATH: there is no such directory; create it".into())
        );
        if geteuid().is_root() {
            drop(StdUnix::bind(&path).expect("made"));
            chown(&path, Some(65534), None).expect("given away");
            assert_eq!(
                refusal(&path),
                (2, "cannot listen on unix:PATH: a socket of another user (uid 65534) is there; choose another name, or remove it".into())
            );
            assert!(path.exists());
        }
    }

    #[test]
    fn what_has_taken_its_name_stays() {
        let (_directory, path) = scratch();
        let listener = open(&path).expect("made");
        fs::remove_file(&path).expect("ours");
        fs::write(&path, "somebody's").expect("written");
        drop(listener);
        assert_eq!(fs::read(&path).expect("there"), b"somebody's");
    }
}

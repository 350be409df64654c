//! TCP traffic for a guest that has none of its own: a server and clients that talk over loopback.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;

const PORT: u16 = 8080;
const REQUEST: usize = 200;
const REPLY: usize = 1200;
/// A few rounds per second are as many lines as one can read.
const PAUSE: Duration = Duration::from_millis(400);
/// What the server takes for its answer.
const WORK: Duration = Duration::from_millis(2);

/// Which side of the traffic.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Role {
    /// Answers.
    Server,
    /// Asks.
    Client,
}

impl Role {
    /// Both sides, in the order to start them.
    pub(crate) const ALL: [Self; 2] = [Self::Server, Self::Client];

    /// How the command line calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

/// Plays one side until the other ends.
pub(crate) fn run(role: Role) -> Result<()> {
    match role {
        Role::Server => {
            rustix::thread::set_name(c"demo-server")?;
            serve(&TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).context("can't listen")?)
        }
        Role::Client => {
            rustix::thread::set_name(c"demo-client")?;
            ask(connect()?)
        }
    }
}

fn serve(listener: &TcpListener) -> Result<()> {
    let (mut stream, _) = listener.accept()?;
    let mut request = [0; REQUEST];
    loop {
        match stream.read_exact(&mut request) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        }
        thread::sleep(WORK);
        stream.write_all(&[b'r'; REPLY])?;
    }
}

/// The server is being started at the same time.
fn connect() -> Result<TcpStream> {
    let mut attempts = 0;
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, PORT)) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && attempts < 100 => {
                attempts += 1;
                thread::sleep(Duration::from_millis(50));
            }
            result => return result.context("can't connect to the demo server"),
        }
    }
}

fn ask(mut stream: TcpStream) -> Result<()> {
    let mut reply = [0; REPLY];
    loop {
        stream.write_all(&[b'q'; REQUEST])?;
        stream.read_exact(&mut reply)?;
        thread::sleep(PAUSE);
    }
}

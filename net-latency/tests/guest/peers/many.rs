//! Many connections of one peer.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, TcpListener, TcpStream},
};

use anyhow::{Context as _, Result, bail};
use nix::sys::resource::{Resource, setrlimit};

/// Descriptors for what else a peer has.
const RESERVE: u64 = 100;

/// The connections.
#[derive(Default)]
pub(super) struct Many(Vec<TcpStream>);

impl Many {
    pub(super) fn perform(&mut self, listener: Option<&TcpListener>, command: &[&str]) -> Result<u64> {
        match command {
            // Descriptors for that many.
            ["room", count] => {
                let limit = count.parse::<u64>()? + RESERVE;
                setrlimit(Resource::RLIMIT_NOFILE, limit, limit)?;
            }
            ["accept", count] => {
                let listener = listener.context("not listening")?;
                for _ in 0..count.parse()? {
                    let (stream, _) = listener.accept()?;
                    stream.set_nodelay(true)?;
                    self.0.push(stream);
                }
            }
            ["connect", address, port, count] => {
                for _ in 0..count.parse()? {
                    let stream = TcpStream::connect((address.parse::<IpAddr>()?, port.parse()?))?;
                    stream.set_nodelay(true)?;
                    self.0.push(stream);
                }
            }
            ["serve", rounds, len] => {
                let mut message = vec![0; len.parse()?];
                for _ in 0..rounds.parse()? {
                    for stream in &mut self.0 {
                        stream.read_exact(&mut message)?;
                        stream.write_all(&message)?;
                    }
                }
            }
            // All requests first, then all replies.
            ["request", rounds, len] => {
                let mut message = vec![b'm'; len.parse()?];
                for _ in 0..rounds.parse()? {
                    for stream in &mut self.0 {
                        stream.write_all(&message)?;
                    }
                    for stream in &mut self.0 {
                        stream.read_exact(&mut message)?;
                    }
                }
            }
            // Each request's reply before the next request.
            ["take-turns", rounds, len] => {
                let mut message = vec![b'm'; len.parse()?];
                for _ in 0..rounds.parse()? {
                    for stream in &mut self.0 {
                        stream.write_all(&message)?;
                        stream.read_exact(&mut message)?;
                    }
                }
            }
            // On the first of them, N messages each.
            ["write", streams, count, len] => {
                let message = vec![b'm'; len.parse()?];
                for stream in self.first(streams)? {
                    for _ in 0..count.parse()? {
                        stream.write_all(&message)?;
                    }
                }
            }
            ["read", streams, len] => {
                let mut message = vec![0; len.parse()?];
                for stream in self.first(streams)? {
                    stream.read_exact(&mut message)?;
                }
            }
            _ => bail!("unknown command"),
        }
        Ok(self.0.len() as u64)
    }

    fn first(&mut self, count: &str) -> Result<&mut [TcpStream]> {
        self.0.get_mut(..count.parse()?).context("there are fewer connections")
    }
}

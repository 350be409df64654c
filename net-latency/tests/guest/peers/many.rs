//! Many connections of one peer.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, TcpListener, TcpStream},
};

use anyhow::{Context as _, Result, bail};

/// The connections.
#[derive(Default)]
pub(super) struct Many(Vec<TcpStream>);

impl Many {
    pub(super) fn perform(&mut self, listener: Option<&TcpListener>, command: &[&str]) -> Result<u64> {
        match command {
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
            _ => bail!("unknown command"),
        }
        Ok(self.0.len() as u64)
    }
}

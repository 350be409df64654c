//! The traffic while something traces.

use std::net::SocketAddr;

use anyhow::Result;

use crate::{
    net::Path,
    peers::{CLIENT, Pair, Peer, SERVER},
};

const CONNECTIONS: u32 = 64;

/// The kinds of traffic.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Load {
    /// A request of 200 bytes and its reply.
    RoundTrip,
    /// A write of 16 KiB.
    Bulk,
    /// A datagram of 200 bytes and its reply.
    Datagrams,
    /// A request and a reply on each of many connections in turn.
    Connections,
}

impl Load {
    pub(super) const ALL: [Self; 4] = [Self::RoundTrip, Self::Bulk, Self::Datagrams, Self::Connections];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::RoundTrip => "tcp round trip",
            Self::Bulk => "tcp 16 KiB write",
            Self::Datagrams => "udp round trip",
            Self::Connections => "64 connections",
        }
    }

    /// Messages that count.
    pub(super) fn messages(self) -> u32 {
        match self {
            Self::RoundTrip | Self::Datagrams => 2000,
            Self::Bulk => 1000,
            Self::Connections => 30 * CONNECTIONS,
        }
    }
}

/// The two processes of a load, ready to begin.
pub(super) struct Ends {
    load: Load,
    client: Peer,
    server: Peer,
    /// The server's address and port.
    far: SocketAddr,
}

impl Ends {
    pub(super) fn prepare(load: Load, path: &Path) -> Result<Self> {
        match load {
            Load::RoundTrip | Load::Bulk => {
                let Pair { client, server, far, .. } = Pair::connect(path)?;
                Ok(Self { load, client, server, far })
            }
            Load::Connections => {
                let Pair { mut client, mut server, far, .. } = Pair::prepare(path, CLIENT, SERVER)?;
                client.ask(&format!("many connect {} {} {CONNECTIONS}", far.ip(), far.port()))?;
                server.ask(&format!("many accept {CONNECTIONS}"))?;
                Ok(Self { load, client, server, far })
            }
            Load::Datagrams => {
                let (near, far) = path.addresses();
                let mut client = path.near(|| Peer::spawn(CLIENT))?;
                let mut server = path.far(|| Peer::spawn(SERVER))?;
                client.ask(&format!("udp bind {near}"))?;
                let port = server.ask(&format!("udp bind {far}"))?;
                Ok(Self { load, client, server, far: SocketAddr::new(far, port.try_into()?) })
            }
        }
    }

    /// The processes.
    pub(super) fn pids(&self) -> [u32; 2] {
        [self.client.pid(), self.server.pid()]
    }

    /// The server's port.
    pub(super) fn port(&self) -> u16 {
        self.far.port()
    }

    pub(super) fn play(&mut self, messages: u32) -> Result<()> {
        let to = self.far;
        let (serve, request) = match self.load {
            Load::RoundTrip => (format!("serve {messages} 200 0"), format!("request {messages} 200")),
            Load::Bulk => {
                let bytes = u64::from(messages) << 14;
                (format!("read {bytes} 65536 0"), format!("write-each {messages} {}", 1 << 14))
            }
            Load::Datagrams => {
                (format!("udp echo {messages}"), format!("udp request-to {to} {messages} 200"))
            }
            Load::Connections => {
                let rounds = messages / CONNECTIONS;
                (format!("many serve {rounds} 200"), format!("many request {rounds} 200"))
            }
        };
        self.server.tell(&serve)?;
        self.client.tell(&request)?;
        self.client.answer()?;
        self.server.answer()?;
        Ok(())
    }
}

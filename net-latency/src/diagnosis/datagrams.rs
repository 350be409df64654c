//! Datagrams of which this machine has both ends, in two network namespaces. They have no numbers: what shows it is that a server had a
//! request from the client's address and port while the client waited, and about as many as the client sent. Something in between may
//! translate the server's address.
//!
//! A client may have a new port for each request. So it is not flows that are proven, but ways: from a namespace to an address that is
//! asked there.

use std::net::{IpAddr, SocketAddr};

use crate::accounting::{Ends, Leader, Places};

/// How many more requests than another way a way has to have had: a port may be the same by chance.
const PROOF: u32 = 2;
/// By how many more they lead at most: a later user of these addresses has another way.
const MOST_PROOF: u32 = 16;

/// Requests of a client that a server may have more or less when an answer comes: some clients send two at once, and others' are lost.
const MOST_OFF: i64 = 1;

/// An address and port, as it is known in that network namespace.
type Known = (u32, SocketAddr);

/// A client's socket.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// The server's end that had its last request.
    server: Option<Ends>,
    /// Requests since its last answer that were read, less those that were sent.
    balance: i64,
}

/// Ways of datagrams. Its size is bounded.
#[derive(Clone, Debug, Default)]
pub(super) struct Datagrams {
    asking: Places<SocketAddr, Client>,
    /// Which server is asked by an address.
    servers: Places<Known, Leader<Known, MOST_PROOF>>,
    /// Where the clients of a server are that have that address, and how they know it.
    clients: Places<(Known, IpAddr), Leader<Known, MOST_PROOF>>,
}

impl Datagrams {
    /// A client has sent a request.
    pub(super) fn sent(&mut self, client: &Ends) {
        self.asking.find(&client.local, (client.netns.into(), 0), |_, _| ()).balance -= 1;
    }

    /// A server has read a request.
    pub(super) fn read(&mut self, server: &Ends) {
        let client = self.asking.find(&server.remote, (server.netns.into(), 0), |_, _| ());
        client.server = Some(*server);
        client.balance += 1;
    }

    /// A client has an answer. `had_it` says whether that server's end had a request of its meanwhile.
    pub(super) fn answered(&mut self, client: &Ends, had_it: impl FnOnce(&Ends) -> bool) {
        let known = (client.netns, client.remote);
        let owner = (client.netns.into(), 0);
        let asking = self.asking.find(&client.local, owner, |_, _| ());
        let are_alike = std::mem::take(&mut asking.balance).abs() <= MOST_OFF;
        let is_its = |server: &Ends| are_alike && server.netns != client.netns && had_it(server);
        let servers = self.servers.find(&known, owner, |_, _| ());
        let Some(server) = asking.server.filter(is_its) else { return servers.abstain() };
        let its = (server.netns, server.local);
        servers.vote(its);
        self.clients.find(&(its, client.local.ip()), owner, |_, _| ()).vote(known);
    }

    /// The other end, if that way is proven from both ends.
    pub(super) fn partner(&self, ends: &Ends) -> Option<Ends> {
        let [local, remote] = [ends.local, ends.remote].map(|address| (ends.netns, address));
        let server = |known: &Known| self.servers.get(known)?.by(PROOF);
        let client = |its: Known, of: IpAddr| self.clients.get(&(its, of))?.by(PROOF);
        if let Some(its) = server(&remote).filter(|its| client(*its, ends.local.ip()) == Some(remote)) {
            return Some(Ends { netns: its.0, local: its.1, remote: ends.local, ..*ends });
        }
        let known = client(local, ends.remote.ip()).filter(|known| server(known) == Some(local))?;
        Some(Ends { netns: known.0, local: ends.remote, remote: known.1, ..*ends })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::event::Protocol;

    const SERVER: ([u8; 4], u16) = ([10, 0, 0, 2], 53);
    const APPARENT: ([u8; 4], u16) = ([10, 99, 0, 1], 53);

    /// The ends of a request from that port, of a client in one namespace to a server in another.
    fn ends([near, far]: [u32; 2], port: u16, apparent: ([u8; 4], u16)) -> [Ends; 2] {
        let client: SocketAddr = ([10, 0, 0, 1], port).into();
        let protocol = Protocol::Udp;
        [
            Ends { protocol, netns: near, local: client, remote: apparent.into() },
            Ends { protocol, netns: far, local: SERVER.into(), remote: client },
        ]
    }

    /// The server has the request, and the client then its answer.
    fn ask(datagrams: &mut Datagrams, [client, server]: &[Ends; 2]) {
        datagrams.sent(client);
        datagrams.read(server);
        datagrams.answered(client, |candidate| candidate == server);
    }

    #[test]
    fn two_requests_prove_a_way_whatever_their_ports() {
        for apparent in [SERVER, APPARENT] {
            let mut datagrams = Datagrams::default();
            let all = [1, 2, 3].map(|port| ends([1, 2], 40_000 + port, apparent));
            ask(&mut datagrams, &all[0]);
            assert_eq!(datagrams.partner(&all[0][0]), None);
            ask(&mut datagrams, &all[1]);
            // Of the next one both ends are known at once.
            let [client, server] = all[2];
            assert_eq!([client, server].map(|end| datagrams.partner(&end)), [Some(server), Some(client)]);
            // From another namespace, or to another address, nothing is.
            assert_eq!(datagrams.partner(&Ends { netns: 3, ..client }), None);
            assert_eq!(datagrams.partner(&Ends { remote: ([10, 0, 0, 3], 53).into(), ..client }), None);
            assert_eq!(datagrams.partner(&Ends { netns: 3, ..server }), None);
        }
    }

    /// Nothing is proven of a client whose server is elsewhere. Here another has `requests` from the same port, and may have one of them
    /// while the client waits.
    fn proves_nothing(requests: usize, had_one: impl Fn(u16) -> bool) {
        let mut datagrams = Datagrams::default();
        for round in 0..100 {
            let ([client, _], [_, server]) = (ends([1, 2], 40_000, SERVER), ends([3, 4], 40_000, SERVER));
            datagrams.sent(&client);
            (0..requests).for_each(|_| datagrams.read(&server));
            datagrams.answered(&client, |_| had_one(round));
            assert_eq!([client, server].map(|end| datagrams.partner(&end)), [None; 2], "{round}");
        }
    }

    #[test]
    fn who_has_the_same_addresses_proves_nothing_by_chance_or_by_a_flood() {
        proves_nothing(1, |round| round % 4 == 0);
        proves_nothing(3, |_| true);
    }

    #[test]
    fn two_pairs_with_the_same_addresses_are_two() {
        let mut datagrams = Datagrams::default();
        for round in 0..10 {
            for namespaces in [[1, 2], [3, 4]] {
                ask(&mut datagrams, &ends(namespaces, 40_000 + round, SERVER));
            }
        }
        for namespaces in [[1, 2], [3, 4]] {
            let [client, server] = ends(namespaces, 50_000, SERVER);
            assert_eq!([client, server].map(|end| datagrams.partner(&end)), [Some(server), Some(client)]);
        }
    }
}

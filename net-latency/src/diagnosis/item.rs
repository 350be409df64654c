//! The times that may be long, and their causes.

use net_latency_common::Direction;

/// A time that may be long, and its cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item {
    DrvIp,
    IpTransport,
    /// From the transport to the application, where that is not split.
    Socket,
    Gap,
    Wait,
    Cpu,
    Copy,
    AppTransport,
    TransportIp,
    IpDrv,
    Qdisc,
    Driver,
    /// From the end of the driver's call to the ACK, where neither the peer's timer nor its application decided when that came.
    Net,
    /// Of packets: from the request's ACK to the answer; from the driver's call where that ACK came with the answer, or tells
    /// nothing. Of answers: from the driver's call of the request to the answer, where the other end is not seen.
    Answer,
    /// From a request's last packet being read to the answer's being written.
    Service,
    /// From the first time that bytes were sent until they were sent again.
    Resend,
    /// The part of the time to answer in which the process waited for answers of others.
    Asked,
    /// Between the two ends of a connection of this machine, there and back.
    Wire,
    /// Of a client's answer that is the first on its connection: the handshake.
    Connect,
    /// For how long the other end had the request, on this machine.
    Theirs,
    /// The part of an answer's time of which nothing is known.
    Rest,
}

impl Item {
    /// How many there are.
    pub(super) const COUNT: usize = Self::Rest as usize + 1;

    /// The times that packets of that direction have.
    pub(super) fn of(direction: Direction) -> &'static [Self] {
        use Item::*;
        match direction {
            Direction::In => &[DrvIp, IpTransport, Socket, Gap, Wait, Cpu, Copy],
            Direction::Out => {
                &[AppTransport, TransportIp, IpDrv, Qdisc, Driver, Net, Answer, Service, Resend]
            }
        }
    }

    /// The times that make up an answer, in the order of a server's, and of a client's.
    pub(super) fn of_answers(direction: Direction) -> &'static [Self] {
        use Item::*;
        match direction {
            Direction::In => &[DrvIp, IpTransport, Socket, Gap, Wait, Cpu, Copy],
            Direction::Out => &[
                Service,
                Asked,
                Connect,
                AppTransport,
                TransportIp,
                IpDrv,
                Qdisc,
                Driver,
                Wire,
                Theirs,
                Answer,
                Rest,
            ],
        }
    }

    /// The stages that packets without data pass like others.
    pub(super) fn of_the_way() -> impl Iterator<Item = (Direction, Self)> {
        use Item::*;
        let incoming = [DrvIp, IpTransport].map(|item| (Direction::In, item));
        let outgoing = [TransportIp, IpDrv, Qdisc, Driver].map(|item| (Direction::Out, item));
        incoming.into_iter().chain(outgoing)
    }

    /// Whether it is spent in this machine's kernel, and not in an application, on the wire or at the peer.
    pub(super) fn is_local(self) -> bool {
        !matches!(
            self,
            Self::Net
                | Self::Answer
                | Self::Service
                | Self::Resend
                | Self::Asked
                | Self::Wire
                | Self::Connect
                | Self::Theirs
                | Self::Rest
        )
    }

    /// Whether it grows by itself when the CPUs are busy.
    pub(super) fn is_of_cpu(self) -> bool {
        matches!(self, Self::DrvIp | Self::Cpu | Self::Copy | Self::Connect)
    }
}

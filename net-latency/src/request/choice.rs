//! Values of options that are one of a few words.

use net_latency_common::{Direction, GroupBy};

use crate::packet::event::Protocol;

/// One of a few values that have names. The command line, completions and the manual pages read them here.
pub(crate) trait Choice: Copy + Send + Sync + 'static {
    /// The values, each with its word and a line of help (empty where the word says it all); the first is the default.
    const ALL: &'static [(Self, &'static str, &'static str)];
}

/// Makes an enum that is a [`Choice`] from one list of its values, each with its word and its line of help.
macro_rules! choices {
    ($(#[$meta:meta])* $vis:vis enum $choice:ident { $($value:ident $word:literal $help:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $choice {
            $(#[doc = $help] $value,)+
        }

        impl $crate::request::choice::Choice for $choice {
            const ALL: &'static [(Self, &'static str, &'static str)] =
                &[$((Self::$value, $word, $help),)+];
        }
    };
}
pub(super) use choices;

impl Choice for Direction {
    const ALL: &'static [(Self, &'static str, &'static str)] =
        &[(Self::In, "in", ""), (Self::Out, "out", "")];
}

impl Choice for Protocol {
    const ALL: &'static [(Self, &'static str, &'static str)] =
        &[(Self::Tcp, "tcp", ""), (Self::Udp, "udp", "")];
}

impl Choice for GroupBy {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Stage, "stage", "Nothing else"),
        (Self::Pid, "pid", "The process"),
        (Self::Process, "process", "The process's name"),
        (Self::Comm, "comm", "The thread's name"),
        (Self::Port, "port", "The server's port: this end's, or the other's where this end is the client"),
        (Self::Connection, "connection", "Both ends, of TCP"),
        (Self::Host, "host", "The other end's address"),
        (Self::Interface, "interface", "The network device"),
        (Self::Cgroup, "cgroup", "The process's cgroup: a systemd unit, a container"),
    ];
}

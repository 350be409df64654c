//! Where the user looks: at one of three tables.

use super::model::ConnectionKey;

/// The tables, from the outermost to the innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Processes,
    /// Those of the process with this PID.
    Connections(u32),
    /// The slowest of this connection.
    Packets(ConnectionKey),
}

impl Place {
    pub(super) fn depth(&self) -> usize {
        match self {
            Self::Processes => 0,
            Self::Connections(_) => 1,
            Self::Packets(_) => 2,
        }
    }
}

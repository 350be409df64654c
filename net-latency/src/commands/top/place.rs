//! Where the user looks: at one of four tables.

use super::model::ConnectionKey;

/// The tables; the first three from the outermost to the innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Processes,
    /// Those of the process with this PID.
    Connections(u32),
    /// The slowest of this connection.
    Packets(ConnectionKey),
    /// Connections of all processes that failed lately.
    Failed,
}

/// How many there are.
pub(super) const PLACES: usize = 4;

impl Place {
    /// Whether its rows are traffic, whose columns have directions.
    pub(super) fn is_traffic(&self) -> bool {
        matches!(self, Self::Processes | Self::Connections(_))
    }

    /// Its number.
    pub(super) fn number(&self) -> usize {
        match self {
            Self::Processes => 0,
            Self::Connections(_) => 1,
            Self::Packets(_) => 2,
            Self::Failed => 3,
        }
    }
}

//! Installs Wireshark's program for terminals, with which the tests read pcapng.

use std::process::Command;

use crate::process::succeeds;

/// Debian's package, and the program in it.
const TSHARK: &str = "tshark";

/// Set for tests that may not leave out what needs it.
pub(crate) const REQUIRED: (&str, &str) = ("NET_LATENCY_TEST_TSHARK", "required");

/// The packages to install for it.
pub(crate) fn missing_packages() -> Option<&'static str> {
    (!succeeds(Command::new(TSHARK).arg("--version"))).then_some(TSHARK)
}

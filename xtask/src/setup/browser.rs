//! Installs the browser that the tests look at pages with.

use std::process::Command;

use anyhow::Result;

use super::apt::Apt;
use crate::process::succeeds;

/// Debian's chromium without windows, which is less than half of it; where there is none, the whole one.
const PACKAGES: [&str; 2] = ["chromium-headless-shell", "chromium"];
/// What the packages install, and what other distributions call it. `net-latency/tests/report_page.rs` looks for the
/// same names.
const PROGRAMS: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];

/// Set for tests that may not leave out what needs a browser.
pub(crate) const REQUIRED: (&str, &str) = ("NET_LATENCY_TEST_BROWSER", "required");

/// The packages to install for it.
pub(crate) fn missing_packages(apt: &mut Apt) -> Result<Vec<&'static str>> {
    if PROGRAMS.iter().any(|program| succeeds(Command::new(program).arg("--version"))) {
        return Ok(Vec::new());
    }
    let [small, whole] = PACKAGES;
    // Without apt it is told what to install by other means.
    Ok(vec![if Apt::exists() && apt.has(small)? { small } else { whole }])
}
